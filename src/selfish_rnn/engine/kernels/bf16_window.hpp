// What all recurrent layers do over a window in bfloat16: where the tokens of a step lie, as floats and as operands.
//
// The tokens of a step are cut into panels of at most 32. The floats of a panel lie in blocks: one of its first columns
// (4, 8 or 16) and, if there are more than 16, one of the others; in a block line follows line, so no vector crosses a
// cache line and cells see whole vectors. As operands of the recurrent product the same tokens are one chunk for each
// line. Products over the whole window take wide panels, with the tokens of all steps in their order.
#pragma once

#include <vector>

#include "abi.hpp"
#include "bf16_products.hpp"
#include "window.hpp"

namespace selfish {
namespace SELFISH_TARGET {

// Some columns of a step: `before` columns of the step come earlier in memory.
struct Block {
  int64_t first, before;
  int width, filled;
};

struct StepBlocks {
  int64_t steps, batch, hidden;
  int panels, low, high;
  std::vector<Block> blocks;  // of each panel the low one, and the high one if there is one

  explicit StepBlocks(const LayerShape& shape) : steps(shape.steps), batch(shape.batch), hidden(shape.hidden) {
    panels = static_cast<int>((batch + kChunk - 1) / kChunk);
    const int64_t columns = (batch + panels - 1) / panels;
    low = columns <= 4 ? 4 : columns <= 8 ? 8 : 16;
    high = columns <= 16 ? 0 : columns <= 20 ? 4 : columns <= 24 ? 8 : 16;
    for (int panel = 0; panel < panels; ++panel)
      for (int width : {low, high}) {
        if (width == 0) continue;
        const int64_t first = panel * int64_t{low + high} + (blocks.size() % blocks_in_panel() ? low : 0);
        blocks.push_back(
            {first, first, width, static_cast<int>(std::max<int64_t>(0, std::min<int64_t>(width, batch - first)))});
      }
  }

  int width() const { return low + high; }
  size_t blocks_in_panel() const { return high == 0 ? 1 : 2; }
  // Columns of a step, empty ones included.
  int64_t columns() const { return int64_t{panels} * width(); }
  int64_t floats(int64_t lines) const { return columns() * lines; }
  int64_t operands(int64_t lines) const { return int64_t{panels} * kChunk * lines; }

  template <class Float>
  Float* at(Float* base, int64_t step, const Block& block, int64_t lines) const {
    return base + (step * columns() + block.before) * lines;
  }
  const Block& low_block(int panel) const { return blocks[panel * blocks_in_panel()]; }
  const Block& high_block(int panel) const { return blocks[panel * blocks_in_panel() + (high != 0)]; }
  // Calls visit(block) for the blocks of a panel.
  template <class Visit>
  void each_block(int panel, Visit visit) const {
    visit(low_block(panel));
    if (high != 0) visit(high_block(panel));
  }

  // Adds the product of one tile of lines with the operands of a panel to its results, of `lines` lines.
  void add_product(const Bf16Side& side, int line_tile, int inner_tile, const uint16_t* values,
                   const uint16_t* operands, int panel, float* results, int64_t lines) const {
    const int64_t first = side.first_line(line_tile);
    spmm_narrow(
        low, high, side.tile(line_tile, inner_tile), values,
        reinterpret_cast<const char*>(operands + (panel * side.inner() + side.first_inner(inner_tile)) * kChunk),
        at(results, 0, low_block(panel), lines) + first * low, at(results, 0, high_block(panel), lines) + first * high);
  }

  // Rounds the lines from first to stop of a panel to operands, which have zeros for columns that the panel lacks.
  void round(int panel, const float* floats, int64_t lines, int64_t first, int64_t stop, uint16_t* operands) const {
    const float* low_lines = at(floats, 0, low_block(panel), lines);
    const float* high_lines = at(floats, 0, high_block(panel), lines);
    uint16_t* to = operands + panel * lines * kChunk;
    with_width(low, [&](auto low_width) {
      with_width(high, [&](auto high_width) {
        constexpr int kLow = decltype(low_width)::value, kHigh = decltype(high_width)::value;
        for (int64_t line = first; line < stop; ++line)
          round_chunk(to + line * kChunk, load_widened<kLow>(low_lines + line * kLow),
                      load_widened<kHigh>(high_lines + line * kHigh));
      });
    });
  }

 private:
  template <int Width>
  using Constant = std::integral_constant<int, Width>;

  template <class Work>
  static void with_width(int width, Work work) {
    if (width == 0) return work(Constant<0>{});
    if (width == 4) return work(Constant<4>{});
    if (width == 8) return work(Constant<8>{});
    return work(Constant<16>{});
  }

  template <int Width>
  static SELFISH_INLINE V16 load_widened(const float* from) {
    if constexpr (Width == 16) {
      return load<V16>(from);
    } else if constexpr (Width == 8) {
      const V8 half = load<V8>(from);
      return __builtin_shufflevector(half, V8{}, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    } else if constexpr (Width == 4) {
      const V4 quarter = load<V4>(from);
      return __builtin_shufflevector(quarter, V4{}, 0, 1, 2, 3, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4);
    } else {
      return V16{};
    }
  }
};

// Lines from first to stop of a step as rows (batch x lines), for one block, and back.
inline void block_to_rows(const StepBlocks& layout, const Block& block, const float* state, int64_t lines,
                          int64_t first, int64_t stop, float* rows) {
  to_rows(layout.at(state, 0, block, lines) + first * block.width, block.width, block.filled, stop - first,
          rows + block.first * lines + first, lines);
}

template <bool Add = false>
inline void block_from_rows(const StepBlocks& layout, const Block& block, const float* rows, int64_t lines,
                            int64_t first, int64_t stop, float* state) {
  from_rows<Add>(rows + block.first * lines + first, lines, layout.at(state, 0, block, lines) + first * block.width,
                 block.width, block.filled, stop - first);
}

inline void step_from_rows(const StepBlocks& layout, const float* rows, float* state) {
  for (const Block& block : layout.blocks) block_from_rows(layout, block, rows, layout.hidden, 0, layout.hidden, state);
}

inline void step_to_rows(const StepBlocks& layout, const float* state, float* rows) {
  for (const Block& block : layout.blocks) block_to_rows(layout, block, state, layout.hidden, 0, layout.hidden, rows);
}

inline void step_operands(const StepBlocks& layout, const float* state, uint16_t* operands) {
  for (int panel = 0; panel < layout.panels; ++panel)
    layout.round(panel, state, layout.hidden, 0, layout.hidden, operands);
}

// W x + bias for all tokens of a window. The results of a step go to its blocks of `lines` lines, from base on.
inline void bf16_project_inputs(const Bf16Matrix& inputs, const float* bias, const float* x, uint16_t* operands,
                                uint16_t* values, const Panels& wide, const StepBlocks& layout, float* base) {
  struct Run {
    float* to;
    int column, count, width, behind;
  };
  const int64_t lines = inputs.rows.lines();
  for (const Block& block : layout.blocks)
    for (int64_t step = 0; block.filled == 0 && step < layout.steps; ++step)
      std::fill_n(layout.at(base, step, block, lines), lines * block.width, 0.f);
  operands_from_rows(x, inputs.rows.inner(), wide, operands);
  round_values<false>(inputs, values);
  bf16_spmm(inputs.rows, values, bias, operands, wide, [&](int64_t first, int64_t rows, int panel, const float* piece) {
    // The runs of tokens that lie side by side in this panel and in a block.
    Run runs[kWide];
    int count = 0;
    for (int column = 0; column < wide.filled(panel);) {
      const int64_t token = wide.first(panel) + column, step = token / layout.batch;
      const int64_t member = token % layout.batch;
      const Block* block = &layout.blocks[0];
      while (member >= block->first + block->width) ++block;
      Run& run = runs[count++];
      const int64_t in_block = member - block->first;
      run.to = layout.at(base, step, *block, lines) + first * block->width + in_block;
      run.column = column, run.width = block->width;
      run.count = static_cast<int>(std::min<int64_t>(block->filled - in_block, wide.filled(panel) - column));
      // Columns without a token hold zeros and not what memory held.
      run.behind = in_block + run.count == block->filled ? block->width - block->filled : 0;
      column += run.count;
    }
    for (int64_t row = 0; row < rows; ++row)
      for (const Run* run = runs; run != runs + count; ++run) {
        float* to = run->to + row * run->width;
        copy_floats(to, piece + row * kWide + run->column, run->count);
        for (int more = 0; more < run->behind; ++more) to[run->count + more] = 0.f;
      }
  });
}

// Where the tokens of a step's panel go in the wide panels: four at a time where they stay together, else one by one.
class Widening {
 public:
  Widening(const StepBlocks& layout, const Panels& wide, int64_t step, int panel, int64_t lines)
      : fours_(layout.batch % 4 == 0) {
    const int64_t first = panel * int64_t{layout.width()};
    const int filled = static_cast<int>(std::min<int64_t>(layout.width(), layout.batch - first));
    for (int column = 0; column < filled; column += fours_ ? 4 : 1) {
      const int64_t token = step * layout.batch + first + column;
      const int in_panel = static_cast<int>(token % wide.width);
      moves_[count_++] = {
          token / wide.width * lines * kWide + in_panel / kChunk * kChunk + place_in_chunk(in_panel % kChunk),
          place_in_chunk(column)};
    }
  }

  // The lines from first to stop of a panel's operands.
  void copy(const uint16_t* operands, int64_t first, int64_t stop, uint16_t* wide) const {
    for (int64_t line = first; line < stop; ++line)
      for (int at = 0; at < count_; ++at) {
        uint16_t* to = wide + line * kWide + moves_[at].to;
        const uint16_t* from = operands + line * kChunk + moves_[at].from;
        if (fours_)
          std::memcpy(to, from, 8);
        else
          *to = *from;
      }
  }

 private:
  struct Move {
    int64_t to;
    int from;
  };
  bool fours_;
  int count_ = 0;
  Move moves_[kChunk];
};

// Rounds the lines from first to stop of a panel of one step: to the operands of the next product, and into the wide
// panels of the window.
inline void keep_operands(const StepBlocks& layout, int panel, const float* floats, int64_t lines, int64_t first,
                          int64_t stop, uint16_t* operands, const Widening* widening, uint16_t* wide_operands) {
  layout.round(panel, floats, lines, first, stop, operands);
  if (widening != nullptr) widening->copy(operands + panel * lines * kChunk, first, stop, wide_operands);
}

// Sets to zero the last wide panel, if it has columns without a token.
inline void clear_last_panel(uint16_t* operands, const Panels& wide, int64_t lines) {
  const int last = wide.count - 1;
  if (wide.filled(last) < kWide) std::fill_n(operands + last * lines * kWide, lines * kWide, uint16_t{0});
}

// The backward pass of W x: from the gradients of its results to those of x and of the weights, where wanted.
inline void bf16_inputs_backward(const Bf16Matrix& inputs, const float* x, const uint16_t* d_operands,
                                 const Panels& wide, float* x_gradient, float* gradients, uint16_t* values,
                                 uint16_t* x_operands) {
  const int64_t columns = inputs.columns.lines();
  if (x_gradient != nullptr) {
    round_values<true>(inputs, values);
    bf16_spmm(inputs.columns, values, nullptr, d_operands, wide, RowsSink{x_gradient, columns, wide});
  }
  if (gradients != nullptr) {
    operands_from_rows(x, columns, wide, x_operands);
    bf16_sddmm(inputs.rows, gradients, x_operands, d_operands, wide, true);
  }
}

// Adds to the lines of one column tile of the recurrent matrix R what R^T d gives them.
inline void add_through_recurrence(const StepBlocks& layout, const Bf16Side& columns, int tile, const uint16_t* values,
                                   const uint16_t* d_operands, int panel, float* d_state) {
  for (int inner = 0; inner < columns.inner_tiles(); ++inner)
    layout.add_product(columns, tile, inner, values, d_operands, panel, d_state, columns.lines());
}

}  // namespace SELFISH_TARGET
}  // namespace selfish
