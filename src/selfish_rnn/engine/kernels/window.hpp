// What all recurrent layers do over a window: where tokens lie, and everything but the cell itself.
//
// The tokens of a window lie in panels in two ways. The *wide* panels have all tokens of the window as columns, step
// after step: products of the input matrix and gradients of weights take those. The *narrow* panels have the tokens of
// one step as columns (`StepLayout`): the recurrence takes those, and each of them is called a part of its step.
#pragma once

#include "abi.hpp"
#include "products.hpp"

namespace selfish {
namespace SELFISH_TARGET {

inline void copy_run(float* to, const float* from, int count) {
  int at = 0;
  for (; at + 8 <= count; at += 8) store<V8>(to + at, load<V8>(from + at));
  for (; at < count; ++at) to[at] = from[at];
}

// Where the narrow panels of a step lie in memory of steps x narrow panels x lines x width.
struct StepLayout {
  int64_t steps, batch, hidden;
  Panels panels;  // of one step
  StepLayout(const LayerShape& shape) : steps(shape.steps), batch(shape.batch), hidden(shape.hidden), panels(batch) {}
  int64_t line_floats(int64_t lines) const { return panels.floats(lines); }
  template <class Float>
  Float* at(Float* base, int64_t step, int panel, int64_t lines) const {
    return base + (step * panels.count + panel) * lines * panels.width;
  }
};

// Calls visit(column in the wide panel, step, narrow panel, column in the narrow panel, count) for every run of tokens
// that lie side by side both in this wide panel and in a narrow one.
template <class Visit>
inline void each_run(const Panels& wide, int panel, const StepLayout& layout, Visit visit) {
  const int64_t first = wide.first(panel), stop = first + wide.filled(panel);
  for (int64_t token = first; token < stop;) {
    const int64_t step = token / layout.batch, member = token % layout.batch;
    const int narrow = static_cast<int>(member / layout.panels.width);
    const int column = static_cast<int>(member % layout.panels.width);
    const int64_t until_panel = layout.panels.filled(narrow) - column;
    const int count = static_cast<int>(std::min(until_panel, stop - token));
    visit(static_cast<int>(token - first), step, narrow, column, count);
    token += count;
  }
}

// Calls visit(wide panel, column in it, column in the narrow panel, count) for every run of tokens that lie side by
// side both in this narrow panel of a step and in a wide one.
template <class Visit>
inline void each_wide_run(const Panels& wide, const StepLayout& layout, int64_t step, int narrow, Visit visit) {
  int64_t token = step * layout.batch + layout.panels.first(narrow);
  const int filled = layout.panels.filled(narrow);
  for (int column = 0; column < filled;) {
    const int panel = static_cast<int>(token / wide.width), at = static_cast<int>(token % wide.width);
    const int count = std::min(filled - column, wide.width - at);
    visit(panel, at, column, count);
    column += count, token += count;
  }
}

inline void state_from_rows(const float* rows, const StepLayout& layout, float* state) {
  for (int panel = 0; panel < layout.panels.count; ++panel)
    from_rows(rows + layout.panels.first(panel) * layout.hidden, layout.hidden,
              layout.at(state, 0, panel, layout.hidden), layout.panels.width, layout.panels.filled(panel),
              layout.hidden);
}

inline void state_to_rows(const float* state, const StepLayout& layout, float* rows) {
  for (int panel = 0; panel < layout.panels.count; ++panel)
    to_rows(layout.at(state, 0, panel, layout.hidden), layout.panels.width, layout.panels.filled(panel), layout.hidden,
            rows + layout.panels.first(panel) * layout.hidden, layout.hidden);
}

// The pieces, out of so many, that the calling thread takes on.
struct Share {
  int begin, end;
  explicit Share(int pieces) {
    const int threads = omp_get_num_threads(), thread = omp_get_thread_num();
    begin = pieces * thread / threads, end = pieces * (thread + 1) / threads;
  }
};

// W x + bias for all tokens. The results of a token go to its column of its step's lines, which begin at place(step,
// part).
template <class Place>
inline void project_inputs(const Packed& inputs, const float* values, const float* bias, const float* x,
                           float* x_panels, const Panels& wide, const StepLayout& layout, Place place) {
  if (wide.width > 1) {
    all_from_rows(x, inputs.columns(), wide, x_panels);
    x = x_panels;
  }
  const int width = layout.panels.width;
  spmm_panels<false>(inputs, values, bias, x, wide, [&](int64_t first, int64_t rows, int panel, const float* piece) {
    each_run(wide, panel, layout, [&](int at, int64_t step, int part, int column, int count) {
      float* to = place(step, part) + first * width + column;
      // Columns without a token hold zeros and not what memory held: saved activations are the same in every run.
      const int behind = column + count == layout.panels.filled(part) ? width - column - count : 0;
      for (int64_t row = 0; row < rows; ++row) {
        copy_run(to + row * width, piece + row * wide.width + at, count);
        for (int more = 0; more < behind; ++more) to[row * width + count + more] = 0.f;
      }
    });
  });
}

// The backward pass of W x: from the gradients of its results (d_panels) to those of x and of the weights, where
// wanted.
inline void inputs_backward(const Packed& inputs, const float* values, const float* x, const float* d_panels,
                            const Panels& wide, float* x_gradient, float* gradients, float* values_t, float* x_panels) {
  if (x_gradient != nullptr) {
    transpose_values(inputs, values, values_t);
    spmm_panels<true>(inputs, values_t, nullptr, d_panels, wide, RowsSink{x_gradient, inputs.columns(), wide});
  }
  if (gradients != nullptr) {
    all_from_rows(x, inputs.columns(), wide, x_panels);
    sddmm_panels(inputs, gradients, x_panels, d_panels, wide, true);
  }
}

// Copies the lines from first to stop of one narrow panel to the wide panels.
inline void widen(const float* from, const StepLayout& layout, int64_t step, int part, int64_t first, int64_t stop,
                  float* to, const Panels& wide, int64_t lines) {
  each_wide_run(wide, layout, step, part, [&](int panel, int at, int column, int count) {
    for (int64_t line = first; line < stop; ++line)
      copy_run(to + (panel * lines + line) * wide.width + at, from + line * layout.panels.width + column, count);
  });
}

// Sets to zero the columns of the last wide panel that have no token.
inline void clear_tail(float* panels, const Panels& wide, int64_t lines) {
  const int last = wide.count - 1, filled = wide.filled(last);
  if (filled == wide.width) return;
  for (int64_t line = 0; line < lines; ++line) {
    float* row = panels + (last * lines + line) * wide.width;
    std::fill(row + filled, row + wide.width, 0.f);
  }
}

// Adds to the lines from first to stop of one narrow panel the same units of its tokens' rows (tokens x hidden).
inline void add_rows(float* lines, const float* rows, const StepLayout& layout, int64_t step, int part, int64_t first,
                     int64_t stop) {
  const Panels& narrow = layout.panels;
  rows += (step * layout.batch + narrow.first(part)) * layout.hidden + first;
  from_rows<true>(rows, layout.hidden, lines + first * narrow.width, narrow.width, narrow.filled(part), stop - first);
}

// Adds to d_state, for the units of one column tile of the recurrent matrix R, what R^T d gives them.
inline void through_recurrence(const Packed& recurrence, int tile, const float* values_t, const float* d, int width,
                               float* d_state) {
  for (int row_tile = 0; row_tile < recurrence.row_tiles(); ++row_tile)
    spmm(width, recurrence.tile_t(row_tile, tile), values_t, d + recurrence.first_row(row_tile) * width,
         d_state + recurrence.first_column(tile) * width);
}

}  // namespace SELFISH_TARGET
}  // namespace selfish
