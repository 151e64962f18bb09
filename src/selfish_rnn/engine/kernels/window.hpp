// What all recurrent layers do over a window: where tokens lie, and everything but the cell itself.
//
// The tokens of a window lie in panels in two ways. The *wide* panels have all tokens of the window as columns, step
// after step: products of the input matrix and gradients of weights take those. The *narrow* panels have the tokens of
// one step as columns (`StepLayout`): the recurrence takes those. A narrow panel lies in one or two pieces; each piece
// of each narrow panel is called a part of its step.
#pragma once

#include "abi.hpp"
#include "products.hpp"

namespace selfish {
namespace SELFISH_TARGET {

inline void copy_run(float* to, const float* from, int count) {
  int at = 0;
  for (; at + 16 <= count; at += 16) {
    store<V8>(to + at, load<V8>(from + at));
    store<V8>(to + at + 8, load<V8>(from + at + 8));
  }
  if (at + 8 <= count) store<V8>(to + at, load<V8>(from + at)), at += 8;
  if (at + 4 <= count) store<V4>(to + at, load<V4>(from + at)), at += 4;
  for (; at < count; ++at) to[at] = from[at];
}

// How the sequences of a batch are cut into narrow panels: as few as possible, all of one width. A panel is one column,
// 4, 8, or whole 16s and, where that leaves some columns, a piece of 4 or 8 for the rest.
struct StepPanels {
  int64_t columns;
  int count, main, rest;

  explicit StepPanels(int64_t columns_) : columns(columns_), rest(0) {
    count = static_cast<int>((columns + kWidest - 1) / kWidest);
    const int each = static_cast<int>((columns + count - 1) / count), behind = each % 16;
    const int more = behind <= 4 ? (behind + 3) / 4 * 4 : behind <= 8 ? 8 : 16;
    main = each - behind;
    if (columns == 1) {
      main = 1;
    } else if (main == 0 || more == 16) {
      main += more;
    } else {
      rest = more;
    }
  }
  int width() const { return main + rest; }
  int pieces() const { return rest > 0 ? 2 : 1; }
  int64_t floats(int64_t lines) const { return count * lines * width(); }
};

// Columns of a step that lie side by side: a piece of a narrow panel.
struct StepPart {
  int64_t first;  // column, that is sequence
  int width, filled;
};

// Where the narrow panels of a step lie in memory of steps x parts x lines x width.
struct StepLayout {
  int64_t steps, batch, hidden;
  StepPanels panels;  // of one step
  int parts;
  StepLayout(const LayerShape& shape)
      : steps(shape.steps),
        batch(shape.batch),
        hidden(shape.hidden),
        panels(batch),
        parts(panels.count * panels.pieces()) {}
  int64_t line_floats(int64_t lines) const { return panels.floats(lines); }
  StepPart part(int number) const {
    const bool is_rest = number % panels.pieces() == 1;
    const int64_t first = number / panels.pieces() * panels.width() + (is_rest ? panels.main : 0);
    const int width = is_rest ? panels.rest : panels.main;
    return {first, width, static_cast<int>(std::max<int64_t>(0, std::min<int64_t>(width, batch - first)))};
  }
  // The part of a sequence.
  int part_of(int64_t member) const {
    const int panel = static_cast<int>(member / panels.width());
    return panel * panels.pieces() + (member % panels.width() >= panels.main ? 1 : 0);
  }
  template <class Float>
  Float* at(Float* base, int64_t step, int part_, int64_t lines) const {
    return base + (step * panels.count * panels.width() + part(part_).first) * lines;
  }
  // One narrow panel from some line on; base: of its step.
  template <class Float>
  Pieces<Float> panel(Float* base, int panel_, int64_t lines, int64_t first) const {
    Float* main = base + panel_ * panels.width() * lines;
    return {main + first * panels.main, main + lines * panels.main + first * panels.rest};
  }
};

// Calls visit(column in the wide panel, step, part, column in the part, count) for every run of tokens that lie side by
// side both in this wide panel and in a part.
template <class Visit>
inline void each_run(const Panels& wide, int panel, const StepLayout& layout, Visit visit) {
  const int64_t first = wide.first(panel), stop = first + wide.filled(panel);
  for (int64_t token = first; token < stop;) {
    const int64_t step = token / layout.batch, member = token % layout.batch;
    const int number = layout.part_of(member);
    const StepPart part = layout.part(number);
    const int column = static_cast<int>(member - part.first);
    const int count = static_cast<int>(std::min<int64_t>(part.filled - column, stop - token));
    visit(static_cast<int>(token - first), step, number, column, count);
    token += count;
  }
}

// Calls visit(wide panel, column in it, column in the part, count) for every run of tokens that lie side by side both
// in this part of a step and in a wide panel.
template <class Visit>
inline void each_wide_run(const Panels& wide, const StepLayout& layout, int64_t step, const StepPart& part,
                          Visit visit) {
  int64_t token = step * layout.batch + part.first;
  for (int column = 0; column < part.filled;) {
    const int panel = static_cast<int>(token / wide.width), at = static_cast<int>(token % wide.width);
    const int count = std::min(part.filled - column, wide.width - at);
    visit(panel, at, column, count);
    column += count, token += count;
  }
}

inline void state_from_rows(const float* rows, const StepLayout& layout, float* state) {
  for (int number = 0; number < layout.parts; ++number) {
    const StepPart part = layout.part(number);
    from_rows(rows + part.first * layout.hidden, layout.hidden, layout.at(state, 0, number, layout.hidden), part.width,
              part.filled, layout.hidden);
  }
}

inline void state_to_rows(const float* state, const StepLayout& layout, float* rows) {
  for (int number = 0; number < layout.parts; ++number) {
    const StepPart part = layout.part(number);
    to_rows(layout.at(state, 0, number, layout.hidden), part.width, part.filled, layout.hidden,
            rows + part.first * layout.hidden, layout.hidden);
  }
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
  // Columns without a token hold zeros and not what memory held: saved activations are the same in every run.
  for (int number = 0; number < layout.parts; ++number)
    for (int64_t step = 0; layout.part(number).filled == 0 && step < layout.steps; ++step)
      std::fill_n(place(step, number), inputs.rows() * layout.part(number).width, 0.f);
  spmm_panels<false>(inputs, values, bias, x, wide, [&](int64_t first, int64_t rows, int panel, const float* piece) {
    each_run(wide, panel, layout, [&](int at, int64_t step, int number, int column, int count) {
      const StepPart part = layout.part(number);
      float* to = place(step, number) + first * part.width + column;
      const int behind = column + count == part.filled ? part.width - part.filled : 0;
      for (int64_t row = 0; row < rows; ++row) {
        copy_run(to + row * part.width, piece + row * wide.width + at, count);
        for (int more = 0; more < behind; ++more) to[row * part.width + count + more] = 0.f;
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

// Copies the lines from first to stop of one part to the wide panels.
inline void widen(const float* from, const StepLayout& layout, int64_t step, int number, int64_t first, int64_t stop,
                  float* to, const Panels& wide, int64_t lines) {
  const StepPart part = layout.part(number);
  each_wide_run(wide, layout, step, part, [&](int panel, int at, int column, int count) {
    for (int64_t line = first; line < stop; ++line)
      copy_run(to + (panel * lines + line) * wide.width + at, from + line * part.width + column, count);
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

// Adds to the lines from first to stop of one part the same units of its tokens' rows (tokens x hidden).
inline void add_rows(float* lines, const float* rows, const StepLayout& layout, int64_t step, int number, int64_t first,
                     int64_t stop) {
  const StepPart part = layout.part(number);
  rows += (step * layout.batch + part.first) * layout.hidden + first;
  from_rows<true>(rows, layout.hidden, lines + first * part.width, part.width, part.filled, stop - first);
}

// Copies the same lines to the rows of the part's tokens.
inline void write_rows(const float* lines, const StepLayout& layout, int64_t step, int number, int64_t first,
                       int64_t stop, float* rows) {
  const StepPart part = layout.part(number);
  rows += (step * layout.batch + part.first) * layout.hidden + first;
  to_rows(lines + first * part.width, part.width, part.filled, stop - first, rows, layout.hidden);
}

// Calls visit(offset, floats left) for the vectors of the units from first to stop of a part.
template <class Visit>
SELFISH_INLINE void each_vector(int64_t first, int64_t stop, int width, Visit visit) {
  for (int64_t at = first * width; at < stop * width; at += kLanes<Widest>) visit(at, stop * width - at);
}

// Fetches one of several equal shares of memory to the second cache: spread over a computation, the shares come from
// the outer ones meanwhile.
inline void fetch_share(const float* from, int64_t floats, int share, int shares) {
  for (int64_t at = floats * share / shares / 16 * 16; at < floats * (share + 1) / shares; at += 16)
    __builtin_prefetch(from + at, 0, 2);
}

// A recurrent matrix, or its transpose with the values in transposed order, as the steps of a window multiply it.
template <bool Transposed>
struct StepMatrix {
  const Side<Transposed> out;
  const Side<!Transposed> in;
  const float* values;
  const StepLayout& layout;

  StepMatrix(const Packed& packed, const float* values_, const StepLayout& layout_)
      : out{packed}, in{packed}, values(values_), layout(layout_) {}

  // Adds the product of one tile with a narrow panel; x and y are of one step.
  void add_product(int along, int across, int panel, const float* x, float* y) const {
    const StepPanels& panels = layout.panels;
    Ahead none(x, 0);
    spmm(panels.main, panels.rest, out.tile(along, across), values,
         layout.panel(x, panel, in.lines(), in.first(across)), layout.panel(y, panel, out.lines(), out.first(along)),
         none);
  }
  // Adds the products of all tiles of a row.
  void add_products(int along, const float* x, float* y) const {
    for (int panel = 0; panel < layout.panels.count; ++panel)
      for (int across = 0; across < in.tiles(); ++across) add_product(along, across, panel, x, y);
  }
};

}  // namespace SELFISH_TARGET
}  // namespace selfish
