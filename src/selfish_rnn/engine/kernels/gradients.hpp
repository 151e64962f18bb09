// Gradients of the weights of one tile: a product of two panels at the positions of the weights (SDDMM).
#pragma once

#include "scratch.hpp"
#include "tiles.hpp"

namespace selfish {
namespace SELFISH_TARGET {

// The widest vectors that a row of a panel is whole numbers of.
template <int N>
using Whole = std::conditional_t<8 * N % kLanes<Widest> == 0, Widest, V8>;

constexpr int kLinesAhead = 8;  // entries whose line of d is fetched early: lines lie in the order of their lengths

template <int Width, class Local>
SELFISH_INLINE void fetch_ahead(const Entry<Local>* entry, const Entry<Local>* end, const float* d) {
  const float* line = d + (end - entry > kLinesAhead ? entry + kLinesAhead : entry)->line * Width;
  SELFISH_UNROLL for (int at = 0; at < Width; at += 16) __builtin_prefetch(line + at);
}

// The inner products of one row of d, which is in registers, with Count rows of x; with zeros for those that are missing
// to kTogether, or to four.
template <class C, int Count>
SELFISH_INLINE void inner_products(float* products, const uint8_t* local, const float* x, const typename C::V* d) {
  using V = typename C::V;
  constexpr int kTree = Count <= 4 ? 4 : kTogether<V>;
  V sum[kTree] = {};
  const LineNumbers<uint8_t> lines(local);
  const auto add = [&](auto which) {
    constexpr int kWhich = decltype(which)::value;
    if constexpr (kWhich < Count) {
      const float* row = lines.template line<C, kWhich>({x, x}).main;
      sum[kWhich] = d[0] * load<V>(row);
      SELFISH_UNROLL for (int n = 1; n < C::N; ++n) sum[kWhich] += d[n] * load<V>(row + kLanes<V> * n);
    }
  };
  add(std::integral_constant<int, 0>{}), add(std::integral_constant<int, 1>{});
  add(std::integral_constant<int, 2>{}), add(std::integral_constant<int, 3>{});
  add(std::integral_constant<int, 4>{}), add(std::integral_constant<int, 5>{});
  add(std::integral_constant<int, 6>{}), add(std::integral_constant<int, 7>{});
  if constexpr (kTree == 4) {
    store<V4>(products, sums_of_four(sum));
  } else {
    store<V8>(products, sums_of_eight(sum));
  }
}

// The same for a number of rows that is less than kTogether.
template <class C>
SELFISH_INLINE void inner_products_of_rest(int count, float* products, const uint8_t* local, const float* x,
                                           const typename C::V* d) {
  switch (count) {
    case 1: return inner_products<C, 1>(products, local, x, d);
    case 2: return inner_products<C, 2>(products, local, x, d);
    case 3: return inner_products<C, 3>(products, local, x, d);
  }
  if constexpr (kTogether<typename C::V> > 4) switch (count) {
      case 4: return inner_products<C, 4>(products, local, x, d);
      case 5: return inner_products<C, 5>(products, local, x, d);
      case 6: return inner_products<C, 6>(products, local, x, d);
      case 7: return inner_products<C, 7>(products, local, x, d);
    }
}

// gradient += (d x^T at the weights of one tile); x and d point to the tile's first column and row in their panels.
//
// The sums of a tile go to memory of their own first. There a line may write zeros where the next one begins; in the
// gradient, the next line would have to wait for what it then reads.
template <int N>
inline void sddmm_tile(const TileOf<uint8_t>& tile, float* gradients, const float* x, const float* d,
                       Ahead& ahead_) {
  Ahead ahead(ahead_);  // in registers
  using V = Whole<N>;
  constexpr int kWidth = 8 * N, kLane = kLanes<V>, kVectors = kWidth / kLane, kMany = kTogether<V>;
  using C = Columns<V, kVectors>;
  const int64_t count = tile.stop - tile.start;
  float* products = scratch(count + kMany);
  const uint8_t* local = tile.local;
  float* product = products;
  for (const Entry<uint8_t>*entry = tile.entries, *end = entry + tile.count; entry != end; ++entry) {
    const float* row = d + entry->line * kWidth;
    fetch_ahead<kWidth>(entry, end, d);
    ahead.fetch_some();
    V of_row[kVectors];
    SELFISH_UNROLL for (int n = 0; n < kVectors; ++n) of_row[n] = load<V>(row + kLane * n);
    int left = entry->count_minus_one + 1;
    for (; left >= kMany; left -= kMany, local += kMany, product += kMany)
      inner_products<C, kMany>(product, local, x, of_row);
    inner_products_of_rest<C>(left, product, local, x, of_row);
    local += left, product += left;
  }
  ahead_ = ahead;
  float* gradient = gradients + tile.start;
  int64_t at = 0;
  for (; at + kLanes<Widest> <= count; at += kLanes<Widest>)
    store<Widest>(gradient + at, load<Widest>(gradient + at) + load<Widest>(products + at));
  for (; at < count; ++at) gradient[at] += products[at];
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
inline void sddmm_tile(const TileOf<uint16_t>& tile, float* gradients, const float* x, const float* d,
                       Ahead& ahead) {
  using V = Whole<N>;
  constexpr int kWidth = 8 * N, kLane = kLanes<V>, kVectors = kWidth / kLane;
  const uint16_t* local = tile.local;
  float* gradient = gradients + tile.start;
  Waiting<V> waiting;
  for (const Entry<uint16_t>*entry = tile.entries, *end = entry + tile.count; entry != end; ++entry) {
    const float* row = d + entry->line * kWidth;
    fetch_ahead<kWidth>(entry, end, d);
    ahead.fetch_some();
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
inline void sddmm_of(int width, const TileOf<Local>& tile, float* gradients, const float* x, const float* d, Ahead& ahead) {
  switch (width) {
    case 1: sddmm_tile_single(tile, gradients, x, d); break;
    case 8: sddmm_tile<1>(tile, gradients, x, d, ahead); break;
    case 16: sddmm_tile<2>(tile, gradients, x, d, ahead); break;
    case 24: sddmm_tile<3>(tile, gradients, x, d, ahead); break;
    case 32: sddmm_tile<4>(tile, gradients, x, d, ahead); break;
    case 40: sddmm_tile<5>(tile, gradients, x, d, ahead); break;
    case 48: sddmm_tile<6>(tile, gradients, x, d, ahead); break;
    case 56: sddmm_tile<7>(tile, gradients, x, d, ahead); break;
    default: sddmm_tile<8>(tile, gradients, x, d, ahead);
  }
}

inline void sddmm(int width, const Tile& tile, float* gradients, const float* x, const float* d, Ahead& ahead) {
  with_local(tile.large, [&](auto local) { sddmm_of(width, tile.of<decltype(local)>(), gradients, x, d, ahead); });
}

}  // namespace SELFISH_TARGET
}  // namespace selfish
