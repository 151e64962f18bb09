// The next word in one call: a program of operations on one piece of memory, made when a model is loaded.
//
// Operations of one phase are independent of each other, and all threads share each of them; between phases they wait
// for each other. So the products that need nothing that this word computes, those with the states, come first and
// together.
#pragma once

#include <cmath>
#include <vector>

#include "abi.hpp"
#include "cells.hpp"

namespace selfish {
namespace SELFISH_TARGET {

inline float dot(const float* a, const float* b, int64_t n) {
  V8 total{};
  for (int64_t at = 0; at < n; at += 8) total += load_some(a + at, n - at) * load_some(b + at, n - at);
  return sum(total);
}

inline void dense_product(const Operation& operation, const float* x, float* y, const Team& team) {
  const Part rows = team.of(operation.size);
  for (int64_t n = 0; n < operation.count; ++n)
    for (int64_t row = rows.begin; row < rows.end; ++row) {
      const float bias = operation.bias == nullptr ? 0.f : operation.bias[row];
      const float* weights = operation.values + row * operation.columns;
      const float product = dot(weights, x + n * operation.columns, operation.columns);
      y[n * operation.size + row] = static_cast<float>(operation.factor) * product + bias;
    }
}

// log(sum_k prior_k chance_k + 1e-8) over `count` vectors of chances.
inline void mixture(const Operation& operation, const float* prior, const float* chances, float* y, Part words) {
  for (int64_t word = words.begin; word < words.end; ++word) {
    float total = 0;
    for (int64_t k = 0; k < operation.count; ++k) total += prior[k] * chances[k * operation.size + word];
    y[word] = std::log(total + 1e-8f);
  }
}

// Matrices multiplies: multiply(operation, x, y, team) and lookup(operation, row, y).
template <class Matrices>
inline void run_operation(const Operation& operation, float* memory, int64_t token, const Team& team) {
  const auto at = [&](int64_t place) { return place < 0 ? nullptr : memory + place; };
  float *input = at(operation.input), *second = at(operation.second), *state = at(operation.state);
  float* output = at(operation.output);
  const CellSite site{input, second, output, state, output, operation.size, operation.extra};
  switch (operation.kind) {
    case kMatrixRow:
      if (team.thread > 0) return;
      if (operation.matrix == nullptr)
        std::copy_n(operation.values + token * operation.size, operation.size, output);
      else
        Matrices::lookup(operation, token, output);
      return;
    case kProduct:
      if (operation.matrix == nullptr) return dense_product(operation, input, output, team);
      return Matrices::multiply(operation, input, output, team);
    case kLstmCell: return lstm_cell(site, team.of(operation.size));
    case kGruCell: return gru_cell(site, team.of(operation.size));
    case kRnnTanhCell: return elman_cell<false>(site, team.of(operation.size));
    case kRnnReluCell: return elman_cell<true>(site, team.of(operation.size));
    case kHighwayCell: return highway_cell(site, team.of(operation.size));
    case kOrderedCell: {
      static thread_local std::vector<float> masters;
      masters.resize(2 * operation.size / operation.extra);
      return ordered_cell(site, team.of(operation.size), masters.data());
    }
    case kTanhOf:
      return in_eights(team.of(operation.size), [&](int64_t unit, int64_t n) {
        store_some(output + unit, tanh(load_some(input + unit, n)), n);
      });
    case kSoftmaxOf:
      return team.each(operation.count, [&](int64_t k) {
        softmax(input + k * operation.size, operation.size, output + k * operation.size);
      });
    default: return mixture(operation, input, second, output, team.of(operation.size));
  }
}

template <class Matrices>
inline void run_program(const Program& program) {
#pragma omp parallel
  {
    const Team team;
    int64_t phase = 0;
    for (int64_t at = 0; at < program.count; ++at) {
      const Operation& operation = program.operations[at];
      if (operation.phase != phase) team.wait();
      phase = operation.phase;
      run_operation<Matrices>(operation, program.memory, program.token, team);
    }
  }
}

}  // namespace SELFISH_TARGET
}  // namespace selfish
