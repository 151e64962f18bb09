// Products of a packed matrix with many columns at once, over all tiles and threads.
#pragma once

#include <algorithm>

#include "gradients.hpp"
#include "tiles.hpp"

namespace selfish {
namespace SELFISH_TARGET {

// How a number of columns (tokens) is cut into panels: as few as possible, all of one width.
struct Panels {
  int64_t columns;
  int count, width;

  explicit Panels(int64_t columns_) : columns(columns_) {
    count = static_cast<int>((columns + kWidest - 1) / kWidest);
    width = columns == 1 ? 1 : static_cast<int>(((columns + count - 1) / count + 7) / 8 * 8);
  }
  int64_t first(int panel) const { return static_cast<int64_t>(panel) * width; }
  int filled(int panel) const { return static_cast<int>(std::min<int64_t>(width, columns - first(panel))); }
  int64_t floats(int64_t features) const { return count * features * width; }
};

// Eight columns of a line, or the four of a panel that has no more.
SELFISH_INLINE V8 load_columns(const float* from, int width) {
  if (width >= 8) return load<V8>(from);
  const V4 four = load<V4>(from);
  return __builtin_shufflevector(four, V4{}, 0, 1, 2, 3, 4, 5, 6, 7);
}

SELFISH_INLINE void store_columns(float* to, V8 vector, int width) {
  if (width >= 8) {
    store<V8>(to, vector);
  } else {
    store<V4>(to, lowest_lanes<V4>(vector));
  }
}

// lines x width floats to width (the filled ones) rows, each of stride floats; eight by eight in registers.
inline void to_rows(const float* panel, int width, int filled, int64_t lines, float* rows, int64_t stride) {
  const int64_t whole = width == 1 ? 0 : lines / 8 * 8;
  for (int64_t line = 0; line < whole; line += 8)
    for (int column = 0; column < filled; column += 8) {
      V8 block[8];
  SELFISH_UNROLL for (int at = 0; at < 8; ++at)
        block[at] = load_columns(panel + (line + at) * width + column, width);
      transpose(block);
      float* to = rows + column * stride + line;
      if (column + 8 <= filled) {
        SELFISH_UNROLL for (int at = 0; at < 8; ++at) store<V8>(to + at * stride, block[at]);
      } else if (column + 4 == filled) {
        SELFISH_UNROLL for (int at = 0; at < 4; ++at) store<V8>(to + at * stride, block[at]);
      } else {
        for (int at = 0; at < filled - column; ++at) store<V8>(to + at * stride, block[at]);
      }
    }
  for (int64_t line = whole; line < lines; ++line)
    for (int column = 0; column < filled; ++column) rows[column * stride + line] = panel[line * width + column];
}

// The inverse of to_rows, with zeros in the columns that are not filled; with Add, added to what the panel has.
template <bool Add = false>
inline void from_rows(const float* rows, int64_t stride, float* panel, int width, int filled, int64_t lines) {
  const int64_t whole = width == 1 ? 0 : lines / 8 * 8;
  for (int64_t line = 0; line < whole; line += 8)
    for (int column = 0; column < width; column += 8) {
      V8 block[8];
      const float* from = rows + column * stride + line;
      if (column + 8 <= filled) {
        SELFISH_UNROLL for (int at = 0; at < 8; ++at) block[at] = load<V8>(from + at * stride);
      } else if (column + 4 == filled) {
        SELFISH_UNROLL for (int at = 0; at < 8; ++at) block[at] = at < 4 ? load<V8>(from + at * stride) : V8{};
      } else {
        for (int at = 0; at < 8; ++at) block[at] = column + at < filled ? load<V8>(from + at * stride) : V8{};
      }
      transpose(block);
      SELFISH_UNROLL for (int at = 0; at < 8; ++at) {
        float* to = panel + (line + at) * width + column;
        store_columns(to, Add ? load_columns(to, width) + block[at] : block[at], width);
      }
    }
  for (int64_t line = whole; line < lines; ++line)
    for (int column = 0; column < width; ++column) {
      const float value = column < filled ? rows[column * stride + line] : 0.f;
      float& to = panel[line * width + column];
      to = Add ? to + value : value;
    }
}

inline void all_from_rows(const float* rows, int64_t features, const Panels& panels, float* to) {
  constexpr int64_t kLines = 128;
  const int64_t pieces = (features + kLines - 1) / kLines;
#pragma omp parallel for collapse(2) schedule(static)
  for (int panel = 0; panel < panels.count; ++panel)
    for (int64_t piece = 0; piece < pieces; ++piece) {
      const int64_t first = piece * kLines, lines = std::min(kLines, features - first);
      from_rows(rows + panels.first(panel) * features + first, features,
                to + (panel * features + first) * panels.width, panels.width, panels.filled(panel), lines);
    }
}

// Runs of tiles that one thread takes on together: the piece of x that they share is fetched once.
struct Groups {
  int tiles, size, count;
  Groups(int tiles_, int64_t lines, int panels) : tiles(tiles_) {
    constexpr int64_t kLines = 768;  // of the result, which should stay in the second cache
    size = static_cast<int>(std::max<int64_t>(1, kLines * tiles / std::max<int64_t>(lines, 1)));
    const int tasks_wanted = 4 * omp_get_max_threads();
    while (size > 1 && (tiles + size - 1) / size * panels < tasks_wanted) size = (size + 1) / 2;
    count = (tiles + size - 1) / size;
  }
  int first(int group) const { return group * size; }
  int stop(int group) const { return std::min(tiles, (group + 1) * size); }
};

// Whether panels of so many features are too large to stay in the second cache, so that they are fetched ahead.
inline bool come_from_afar(const Panels& panels, int64_t features) {
  constexpr int64_t kSecondCache = 1 << 18;  // floats
  return panels.floats(features) > kSecondCache;
}

inline void fill_lines(float* panel, int width, int64_t lines, const float* bias) {
  if (bias == nullptr) {
    std::fill(panel, panel + lines * width, 0.f);
  } else {
    for (int64_t line = 0; line < lines; ++line)
      std::fill(panel + line * width, panel + (line + 1) * width, bias[line]);
  }
}

// A matrix seen from one of its sides: its rows, or its columns if it is transposed.
template <bool Transposed>
struct Side {
  const Packed& packed;

  int tiles() const { return Transposed ? packed.column_tiles() : packed.row_tiles(); }
  int64_t first(int tile) const { return Transposed ? packed.first_column(tile) : packed.first_row(tile); }
  int64_t lines() const { return Transposed ? packed.columns() : packed.rows(); }
  Tile tile(int along, int across) const {
    return Transposed ? packed.tile_t(across, along) : packed.tile(along, across);
  }
};

// W x (or W^T x, the values in transposed order) for all panels. Each piece of the result is made where
// place(first line, lines, panel) says, and goes to sink(group, first line, lines, panel, piece) while it is in the
// cache.
template <bool Transposed, class Place, class Sink>
inline void spmm_groups(const Packed& packed, const float* values, const float* bias, const float* x,
                            const Panels& panels, const Groups& groups, Place place, Sink sink) {
  const Side<Transposed> out{packed};
  const Side<!Transposed> in{packed};
  const bool far = come_from_afar(panels, in.lines());
#pragma omp parallel for collapse(2) schedule(dynamic, 1)
  for (int group = 0; group < groups.count; ++group)
    for (int panel = 0; panel < panels.count; ++panel) {
      const int64_t first = out.first(groups.first(group)), lines = out.first(groups.stop(group)) - first;
      float* piece = place(first, lines, panel);
      fill_lines(piece, panels.width, lines, bias == nullptr ? nullptr : bias + first);
      for (int across = 0; across < in.tiles(); ++across) {
        const auto start = [&](int tile) { return x + (panel * in.lines() + in.first(tile)) * panels.width; };
        // Meanwhile the activations of the next tiles are fetched.
        int64_t entries = 0;
        for (int along = groups.first(group); along < groups.stop(group); ++along)
          entries += out.tile(along, across).count;
        Ahead ahead(start(across), 0);
        if (far && across + 1 < in.tiles()) ahead = Ahead::all(start(across + 1), start(across + 2) - start(across + 1), entries);
        for (int along = groups.first(group); along < groups.stop(group); ++along)
          spmm(panels.width, out.tile(along, across), values, start(across),
               piece + (out.first(along) - first) * panels.width, ahead);
      }
      sink(group, first, lines, panel, piece);
    }
}

// spmm_groups with pieces in memory of the threads, for a sink(first line, lines, panel, piece).
template <bool Transposed, class Sink>
inline void spmm_panels(const Packed& packed, const float* values, const float* bias, const float* x,
                            const Panels& panels, Sink sink) {
  const Side<Transposed> out{packed};
  spmm_groups<Transposed>(
      packed, values, bias, x, panels, Groups(out.tiles(), out.lines(), panels.count),
      [&](int64_t, int64_t lines, int) { return scratch(lines * panels.width); },
      [&](int, int64_t first, int64_t lines, int panel, const float* piece) { sink(first, lines, panel, piece); });
}

// gradient (+)= d x^T at the existing weights.
inline void sddmm_panels(const Packed& packed, float* gradients, const float* x, const float* d,
                             const Panels& panels, bool afresh) {
  const Groups groups(packed.row_tiles(), packed.rows(), 1);
  const bool far = come_from_afar(panels, packed.columns());
#pragma omp parallel for schedule(dynamic, 1)
  for (int group = 0; group < groups.count; ++group) {
    const int64_t begin = packed.value_start[groups.first(group) * packed.column_tiles()];
    const int64_t end = packed.value_start[groups.stop(group) * packed.column_tiles()];
    if (afresh) std::fill(gradients + begin, gradients + end, 0.f);
    for (int panel = 0; panel < panels.count; ++panel)
      for (int column_tile = 0; column_tile < packed.column_tiles(); ++column_tile) {
        const auto start = [&](int tile) {
          return x + (panel * packed.columns() + packed.first_column(tile)) * panels.width;
        };
        int64_t entries = 0;
        for (int row_tile = groups.first(group); row_tile < groups.stop(group); ++row_tile)
          entries += packed.tile(row_tile, column_tile).count;
        Ahead ahead(start(column_tile), 0);
        if (far && column_tile + 1 < packed.column_tiles())
          ahead = Ahead::all(start(column_tile + 1), start(column_tile + 2) - start(column_tile + 1), entries);
        for (int row_tile = groups.first(group); row_tile < groups.stop(group); ++row_tile)
          sddmm(panels.width, packed.tile(row_tile, column_tile), gradients, start(column_tile),
                d + (panel * packed.rows() + packed.first_row(row_tile)) * panels.width, ahead);
      }
  }
}

inline void transpose_values(const Packed& packed, const float* values, float* values_t) {
  with_local(packed.large, [&](auto local) {
    const auto* source = packed.sources<decltype(local)>();
#pragma omp parallel for schedule(static)
    for (int tile = 0; tile < packed.tiles(); ++tile) {
      const float* from = values + packed.value_start[tile];
      for (int64_t at = packed.value_start[tile]; at < packed.value_start[tile + 1]; ++at)
        values_t[at] = from[source[at]];
    }
  });
}

// The sum of every line over all columns; those that are not filled must be zero.
inline void sum_lines(const float* from, const Panels& panels, int64_t lines, float* sums_of_lines) {
#pragma omp parallel for schedule(static)
  for (int64_t line = 0; line < lines; ++line) {
    V8 total{};
    float single = 0.f;
    for (int panel = 0; panel < panels.count; ++panel) {
      const float* row = from + (panel * lines + line) * panels.width;
      if (panels.width == 1) single += *row;
      for (int at = 0; at + 8 <= panels.width; at += 8) total += load<V8>(row + at);
    }
    sums_of_lines[line] = sum(total) + single;
  }
}

// Row-major in, row-major out.

struct RowsSink {
  float* rows;
  int64_t stride;
  Panels panels;
  void operator()(int64_t first, int64_t lines, int panel, const float* piece) const {
    to_rows(piece, panels.width, panels.filled(panel), lines, rows + panels.first(panel) * stride + first, stride);
  }
};

// y = x W^T + bias; work: Panels(n).floats(columns), unused for n = 1.
inline void linear(const Packed& packed, const float* values, const float* bias, const float* x, int64_t n, float* y,
                   float* work) {
  const Panels panels(n);
  const float* from = x;
  if (n > 1) {
    all_from_rows(x, packed.columns(), panels, work);
    from = work;
  }
  spmm_panels<false>(packed, values, bias, from, panels, RowsSink{y, packed.rows(), panels});
}

// The backward pass of linear: x_gradient = d W, gradients and bias_gradient, each if it is not null.
// work: Panels(n).floats(rows + columns); values_t: as many as values, only for x_gradient.
inline void linear_backward(const Packed& packed, const float* values, const float* x, const float* d, int64_t n,
                            float* x_gradient, float* gradients, float* bias_gradient, float* values_t, float* work) {
  const Panels panels(n);
  float* d_panels = work;
  float* x_panels = work + panels.floats(packed.rows());
  all_from_rows(d, packed.rows(), panels, d_panels);
  if (x_gradient != nullptr) {
    transpose_values(packed, values, values_t);
    spmm_panels<true>(packed, values_t, nullptr, d_panels, panels, RowsSink{x_gradient, packed.columns(), panels});
  }
  if (gradients != nullptr) {
    all_from_rows(x, packed.columns(), panels, x_panels);
    sddmm_panels(packed, gradients, x_panels, d_panels, panels, true);
  }
  if (bias_gradient != nullptr) sum_lines(d_panels, panels, packed.rows(), bias_gradient);
}

}  // namespace SELFISH_TARGET
}  // namespace selfish
