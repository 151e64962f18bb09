// Products of a packed matrix with many tokens at once in bfloat16, over all tiles and threads. What float32 has in
// products.hpp; results and gradients are float32.
#pragma once

#include "bf16_tiles.hpp"
#include "products.hpp"

namespace selfish {
namespace SELFISH_TARGET {

// Cuts work memory into aligned pieces; over no memory it counts what they take together.
class WorkMemory {
 public:
  explicit WorkMemory(void* memory) : start_(static_cast<char*>(memory)) {}
  template <class Number>
  Number* take(int64_t count) {
    const int64_t at = bytes_;
    bytes_ += (count * static_cast<int64_t>(sizeof(Number)) + kAlignment - 1) / kAlignment * kAlignment;
    return start_ == nullptr ? nullptr : reinterpret_cast<Number*>(start_ + at);
  }
  bool counting() const { return start_ == nullptr; }
  int64_t floats() const { return bytes_ / static_cast<int64_t>(sizeof(float)); }

 private:
  char* start_;
  int64_t bytes_ = 0;
};

// Panels of 64 tokens, as many as hold all.
inline Panels wide_panels(int64_t tokens) {
  Panels panels(tokens);
  panels.width = kWide;
  panels.count = static_cast<int>((tokens + kWide - 1) / kWide);
  return panels;
}

inline int64_t operand_numbers(const Panels& panels, int64_t features) { return panels.floats(features); }

// Multiplies every token of a wide panel by its factor.
inline void scale_columns(float* panel, int64_t lines, const float* factors) {
  for (int64_t line = 0; line < lines; ++line)
    for (int at = 0; at < kWide; at += 8)
      store<V8>(panel + line * kWide + at, load<V8>(panel + line * kWide + at) * load<V8>(factors + at));
}

// The panels of rows (tokens x features), rounded; if there are factors of the tokens, multiplied by them first.
inline void operands_from_rows(const float* rows, int64_t features, const Panels& panels, uint16_t* to,
                               const float* factors = nullptr) {
  constexpr int64_t kLines = 32;
  const int64_t pieces = (features + kLines - 1) / kLines;
#pragma omp parallel for collapse(2) schedule(static)
  for (int panel = 0; panel < panels.count; ++panel)
    for (int64_t piece = 0; piece < pieces; ++piece) {
      alignas(64) float lines[kLines * kWide];
      const int64_t first = piece * kLines, count = std::min(kLines, features - first);
      from_rows(rows + panels.first(panel) * features + first, features, lines, kWide, panels.filled(panel), count);
      if (factors != nullptr) scale_columns(lines, count, factors + panels.first(panel));
      uint16_t* line = to + (panel * features + first) * kWide;
      for (int64_t at = 0; at < count * kWide; at += kChunk)
        round_chunk(line + at, load<V16>(lines + at), load<V16>(lines + at + 16));
    }
}

// The tokens of rounded panels as rows (tokens x features), for what is made of dense gradients.
inline void rows_from_operands(const uint16_t* panels_, int64_t features, const Panels& panels, float* rows) {
#pragma omp parallel for schedule(static)
  for (int panel = 0; panel < panels.count; ++panel)
    for (int column = 0; column < panels.filled(panel); ++column) {
      const int place = column / kChunk * kChunk + place_in_chunk(column % kChunk);
      float* row = rows + (panels.first(panel) + column) * features;
      for (int64_t line = 0; line < features; ++line)
        row[line] = widened(panels_[(panel * features + line) * kWide + place]);
    }
}

// Runs of floats. Compilers would make calls of loops that copy, which take longer than most runs; an empty asm
// prevents that.
inline void copy_floats(float* to, const float* from, int count) {
  int at = 0;
  for (; at + 16 <= count; at += 16) {
    store<V16>(to + at, load<V16>(from + at));
    asm("" ::: "memory");
  }
  for (; at + 4 <= count; at += 4) {
    store<V4>(to + at, load<V4>(from + at));
    asm("" ::: "memory");
  }
  for (; at < count; ++at) {
    to[at] = from[at];
    asm("" ::: "memory");
  }
}

// Adds the gradients of a tile's slots to those of its values, or puts them there.
inline void scatter_gradients(const Bf16Tile& tile, const float* slots, float* gradients, bool afresh) {
  const Bf16Run* run = tile.runs;
  float line[kLongestInner + 32];
  for (const Bf16Group* group = tile.groups; group != tile.end; ++group) {
    for (int at = 0; at < group->lines; ++at) {
      for (int four = 0; four < group->fours; ++four)
        store<V4>(line + 4 * four, load<V4>(slots + 4 * at + kSlotsOfFour * four));
      const float* from = line;
      for (bool more = true; more; from += run->count, more = !run++->last)
        for (int first = 0; first < run->count; first += 16) {
          float* to = gradients + run->start + first;
          const int left = run->count - first;
          const V16 sums = load<V16>(from + first);
          store_some(to, afresh ? sums : load_some<V16>(to, left) + sums, left);
        }
    }
    slots += kSlotsOfFour * group->fours;
  }
}

// Rounds the values of a line, which lie in runs of `from`, to its slots; returns the run after its last. Zeros fill
// the line up.
inline const Bf16Run* round_line(const Bf16Group& group, const Bf16Run* run, const float* const* from,
                                 uint16_t* slots) {
  uint16_t numbers[kLongestInner + 32];
  int count = 0;
  for (bool more = true; more; more = !run++->last) {
    const float* values = from[run->piece] + run->start;
    for (int at = 0; at < run->count; at += 16)
      round_sixteen(numbers + count + at, load_some<V16>(values + at, run->count - at));
    count += run->count;
  }
  for (; count < 4 * group.fours; count += 16) round_sixteen(numbers + count, V16{});
  for (int four = 0; four < group.fours; ++four) std::memcpy(slots + kSlotsOfFour * four, numbers + 4 * four, 8);
  return run;
}

// Zeros for the lines that the last group of a tile lacks.
inline void clear_lacking_lines(const Bf16Tile& tile, uint16_t* slots) {
  if (tile.groups == tile.end) return;
  const Bf16Group& last = tile.end[-1];
  uint16_t* of_last = slots + tile.slots - kSlotsOfFour * last.fours;
  for (int line = last.lines; line < kLinesTogether; ++line)
    for (int four = 0; four < last.fours; ++four) std::memset(of_last + kSlotsOfFour * four + 4 * line, 0, 8);
}

// Copies the float32 values in the order of one side's slots, rounded.
template <bool Transposed>
inline void round_values(const Bf16Matrix& matrix, uint16_t* to) {
  const Bf16Side& side = matrix.side<Transposed>();
  const Packed& packed = matrix.packed;
  with_local(packed.large, [&](auto local) {
    const auto* sources = packed.sources<decltype(local)>();
#pragma omp parallel for schedule(dynamic, 1)
    for (int line_tile = 0; line_tile < side.line_tiles(); ++line_tile)
      for (int inner_tile = 0; inner_tile < side.inner_tiles(); ++inner_tile) {
        const Bf16Tile tile = side.tile(line_tile, inner_tile);
        // Where the values of each piece are, as runs count them; transposed ones are gathered first.
        const float* from[kLongestInner];
        if (Transposed) {
          int64_t gathered = 0;
          const auto tile_of = [&](int piece) {
            return int64_t{tile.first_piece + piece} * packed.column_tiles() + line_tile;
          };
          for (int piece = 0; piece < tile.pieces; ++piece)
            gathered += packed.value_start[tile_of(piece) + 1] - packed.value_start[tile_of(piece)];
          float* next = scratch(gathered);
          for (int piece = 0; piece < tile.pieces; ++piece) {
            const int64_t start = packed.value_start[tile_of(piece)];
            const int64_t count = packed.value_start[tile_of(piece) + 1] - start;
            for (int64_t at = 0; at < count; ++at) next[at] = matrix.values[start + sources[start + at]];
            from[piece] = next - start, next += count;
          }
        } else {
          std::fill(from, from + tile.pieces, matrix.values);
        }
        const Bf16Run* run = tile.runs;
        uint16_t* slots = to + tile.first_slot;
        for (const Bf16Group* group = tile.groups; group != tile.end; ++group) {
          for (int line = 0; line < group->lines; ++line) run = round_line(*group, run, from, slots + 4 * line);
          slots += kSlotsOfFour * group->fours;
        }
        clear_lacking_lines(tile, to + tile.first_slot);
      }
  });
}

// W x (or W^T x) for all wide panels. Each piece of the result is made where place(first line, lines, panel) says, and
// goes to sink(group, first line, lines, panel, piece) while it is in the cache.
template <class Place, class Sink>
inline void bf16_spmm_groups(const Bf16Side& side, const uint16_t* values, const float* bias, const uint16_t* x,
                             const Panels& panels, const Groups& groups, Place place, Sink sink) {
#pragma omp parallel for collapse(2) schedule(dynamic, 1)
  for (int group = 0; group < groups.count; ++group)
    for (int panel = 0; panel < panels.count; ++panel) {
      const int64_t first = side.first_line(groups.first(group)), lines = side.first_line(groups.stop(group)) - first;
      float* piece = place(first, lines, panel);
      fill_lines(piece, kWide, lines, bias == nullptr ? nullptr : bias + first);
      for (int inner = 0; inner < side.inner_tiles(); ++inner) {
        const uint16_t* from = x + (panel * side.inner() + side.first_inner(inner)) * kWide;
        for (int tile = groups.first(group); tile < groups.stop(group); ++tile)
          spmm_wide(side.tile(tile, inner), values, reinterpret_cast<const char*>(from),
                    piece + (side.first_line(tile) - first) * kWide);
      }
      sink(group, first, lines, panel, piece);
    }
}

// The same with pieces in memory of the threads, for a sink(first line, lines, panel, piece).
template <class Sink>
inline void bf16_spmm(const Bf16Side& side, const uint16_t* values, const float* bias, const uint16_t* x,
                      const Panels& panels, Sink sink) {
  bf16_spmm_groups(
      side, values, bias, x, panels, Groups(side.line_tiles(), side.lines(), panels.count),
      [&](int64_t, int64_t lines, int) { return scratch(lines * kWide); },
      [&](int, int64_t first, int64_t lines, int panel, float* piece) { sink(first, lines, panel, piece); });
}

// gradients (+)= d x^T at the existing weights, which the rows of the matrix have in the float32 index's order.
inline void bf16_sddmm(const Bf16Side& rows, float* gradients, const uint16_t* x, const uint16_t* d,
                       const Panels& panels, bool afresh) {
  const Groups groups(rows.line_tiles(), rows.lines(), 1);
#pragma omp parallel for schedule(dynamic, 1)
  for (int group = 0; group < groups.count; ++group) {
    const int64_t first_slot = rows.tile(groups.first(group), 0).first_slot;
    const Bf16Tile last = rows.tile(groups.stop(group) - 1, rows.inner_tiles() - 1);
    float* found = scratch(last.first_slot + last.slots - first_slot);
    for (int panel = 0; panel < panels.count; panel += 2)
      for (int inner = 0; inner < rows.inner_tiles(); ++inner)
        for (int tile = groups.first(group); tile < groups.stop(group); ++tile) {
          const char *from[2], *of_result[2];
          for (int at = 0; at < 2; ++at) {
            const int64_t here = std::min(panel + at, panels.count - 1);
            from[at] = reinterpret_cast<const char*>(x + (here * rows.inner() + rows.first_inner(inner)) * kWide);
            of_result[at] = reinterpret_cast<const char*>(d + (here * rows.lines() + rows.first_line(tile)) * kWide);
          }
          const Bf16Tile part = rows.tile(tile, inner);
          float* to = found + part.first_slot - first_slot;
          if (panel + 1 < panels.count)
            sddmm_wide<2>(part, to, from, of_result, panel == 0);
          else
            sddmm_wide<1>(part, to, from, of_result, panel == 0);
        }
    for (int tile = groups.first(group); tile < groups.stop(group); ++tile)
      for (int inner = 0; inner < rows.inner_tiles(); ++inner) {
        const Bf16Tile part = rows.tile(tile, inner);
        scatter_gradients(part, found + part.first_slot - first_slot, gradients, afresh);
      }
  }
}

// The sum of every line over all tokens; those that are not filled must be zero.
inline void bf16_sum_lines(const uint16_t* from, const Panels& panels, int64_t lines, float* sums_of_lines) {
  alignas(64) uint16_t ones[kChunk];
  std::fill(ones, ones + kChunk, rounded(1.f));
  const Chunk one = load_chunk(reinterpret_cast<const char*>(ones));
#pragma omp parallel for schedule(static)
  for (int64_t line = 0; line < lines; ++line) {
    V16 total{};
    for (int panel = 0; panel < panels.count; ++panel)
      for (int chunk = 0; chunk < 2; ++chunk)
        total = add_inner(total, one,
                          reinterpret_cast<const char*>(from + (panel * lines + line) * kWide + chunk * kChunk));
    sums_of_lines[line] = sum(sums_of_halves(total));
  }
}

// Row-major in, row-major out. Each takes as much work memory as it counts over none.

inline int64_t bf16_linear(const Bf16Matrix& matrix, const float* bias, const float* x, int64_t n, float* y,
                           void* work) {
  const Panels panels = wide_panels(n);
  WorkMemory memory(work);
  uint16_t* operands = memory.take<uint16_t>(operand_numbers(panels, matrix.rows.inner()));
  uint16_t* values = memory.take<uint16_t>(matrix.rows.value_slots());
  if (memory.counting()) return memory.floats();
  operands_from_rows(x, matrix.rows.inner(), panels, operands);
  round_values<false>(matrix, values);
  bf16_spmm(matrix.rows, values, bias, operands, panels, RowsSink{y, matrix.rows.lines(), panels});
  return 0;
}

// The backward pass: gradients of x, the values and the bias, each if it is not null.
inline int64_t bf16_linear_backward(const Bf16Matrix& matrix, const float* x, const float* d, int64_t n,
                                    float* x_gradient, float* gradients, float* bias_gradient, void* work) {
  const Panels panels = wide_panels(n);
  const int64_t rows = matrix.rows.lines(), columns = matrix.columns.lines();
  WorkMemory memory(work);
  uint16_t* d_operands = memory.take<uint16_t>(operand_numbers(panels, rows));
  uint16_t* x_operands = memory.take<uint16_t>(operand_numbers(panels, columns));
  uint16_t* values = memory.take<uint16_t>(matrix.columns.value_slots());
  if (memory.counting()) return memory.floats();
  operands_from_rows(d, rows, panels, d_operands);
  if (x_gradient != nullptr) {
    round_values<true>(matrix, values);
    bf16_spmm(matrix.columns, values, nullptr, d_operands, panels, RowsSink{x_gradient, columns, panels});
  }
  if (gradients != nullptr) {
    operands_from_rows(x, columns, panels, x_operands);
    bf16_sddmm(matrix.rows, gradients, x_operands, d_operands, panels, true);
  }
  if (bias_gradient != nullptr) bf16_sum_lines(d_operands, panels, rows, bias_gradient);
  return 0;
}

}  // namespace SELFISH_TARGET
}  // namespace selfish
