// Rows of a packed matrix by number: the embedding of tokens, and its gradient.
#pragma once

#include <vector>

#include "products.hpp"

namespace selfish {
namespace SELFISH_TARGET {

// For each row tile its tokens: bounds (row_tiles + 1) into places, which are token numbers sorted by row tile.
struct TokensByTile {
  std::vector<int64_t> bounds, places;

  TokensByTile(const Packed& packed, const int64_t* tokens, int64_t n) : bounds(packed.row_tiles() + 1), places(n) {
    std::vector<int> tile_of(n);
    for (int64_t at = 0; at < n; ++at) {
      const int32_t* end = packed.row_bounds + packed.row_tiles() + 1;
      tile_of[at] = static_cast<int>(std::upper_bound(packed.row_bounds, end, tokens[at]) - packed.row_bounds) - 1;
      ++bounds[tile_of[at] + 1];
    }
    for (int tile = 0; tile < packed.row_tiles(); ++tile) bounds[tile + 1] += bounds[tile];
    std::vector<int64_t> next(bounds.begin(), bounds.end() - 1);
    for (int64_t at = 0; at < n; ++at) places[next[tile_of[at]]++] = at;
  }
};

// Calls visit(token place, tile, first weight, weights, column tile) for every wanted row of a tile.
template <class Local, class Visit>
inline void each_wanted_row(const Packed& packed, const TokensByTile& wanted, const int64_t* tokens, Visit visit) {
#pragma omp parallel for schedule(dynamic, 1)
  for (int row_tile = 0; row_tile < packed.row_tiles(); ++row_tile) {
    if (wanted.bounds[row_tile] == wanted.bounds[row_tile + 1]) continue;
    const int64_t height = packed.first_row(row_tile + 1) - packed.first_row(row_tile);
    std::vector<int64_t> start(height);
    std::vector<int> count(height);
    for (int column_tile = 0; column_tile < packed.column_tiles(); ++column_tile) {
      const auto tile = packed.tile(row_tile, column_tile).of<Local>();
      std::fill(count.begin(), count.end(), 0);
      int64_t at = 0;
      for (int entry = 0; entry < tile.count; ++entry) {
        start[tile.entries[entry].line] = at;
        at += count[tile.entries[entry].line] = tile.entries[entry].count_minus_one + 1;
      }
      for (int64_t rank = wanted.bounds[row_tile]; rank < wanted.bounds[row_tile + 1]; ++rank) {
        const int64_t place = wanted.places[rank], line = tokens[place] - packed.first_row(row_tile);
        visit(place, tile, count[line] ? start[line] : 0, count[line], column_tile);
      }
    }
  }
}

// y[n] = row tokens[n] of W.
inline void lookup(const Packed& packed, const float* values, const int64_t* tokens, int64_t n, float* y) {
  const TokensByTile wanted(packed, tokens, n);
  const auto copy = [&](int64_t place, const auto& tile, int64_t start, int count, int column_tile) {
    float* to = y + place * packed.columns() + packed.first_column(column_tile);
    std::fill(to, y + place * packed.columns() + packed.first_column(column_tile + 1), 0.f);
    const float* value = values + tile.start + start;
    for (int at = 0; at < count; ++at) to[tile.local[start + at]] = value[at];
  };
  with_local(packed.large, [&](auto local) { each_wanted_row<decltype(local)>(packed, wanted, tokens, copy); });
}

// gradients = the sum of d[n] over the tokens of each row, at the existing weights.
inline void lookup_backward(const Packed& packed, const int64_t* tokens, const float* d, int64_t n, float* gradients) {
#pragma omp parallel for schedule(static)
  for (int row_tile = 0; row_tile < packed.row_tiles(); ++row_tile)
    std::fill(gradients + packed.value_start[row_tile * packed.column_tiles()],
              gradients + packed.value_start[(row_tile + 1) * packed.column_tiles()], 0.f);
  const TokensByTile wanted(packed, tokens, n);
  const auto add = [&](int64_t place, const auto& tile, int64_t start, int count, int column_tile) {
    const float* from = d + place * packed.columns() + packed.first_column(column_tile);
    float* gradient = gradients + tile.start + start;
    for (int at = 0; at < count; ++at) gradient[at] += from[tile.local[start + at]];
  };
  with_local(packed.large, [&](auto local) { each_wanted_row<decltype(local)>(packed, wanted, tokens, add); });
}

}  // namespace SELFISH_TARGET
}  // namespace selfish
