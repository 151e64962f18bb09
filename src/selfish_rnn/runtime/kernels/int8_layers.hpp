// A whole recurrent layer over a window with int8 matrices.
#pragma once

#include "cells.hpp"
#include "int8_products.hpp"

namespace selfish {
namespace SELFISH_TARGET {

template <class Cell>
inline void layer(const Int8Layer& layer, Cell cell) {
  const Windows inputs(layer.input), recurrence(layer.recurrent);
  const int64_t rows = inputs.rows(), hidden = layer.hidden, state = layer.batch * hidden;
  if (layer.c_last != nullptr) std::copy_n(layer.c_first, state, layer.c_last);
#pragma omp parallel
  {
    const Team team;
    const float* before = layer.h_first;
    for (int64_t step = 0; step < layer.steps; ++step) {
      if (const int64_t left = layer.steps - step; step % layer.ahead == 0)
        multiply(inputs, layer.x + step * layer.batch * inputs.columns(), std::min(layer.ahead, left) * layer.batch,
                 layer.bias, layer.input_sums, team);
      multiply(recurrence, before, layer.batch, layer.recurrent_bias, layer.recurrent_sums, team);
      team.wait();
      float* after = layer.y + step * state;
      for (int64_t n = 0; n < layer.batch; ++n) {
        const float* sums = layer.input_sums + (step % layer.ahead * layer.batch + n) * rows;
        float* c = layer.c_last == nullptr ? nullptr : layer.c_last + n * hidden;
        cell(CellSite{sums, layer.recurrent_sums + n * rows, before + n * hidden, c, after + n * hidden, c, hidden, 0},
             team.of(hidden));
      }
      team.wait();
      before = after;
    }
  }
}

inline void int8_linear(const void* windows, const float* bias, const float* x, int64_t n, float* y) {
#pragma omp parallel
  multiply(Windows(windows), x, n, bias, y, Team());
}

}  // namespace SELFISH_TARGET
}  // namespace selfish
