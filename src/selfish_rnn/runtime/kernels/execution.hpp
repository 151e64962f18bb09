// A step of a program. Operations of one phase are independent of each other, and all threads share each of them;
// between phases they wait for each other. A step neither allocates memory nor takes a lock.
#pragma once

#include "cells.hpp"
#include "elementwise.hpp"
#include "float_products.hpp"
#include "int8_blocks.hpp"
#include "int8_dense.hpp"
#include "operations.hpp"

namespace selfish {
namespace SELFISH_TARGET {

inline void multiply(const Operation& operation, const float* x, float* y, uint8_t* memory, const Team& team) {
  const Matrix& matrix = *operation.matrix;
  if (matrix.layout == kSparseInt8)
    return multiply(Windows(matrix.windows), x, operation.count, operation.bias, y, team, memory, operation.a);
  for (int64_t n = 0; n < operation.count; ++n, x += matrix.columns, y += matrix.rows) {
    switch (matrix.layout) {
      case kDenseFloat: multiply_dense_float(matrix, x, operation.bias, y, team); break;
      case kSparseFloat: multiply_sparse_float(matrix, x, operation.bias, y, team); break;
      case kBlocksInt8: multiply_blocks(matrix, x, operation.bias, y, team, memory, operation.a); break;
      default: multiply_dense_int8(matrix, x, operation.bias, y, team, memory, operation.a);
    }
  }
}

// A row of a matrix in any layout.
inline void look_up(const Matrix& matrix, int64_t row, float* y) {
  switch (matrix.layout) {
    case kRowsFloat: std::memcpy(y, matrix.values + row * matrix.columns, sizeof(float) * matrix.columns); return;
    case kSparseInt8: return Windows(matrix.windows).lookup(row, y);
    case kBlocksInt8: return look_up_blocks(matrix, row, y);
    case kDenseFloat: {
      const int64_t block = row / (kBlock * kFloatLanes) * kBlock;
      const int64_t vectors = std::min<int64_t>(kBlock, matrix.groups - block);
      const float* from = matrix.values + block * kFloatLanes * matrix.columns + row - block * kFloatLanes;
      for (int64_t column = 0; column < matrix.columns; ++column) y[column] = from[column * vectors * kFloatLanes];
      return;
    }
    case kDenseInt8: {
      const int64_t steps = (matrix.columns + 3) / 4, block = row / (kInt8Block * kHeight) * kInt8Block;
      const int64_t step = std::min<int64_t>(kInt8Block, matrix.groups - block) * kHeight * 4;
      const int8_t* from = matrix.bytes + block * kHeight * steps * 4 + (row - block * kHeight) * 4;
      for (int64_t column = 0; column < matrix.columns; ++column)
        y[column] = static_cast<float>(from[column / 4 * step + column % 4]) * matrix.scale[row];
      return;
    }
    default: break;
  }
  std::memset(y, 0, sizeof(float) * matrix.columns);
  int64_t at = row / kStretch * kStretch;
  while (matrix.row[at] != row) ++at;
  for (int64_t step = matrix.first[at / kFloatLanes]; step < matrix.first[at / kFloatLanes + 1]; ++step) {
    const int64_t weight = step * kFloatLanes + at % kFloatLanes;
    if (matrix.values[weight] != 0.f) y[matrix.base[step] + matrix.codes[weight]] = matrix.values[weight];
  }
}

// The ring holds the past and, as its last number, the place of the oldest vector, which the newest one replaces. Any
// caller may set a state, so that number is checked.
inline void frames(const Operation& operation, const float* x, float* ring, float* y) {
  const int64_t size = operation.input_size[0], dilation = operation.extra, past = (operation.count - 1) * dilation;
  const float saved = ring[past * size];
  const int64_t oldest = saved >= 0.f && saved < static_cast<float>(past) ? static_cast<int64_t>(saved) : 0;
  for (int64_t frame = 0; frame + 1 < operation.count; ++frame)
    std::memcpy(y + frame * size, ring + (oldest + frame * dilation) % past * size, sizeof(float) * size);
  std::memcpy(y + (operation.count - 1) * size, x, sizeof(float) * size);
  std::memcpy(ring + oldest * size, x, sizeof(float) * size);
  ring[past * size] = static_cast<float>((oldest + 1) % past);
}

// log(sum_k prior_k probability_k + 1e-8).
inline void mixture(const Operation& operation, const float* prior, const float* probabilities, float* y, Part part) {
  for (int64_t at = part.begin; at < part.end; at += 8) {
    V8 sum{};
    for (int64_t k = 0; k < operation.input_size[0]; ++k)
      sum += prior[k] * load<V8>(probabilities + k * operation.size + at);
    store<V8>(y + at, log(sum + 1e-8f));
  }
}

inline void run(const Operation& operation, const Step& step, const Team& team) {
  const auto at = [&](int64_t place) { return place < 0 ? nullptr : step.memory + place; };
  const float *x = at(operation.input[0]), *second = at(operation.input[1]), *third = at(operation.input[2]);
  float *y = at(operation.output[0]), *also = at(operation.output[1]);
  // Whole vectors: what is behind the last number is padding.
  const Part part = team.of((operation.size + 7) / 8 * 8);
  const float a = operation.a, b = operation.b;
  const auto each = [&](auto function) { map(x, y, part, function); };
  const auto pairs = [&](auto function) {
    map(x, operation.input_size[0] == 1, second, operation.input_size[1] == 1, y, part, function);
  };
  const auto parts = [&](auto function) {
    const int64_t size = operation.input_size[0] / operation.count;
    team.each(operation.count, [&](int64_t k) { function(x + k * size, size, k); });
  };
  switch (operation.kind) {
    case kLinear: return multiply(operation, x, y, step.activations + team.thread * step.activation_bytes, team);
    case kEmbedding:
      if (team.thread == 0) look_up(*operation.matrix, step.tokens[operation.extra], y);
      return;
    case kCopy:
      if (team.thread == 0) std::memcpy(y, x, sizeof(float) * operation.size);
      return;
    case kFrames:
      if (team.thread == 0) frames(operation, x, at(operation.input[1]), y);
      return;
    case kLstmCell: return lstm_cell({x, second, nullptr, third, y, also, operation.size, 0}, part);
    case kGruCell: return gru_cell({x, second, third, nullptr, y, nullptr, operation.size, 0}, part);
    case kRnnTanhCell: return elman_cell<false>({x, second, nullptr, nullptr, y, nullptr, operation.size, 0}, part);
    case kRnnReluCell: return elman_cell<true>({x, second, nullptr, nullptr, y, nullptr, operation.size, 0}, part);
    case kHighwayCell: return highway_cell({second, third, x, nullptr, y, nullptr, operation.size, 0}, part);
    case kOrderedCell:
      return ordered_cell({x, second, nullptr, third, y, also, operation.size, operation.count}, part,
                          step.masters + team.thread * step.master_floats);
    case kAdd: return pairs([](V8 p, V8 q) { return p + q; });
    case kSubtract: return pairs([](V8 p, V8 q) { return p - q; });
    case kMultiply: return pairs([](V8 p, V8 q) { return p * q; });
    case kDivide: return pairs([](V8 p, V8 q) { return p / q; });
    case kMaximum: return pairs([](V8 p, V8 q) { return larger(p, q); });
    case kMinimum: return pairs([](V8 p, V8 q) { return smaller(p, q); });
    case kAbs: return each([](V8 v) { return magnitude(v); });
    case kSqrt: return each([](V8 v) { return root(v); });
    case kExp: return each([](V8 v) { return full_exp(v); });
    case kLog: return each([](V8 v) { return log(v); });
    case kSquare: return each([](V8 v) { return v * v; });
    case kTanh: return each([](V8 v) { return tanh(v); });
    case kSigmoid: return each([](V8 v) { return sigmoid(v); });
    case kRelu: return each([](V8 v) { return relu(v); });
    case kGelu: return each([](V8 v) { return gelu(v); });
    case kGeluTanh: return each([](V8 v) { return gelu_tanh(v); });
    case kSilu: return each([](V8 v) { return silu(v); });
    case kSoftsign: return each([](V8 v) { return v / (1.f + magnitude(v)); });
    case kHardsigmoid: return each([](V8 v) { return hardsigmoid(v); });
    case kHardswish: return each([](V8 v) { return v * hardsigmoid(v); });
    case kLogSigmoid: return each([](V8 v) { return -softplus(-v); });
    case kAffine: return each([=](V8 v) { return v * a + b; });
    case kClamp: return each([=](V8 v) { return clamp(v, a, b); });
    case kLeakyRelu: return each([=](V8 v) { return v < 0.f ? v * a : v; });
    case kElu: return each([=](V8 v) { return v < 0.f ? a * (exp(v) - 1.f) : v; });
    case kSoftplus: return each([=](V8 v) { return v * a > b ? v : softplus(v * a) / a; });
    case kSoftmax: return parts([&](const float* v, int64_t n, int64_t k) { softmax(v, n, y + k * n); });
    case kLogSoftmax: return parts([&](const float* v, int64_t n, int64_t k) { log_softmax(v, n, y + k * n); });
    case kSum: return parts([&](const float* v, int64_t n, int64_t k) { y[k] = total(v, n); });
    case kMean: return parts([&](const float* v, int64_t n, int64_t k) { y[k] = total(v, n) / static_cast<float>(n); });
    case kMixture: return mixture(operation, x, second, y, part);
    case kLayerNorm: return parts([&](const float* v, int64_t n, int64_t k) { normalise<true>(v, n, a, y + k * n); });
    default: return parts([&](const float* v, int64_t n, int64_t k) { normalise<false>(v, n, a, y + k * n); });
  }
}

inline void run_phases(const Step& step, const Team& team) {
  int64_t phase = 0;
  for (const Operation* operation = step.operations; operation != step.operations + step.count; ++operation) {
    if (operation->phase != phase) team.wait();
    phase = operation->phase;
    run(*operation, step, team);
  }
}

inline void run_step(const Step& step) {
  if (step.threads == 1) {  // no team, and nobody to wait for
    for (const Operation* operation = step.operations; operation != step.operations + step.count; ++operation)
      run(*operation, step, Team::alone());
    return;
  }
#pragma omp parallel num_threads(static_cast<int>(step.threads))
  run_phases(step, Team());
}

// Measured with tools/benchmarks/layouts.cpp on a Zen 5; of NEON, instructions instead of picoseconds, counted under
// qemu.
#if defined(__AVX512F__)
constexpr MatrixCosts kFloatCosts{50, 500, 0, 2.7f, 4.6f, 8.4f};
#elif defined(__AVX2__)
constexpr MatrixCosts kFloatCosts{70, 600, 0, 4.7f, 5.1f, 8.6f};
#elif defined(__ARM_NEON)
constexpr MatrixCosts kFloatCosts{5.7f, 17, 0, 0.34f, 0.4f, 0.7f};
#else
constexpr MatrixCosts kFloatCosts{260, 900, 0, 27, 27, 27};
#endif
#if defined(SELFISH_BITS)
constexpr MatrixCosts kInt8Costs{8, 850, 7, 4.8f, 5, 7.5f};
#elif defined(__AVXVNNI__) || defined(__AVX512VNNI__)
constexpr MatrixCosts kInt8Costs{11, 1350, 9, 5.5f, 5.4f, 7.5f};
#elif defined(__AVX2__)
constexpr MatrixCosts kInt8Costs{15, 1100, 13, 14, 12, 12};
#elif defined(__ARM_FEATURE_DOTPROD)
constexpr MatrixCosts kInt8Costs{0.22f, 18, 0.24f, 0.21f, 0.25f, 0.4f};
#elif defined(__ARM_NEON)
constexpr MatrixCosts kInt8Costs{0.4f, 18, 0.45f, 0.42f, 0.42f, 0.5f};
#else
constexpr MatrixCosts kInt8Costs{900, 41000, 680, 670, 670, 670};
#endif

// The layouts that these kernels want.
constexpr MatrixRules matrix_rules() {
  return {kHeight, kInt8Block, kFloatLanes, kBlock, kWindow, kFloatCosts, kInt8Costs, planes_for};
}

}  // namespace SELFISH_TARGET
}  // namespace selfish
