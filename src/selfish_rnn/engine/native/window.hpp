// What the layers with cells of their own (highway.hpp, ordered_neurons.hpp) do over a window as all layers do.
#pragma once

#include "recurrent.hpp"

namespace selfish {
namespace SELFISH_TARGET {

// What one of the threads takes on of so many pieces.
struct Share {
  int begin, end;
  explicit Share(int pieces) {
    const int threads = omp_get_num_threads(), thread = omp_get_thread_num();
    begin = pieces * thread / threads, end = pieces * (thread + 1) / threads;
  }
};

// The input sums of all tokens, each to where place(step, part) says that the lines of a step begin.
template <class Place>
inline void project_inputs(const Packed& inputs, const float* values, const float* bias, const float* x,
                           float* x_panels, const Panels& wide, const StepLayout& layout, Place place) {
  if (wide.width > 1) {
    all_from_rows(x, inputs.columns(), wide, x_panels);
    x = x_panels;
  }
  const int width = layout.panels.width;
  multiply_panels(inputs, values, bias, x, wide, [&](int64_t first, int64_t rows, int panel, const float* piece) {
    each_run(wide, panel, layout, [&](int at, int64_t step, int part, int column, int count) {
      float* to = place(step, part) + first * width + column;
      for (int64_t row = 0; row < rows; ++row) copy_run(to + row * width, piece + row * wide.width + at, count);
    });
  });
}

// What the input sums pass back: d_panels are their gradients.
inline void inputs_backward(const Packed& inputs, const float* values, const float* x, const float* d_panels,
                            const Panels& wide, float* x_gradient, float* gradients, float* values_t,
                            float* x_panels) {
  if (x_gradient != nullptr) {
    transpose_values(inputs, values, values_t);
    multiply_transposed_panels(inputs, values_t, d_panels, wide, RowsSink{x_gradient, inputs.columns(), wide});
  }
  if (gradients != nullptr) {
    all_from_rows(x, inputs.columns(), wide, x_panels);
    correlate_panels(inputs, gradients, x_panels, d_panels, wide, true);
  }
}

// Some of the lines of one step to the panels over all tokens.
inline void widen(const float* from, const StepLayout& layout, int64_t step, int part, int64_t first, int64_t stop,
                  float* to, const Panels& wide, int64_t lines) {
  each_wide_run(wide, layout, step, part, [&](int panel, int at, int column, int count) {
    for (int64_t line = first; line < stop; ++line)
      copy_run(to + (panel * lines + line) * wide.width + at, from + line * layout.panels.width + column, count);
  });
}

// Zeros behind the last token.
inline void clear_tail(float* panels, const Panels& wide, int64_t lines) {
  const int last = wide.count - 1, filled = wide.filled(last);
  if (filled == wide.width) return;
  for (int64_t line = 0; line < lines; ++line) {
    float* row = panels + (last * lines + line) * wide.width;
    std::fill(row + filled, row + wide.width, 0.f);
  }
}

// Adds some units of one step's rows (tokens x hidden) to its lines.
inline void add_rows(float* lines, const float* rows, const StepLayout& layout, int64_t step, int part, int64_t first,
                     int64_t stop) {
  const Panels& narrow = layout.panels;
  rows += (step * layout.batch + narrow.first(part)) * layout.hidden + first;
  from_rows<true>(rows, layout.hidden, lines + first * narrow.width, narrow.width, narrow.filled(part), stop - first);
}

// The gradient of some units of a step through the recurrent matrix, added to d_state.
inline void through_recurrence(const Packed& recurrence, int tile, const float* values_t, const float* d, int width,
                               float* d_state) {
  for (int row_tile = 0; row_tile < recurrence.row_tiles(); ++row_tile)
    multiply(width, recurrence.tile_t(row_tile, tile), values_t, d + recurrence.first_row(row_tile) * width,
             d_state + recurrence.first_column(tile) * width);
}

}  // namespace SELFISH_TARGET
}  // namespace selfish
