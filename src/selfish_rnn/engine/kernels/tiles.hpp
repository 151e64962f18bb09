// The two loops everything rests on: the product of one tile with a panel (SpMM), and the gradient of one tile's
// weights, a product of two panels at the positions of the weights (SDDMM).
//
// A panel holds a few columns (tokens) of a matrix of activations: width floats for each feature, feature after
// feature.
#pragma once

#include <algorithm>

#include "packed.hpp"
#include "vectors.hpp"

namespace selfish {
namespace SELFISH_TARGET {

constexpr int kAhead = 3;  // entries whose output row is fetched early; at most kSpareEntries

// Widths a panel can have: one column, or a multiple of eight up to 64.
constexpr int kWidest = 64;
using Widest = VectorOf<SELFISH_WIDEST>::type;

template <int Width>
SELFISH_INLINE void fetch(const float* row) {
  SELFISH_UNROLL for (int at = 0; at < Width; at += 16) __builtin_prefetch(row + at, 1);
}

// A single column does so little with a weight that the weights, which come from far, cannot come fast enough: what is
// needed some rows later is fetched, beyond the page to which processors confine themselves.
template <class Local>
SELFISH_INLINE void fetch_weights(const Local* local, const float* value, int length) {
  constexpr int kWeightsAhead = 1024;
  for (int at = 0; at < length; at += 16) __builtin_prefetch(value + kWeightsAhead + at);
  __builtin_prefetch(local + kWeightsAhead);
}

template <class V, int N>
SELFISH_INLINE void add_product(V* sum, V value, const float* x) {
  SELFISH_UNROLL for (int i = 0; i < N; ++i) sum[i] += value * load<V>(x + kLanes<V> * i);
}

// Four products. What limits these loops is how much can be loaded at a time. The four values therefore come with one
// load and are spread in registers, and so do their four columns.
template <class V, int N, int Sets, class Local>
SELFISH_INLINE void add_four_products(V (*sum)[N], const float* value, const Local* local, const float* x) {
  constexpr int kWidth = N * kLanes<V>;
  if constexpr (kLanes<V> == 1) {
    SELFISH_UNROLL for (int i = 0; i < 4; ++i) add_product<V, N>(sum[i % Sets], value[i], x + local[i] * kWidth);
  } else {
    using Four = std::conditional_t<sizeof(Local) == 1, uint32_t, uint64_t>;
    Four columns;
    std::memcpy(&columns, local, sizeof columns);
    const V values = load4<V>(value);
    // Eight floats times the column, cut out of the four where it lies. The first one is the lowest on every machine
    // the vectors are for.
    constexpr int kBits = 8 * sizeof(Local), kShift = 5;
    constexpr Four kMask = ((Four{1} << kBits) - 1) << kShift;
    const auto row = [x](Four eights) {
      return reinterpret_cast<const float*>(reinterpret_cast<const char*>(x) +
                                            static_cast<size_t>(eights & kMask) * (kWidth / 8));
    };
    add_product<V, N>(sum[0], spread<0>(values), row(columns << kShift));
    add_product<V, N>(sum[1 % Sets], spread<1>(values), row(columns >> (kBits - kShift)));
    add_product<V, N>(sum[2 % Sets], spread<2>(values), row(columns >> (2 * kBits - kShift)));
    add_product<V, N>(sum[3 % Sets], spread<3>(values), row(columns >> (3 * kBits - kShift)));
  }
}

// Entries of equal length one after the other; Rest = length % 4 is a constant so that no branch is left. Sets of sums
// hide the time an addition takes where one row has too few vectors for that.
template <class V, int N, int Sets, int Rest, class Local>
SELFISH_INLINE void spmm_run(const Entry<Local>* entry, const Entry<Local>* end, int count, const Local*& local,
                             const float*& value, const float* x, float* y) {
  constexpr int kWidth = N * kLanes<V>;
  for (; entry != end; ++entry) {
    float* row = y + entry->line * kWidth;
    fetch<kWidth>(y + entry[kAhead].line * kWidth);
    if constexpr (kWidth == 1) fetch_weights(local, value, 4 * count + Rest);
    V sum[Sets][N];
    SELFISH_UNROLL for (int i = 0; i < N; ++i) sum[0][i] = load<V>(row + kLanes<V> * i);
    SELFISH_UNROLL for (int set = 1; set < Sets; ++set)
      SELFISH_UNROLL for (int i = 0; i < N; ++i) sum[set][i] = V{};
    for (int four = 0; four < count; ++four, local += 4, value += 4)
      add_four_products<V, N, Sets>(sum, value, local, x);
    SELFISH_UNROLL for (int i = 0; i < Rest; ++i)
      add_product<V, N>(sum[i % Sets], broadcast<V>(value[i]), x + local[i] * kWidth);
    local += Rest, value += Rest;
    SELFISH_UNROLL for (int i = 0; i < N; ++i) {
      V total = sum[0][i];
      SELFISH_UNROLL for (int set = 1; set < Sets; ++set) total += sum[set][i];
      store<V>(row + kLanes<V> * i, total);
    }
  }
}

// y += W x for one tile; x and y point to the tile's first column and first row in their panels.
template <class V, int N, class Local>
inline void spmm_tile(const TileOf<Local>& tile, const float* values, const float* x, float* y) {
  constexpr int kSets = N == 1 ? 4 : N <= 3 ? 2 : 1;
  const Entry<Local>*entry = tile.entries, *end = tile.entries + tile.count;
  const Local* local = tile.local;
  const float* value = values + tile.start;
  while (entry != end) {
    const int length = entry->count_minus_one + 1;
    const Entry<Local>* stop = entry + 1;
    while (stop != end && stop->count_minus_one + 1 == length) ++stop;
    switch (length % 4) {
      case 0: spmm_run<V, N, kSets, 0>(entry, stop, length / 4, local, value, x, y); break;
      case 1: spmm_run<V, N, kSets, 1>(entry, stop, length / 4, local, value, x, y); break;
      case 2: spmm_run<V, N, kSets, 2>(entry, stop, length / 4, local, value, x, y); break;
      default: spmm_run<V, N, kSets, 3>(entry, stop, length / 4, local, value, x, y);
    }
    entry = stop;
  }
}

// The widest vectors that a row of a panel is whole numbers of.
template <int N>
using Whole = std::conditional_t<8 * N % kLanes<Widest> == 0, Widest, V8>;

// The inner products of one row of d, which is in registers, with Count rows of x, added to the gradient; with zeros
// for those that are missing to kTogether, unless that would reach beyond the tile's values.
template <class V, int Vectors, int Count>
SELFISH_INLINE void add_inner_products(float* gradient, const float* stop, const uint8_t* local, const float* x,
                                       const V* d) {
  constexpr int kLane = kLanes<V>, kWidth = Vectors * kLane;
  V sum[kTogether<V>] = {};
  const float* row[Count];
  SELFISH_UNROLL for (int i = 0; i < Count; ++i) row[i] = x + local[i] * kWidth;
  SELFISH_UNROLL for (int i = 0; i < Count; ++i) sum[i] = d[0] * load<V>(row[i]);
  SELFISH_UNROLL for (int n = 1; n < Vectors; ++n)
    SELFISH_UNROLL for (int i = 0; i < Count; ++i) sum[i] += d[n] * load<V>(row[i] + kLane * n);
  const auto found = sums_together(sum);
  using Found = std::remove_const_t<decltype(found)>;
  if (Count == kTogether<V> || gradient + kTogether<V> <= stop) {
    store<Found>(gradient, load<Found>(gradient) + found);
  } else {
    for (int i = 0; i < Count; ++i) gradient[i] += found[i];
  }
}

// The same for a number of rows that is at most Most.
template <class V, int Vectors, int Most>
SELFISH_INLINE void add_rest(int count, float* gradient, const float* stop, const uint8_t* local, const float* x,
                             const V* d) {
  if constexpr (Most > 0) {
    if (count == Most) return add_inner_products<V, Vectors, Most>(gradient, stop, local, x, d);
    add_rest<V, Vectors, Most - 1>(count, gradient, stop, local, x, d);
  }
}

// gradient += (d x^T at the weights of one tile); x and d point to the tile's first column and row in their panels.
template <int N>
inline void sddmm_tile(const TileOf<uint8_t>& tile, float* gradients, const float* x, const float* d) {
  using V = Whole<N>;
  constexpr int kWidth = 8 * N, kLane = kLanes<V>, kVectors = kWidth / kLane, kMany = kTogether<V>;
  const uint8_t* local = tile.local;
  float* gradient = gradients + tile.start;
  const float* stop = gradients + tile.stop;
  for (const Entry<uint8_t>*entry = tile.entries, *end = entry + tile.count; entry != end; ++entry) {
    const float* row = d + entry->line * kWidth;
    fetch<kWidth>(d + entry[kAhead].line * kWidth);
    V of_row[kVectors];
    SELFISH_UNROLL for (int n = 0; n < kVectors; ++n) of_row[n] = load<V>(row + kLane * n);
    int left = entry->count_minus_one + 1;
    for (; left >= kMany; left -= kMany, local += kMany, gradient += kMany)
      add_inner_products<V, kVectors, kMany>(gradient, stop, local, x, of_row);
    add_rest<V, kVectors, kMany - 1>(left, gradient, stop, local, x, of_row);
    local += left, gradient += left;
  }
}

// Inner products that wait, each as the lanes of one vector, until as many as a vector has lanes can be summed
// together.
template <class V>
struct Waiting {
  static constexpr int kLane = kLanes<V>, kRoom = 64;
  V products[kRoom];
  int count = 0;

  // Adds the sums to the gradients from here on, and starts anew behind them.
  SELFISH_INLINE void add_to(float*& gradient) {
    int at = 0;
    for (; at + kLane <= count; at += kLane)
      store<V>(gradient + at, load<V>(gradient + at) + sums(products + at));
    if (at < count) {
      for (int more = count; more < at + kLane; ++more) products[more] = V{};
      const V rest = sums(products + at);
      for (int more = at; more < count; ++more) gradient[more] += rest[more - at];
    }
    gradient += count;
    count = 0;
  }
};

// The same for large tiles, whose lines have a few weights each: those of several lines are summed together.
template <int N>
inline void sddmm_tile(const TileOf<uint16_t>& tile, float* gradients, const float* x, const float* d) {
  using V = Whole<N>;
  constexpr int kWidth = 8 * N, kLane = kLanes<V>, kVectors = kWidth / kLane;
  const uint16_t* local = tile.local;
  float* gradient = gradients + tile.start;
  Waiting<V> waiting;
  for (const Entry<uint16_t>*entry = tile.entries, *end = entry + tile.count; entry != end; ++entry) {
    const float* row = d + entry->line * kWidth;
    fetch<kWidth>(d + entry[kAhead].line * kWidth);
    V of_row[kVectors];
    SELFISH_UNROLL for (int n = 0; n < kVectors; ++n) of_row[n] = load<V>(row + kLane * n);
    for (int left = entry->count_minus_one + 1; left > 0;) {
      const int taken = std::min(left, Waiting<V>::kRoom - waiting.count);
      V* product = waiting.products + waiting.count;
      for (const V* stop = product + taken; product != stop; ++product) {
        const float* column = x + *local++ * kWidth;
        V total = of_row[0] * load<V>(column);
        SELFISH_UNROLL for (int n = 1; n < kVectors; ++n) total += of_row[n] * load<V>(column + kLane * n);
        *product = total;
      }
      left -= taken;
      if ((waiting.count += taken) == Waiting<V>::kRoom) waiting.add_to(gradient);
    }
  }
  waiting.add_to(gradient);
}

// sddmm_tile for a single column.
template <class Local>
inline void sddmm_tile_single(const TileOf<Local>& tile, float* gradients, const float* x, const float* d) {
  const Local* local = tile.local;
  float* gradient = gradients + tile.start;
  for (int entry = 0; entry < tile.count; ++entry)
    for (int left = tile.entries[entry].count_minus_one + 1; left > 0; --left)
      *gradient++ += d[tile.entries[entry].line] * x[*local++];
}

template <class Local>
inline void spmm_of(int width, const TileOf<Local>& tile, const float* values, const float* x, float* y) {
  switch (width) {
    case 1: spmm_tile<float, 1>(tile, values, x, y); break;
    case 8: spmm_tile<V8, 1>(tile, values, x, y); break;
    case 16: spmm_tile<V8, 2>(tile, values, x, y); break;
    case 24: spmm_tile<V8, 3>(tile, values, x, y); break;
    case 32: spmm_tile<V8, 4>(tile, values, x, y); break;
    case 40: spmm_tile<V8, 5>(tile, values, x, y); break;
    case 48: spmm_tile<V8, 6>(tile, values, x, y); break;
    case 56: spmm_tile<V8, 7>(tile, values, x, y); break;
    default: spmm_tile<Widest, kWidest / kLanes<Widest>>(tile, values, x, y);
  }
}

template <class Local>
inline void sddmm_of(int width, const TileOf<Local>& tile, float* gradients, const float* x, const float* d) {
  switch (width) {
    case 1: sddmm_tile_single(tile, gradients, x, d); break;
    case 8: sddmm_tile<1>(tile, gradients, x, d); break;
    case 16: sddmm_tile<2>(tile, gradients, x, d); break;
    case 24: sddmm_tile<3>(tile, gradients, x, d); break;
    case 32: sddmm_tile<4>(tile, gradients, x, d); break;
    case 40: sddmm_tile<5>(tile, gradients, x, d); break;
    case 48: sddmm_tile<6>(tile, gradients, x, d); break;
    case 56: sddmm_tile<7>(tile, gradients, x, d); break;
    default: sddmm_tile<8>(tile, gradients, x, d);
  }
}

inline void spmm(int width, const Tile& tile, const float* values, const float* x, float* y) {
  with_local(tile.large, [&](auto local) { spmm_of(width, tile.of<decltype(local)>(), values, x, y); });
}

inline void sddmm(int width, const Tile& tile, float* gradients, const float* x, const float* d) {
  with_local(tile.large, [&](auto local) { sddmm_of(width, tile.of<decltype(local)>(), gradients, x, d); });
}

}  // namespace SELFISH_TARGET
}  // namespace selfish
