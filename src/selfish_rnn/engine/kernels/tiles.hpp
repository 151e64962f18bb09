// The product of one tile with a panel (SpMM).
//
// A panel holds a few columns (tokens) of a matrix of activations: all columns of one feature side by side, a line,
// feature after feature. A narrow panel, of the sequences of one step, may lie in two pieces, so that no line crosses a
// cache line: 20 columns are lines of 16 and, apart from them, lines of 4.
#pragma once

#include <algorithm>

#include "packed.hpp"
#include "vectors.hpp"

namespace selfish {
namespace SELFISH_TARGET {

constexpr int kAhead = 3;  // entries whose output line is fetched early; at most kSpareEntries

// Widths a panel can have: one column, or a multiple of eight up to 64.
constexpr int kWidest = 64;
using Widest = VectorOf<SELFISH_WIDEST>::type;

// How the lines of a panel lie: N vectors side by side, and for Rest > 0 so many floats more in another piece.
template <class V_, int N_, int Rest_ = 0>
struct Columns {
  using V = V_;
  using R = typename VectorOf<Rest_ == 8 ? 8 : 4>::type;
  static constexpr int N = N_, kMain = N * kLanes<V>, kRest = Rest_;
  static constexpr bool kSingle = kLanes<V> == 1;
  // A line's offset is computed from its number times this many bytes.
  static constexpr int kShift = kRest == 4 || kMain == 4 ? 4 : 5, kUnit = 1 << kShift;
};

// Both pieces of a panel, from some line on.
template <class Float>
struct Pieces {
  Float *main, *rest;

  template <class C>
  SELFISH_INLINE Pieces line(int64_t number) const {
    return {main + number * C::kMain, rest + number * C::kRest};
  }
};

// The sums of one line.
template <class C>
struct Sums {
  typename C::V main[C::N];
  typename C::R rest;

  SELFISH_INLINE void clear() {
    SELFISH_UNROLL for (int i = 0; i < C::N; ++i) main[i] = typename C::V{};
    if constexpr (C::kRest > 0) rest = typename C::R{};
  }
  SELFISH_INLINE void load_from(Pieces<float> line) {
    SELFISH_UNROLL for (int i = 0; i < C::N; ++i) main[i] = load<typename C::V>(line.main + kLanes<typename C::V> * i);
    if constexpr (C::kRest > 0) rest = load<typename C::R>(line.rest);
  }
  SELFISH_INLINE void store_to(Pieces<float> line) const {
    SELFISH_UNROLL for (int i = 0; i < C::N; ++i) store<typename C::V>(line.main + kLanes<typename C::V> * i, main[i]);
    if constexpr (C::kRest > 0) store<typename C::R>(line.rest, rest);
  }
  SELFISH_INLINE void add(const Sums& other) {
    SELFISH_UNROLL for (int i = 0; i < C::N; ++i) main[i] += other.main[i];
    if constexpr (C::kRest > 0) rest += other.rest;
  }
  SELFISH_INLINE void add_product(typename C::V value, Pieces<const float> x) {
    using V = typename C::V;
    SELFISH_UNROLL for (int i = 0; i < C::N; ++i) main[i] += value * load<V>(x.main + kLanes<V> * i);
    if constexpr (C::kRest > 0) rest += lowest_lanes<typename C::R>(value) * load<typename C::R>(x.rest);
  }
};

template <class C>
SELFISH_INLINE void fetch(Pieces<float> line) {
  SELFISH_UNROLL for (int at = 0; at < C::kMain; at += 16) __builtin_prefetch(line.main + at, 1);
  if constexpr (C::kRest > 0) __builtin_prefetch(line.rest, 1);
}

// Memory that is needed next, fetched a little with every entry: what comes from the outer caches comes during the
// products, and not in their way. Activations of a tile are read in no order that a processor foresees.
class Ahead {
 public:
  Ahead(const float* from, int64_t step) : from_(from), step_(step) {}
  // From here on, in steps of so many cache lines that all is reached within so many entries.
  static Ahead all(const float* from, int64_t floats, int64_t entries) {
    constexpr int64_t kFloats = 16;  // of a cache line
    const int64_t lines = (floats / kFloats + entries / 2) / std::max<int64_t>(entries, 1);
    return {from, std::max<int64_t>(lines, 1) * kFloats};
  }
  SELFISH_INLINE void fetch_some() {
    __builtin_prefetch(from_);
    from_ += step_;
  }

 private:
  const float* from_;
  int64_t step_;
};

// A single column does so little with a weight that the weights, which come from far, cannot come fast enough: what is
// needed some rows later is fetched, beyond the page to which processors confine themselves.
template <class Local>
SELFISH_INLINE void fetch_weights(const Local* local, const float* value, int length) {
  constexpr int kWeightsAhead = 1024;
  for (int at = 0; at < length; at += 16) __builtin_prefetch(value + kWeightsAhead + at);
  __builtin_prefetch(local + kWeightsAhead);
}

// The numbers of a few lines in one register, and where each line lies. A load of a number of its own would take the
// time of a load of activations. Up to seven bytes behind the last number may be read: the index goes on there.
template <class Local>
struct LineNumbers {
  static constexpr int kBits = 8 * sizeof(Local), kCount = 64 / kBits;
  uint64_t numbers;

  SELFISH_INLINE explicit LineNumbers(const Local* local) { std::memcpy(&numbers, local, sizeof numbers); }

  // The number times the unit of C is cut out of the others where it lies. The first one is the lowest on every machine
  // the vectors are for.
  template <class C, int Which>
  SELFISH_INLINE Pieces<const float> line(Pieces<const float> x) const {
    constexpr uint64_t kMask = ((uint64_t{1} << kBits) - 1) << C::kShift;
    uint64_t shifted;
    if constexpr (Which == 0) {
      shifted = numbers << C::kShift;
    } else {
      shifted = numbers >> (Which * kBits - C::kShift);
    }
    const size_t units = shifted & kMask;
    const auto moved = [units](const float* piece, int floats) {
      return reinterpret_cast<const float*>(reinterpret_cast<const char*>(piece) + units * (4 * floats / C::kUnit));
    };
    return {moved(x.main, C::kMain), moved(x.rest, C::kRest)};
  }
};

// Four products, with the lines from First on of their numbers. What limits these loops is how much can be loaded at a
// time. The four values therefore come with one load and are spread in registers.
template <class C, int Sets, int First, class Local>
SELFISH_INLINE void add_four_products(Sums<C>* sum, const float* value, LineNumbers<Local> lines,
                                      Pieces<const float> x) {
  const auto values = load4<typename C::V>(value);
  sum[0].add_product(spread<0>(values), lines.template line<C, First>(x));
  sum[1 % Sets].add_product(spread<1>(values), lines.template line<C, First + 1>(x));
  sum[2 % Sets].add_product(spread<2>(values), lines.template line<C, First + 2>(x));
  sum[3 % Sets].add_product(spread<3>(values), lines.template line<C, First + 3>(x));
}

// The last one, two or three products of a line that had fours before: their values are the last of four, too.
template <class C, int Sets, int Rest, class Local>
SELFISH_INLINE void add_rest_of_products(Sums<C>* sum, const float* value, const Local* local, Pieces<const float> x) {
  const LineNumbers<Local> lines(local);
  const auto values = load4<typename C::V>(value + Rest - 4);
  sum[0].add_product(spread<4 - Rest>(values), lines.template line<C, 0>(x));
  if constexpr (Rest > 1) sum[1 % Sets].add_product(spread<5 - Rest>(values), lines.template line<C, 1>(x));
  if constexpr (Rest > 2) sum[2 % Sets].add_product(spread<6 - Rest>(values), lines.template line<C, 2>(x));
}

// All products of a line; length is 4 * fours + Rest.
template <class C, int Sets, int Rest, class Local>
SELFISH_INLINE void add_products(Sums<C>* sum, int fours, const Local* local, const float* value,
                                 Pieces<const float> x) {
  const auto one_by_one = [&](int count) {
    SELFISH_UNROLL for (int i = 0; i < count; ++i)
      sum[i % Sets].add_product(broadcast<typename C::V>(value[i]), x.template line<C>(local[i]));
  };
  if constexpr (C::kSingle) {
    for (; fours > 0; --fours, local += 4, value += 4) one_by_one(4);
    one_by_one(Rest);
  } else {
    if (fours == 0) return one_by_one(Rest);
    // Eight at a time, where registers are wide enough for that to make the loop shorter and not longer.
    if constexpr (LineNumbers<Local>::kCount == 8 && kLanes<typename C::V> == 16)
      for (; fours >= 2; fours -= 2, local += 8, value += 8) {
        const LineNumbers<Local> lines(local);
        add_four_products<C, Sets, 0>(sum, value, lines, x);
        add_four_products<C, Sets, 4>(sum, value + 4, lines, x);
      }
    for (; fours > 0; --fours, local += 4, value += 4)
      add_four_products<C, Sets, 0>(sum, value, LineNumbers<Local>(local), x);
    if constexpr (Rest > 0) add_rest_of_products<C, Sets, Rest>(sum, value, local, x);
  }
}

// Entries of equal length one after the other; Rest = length % 4 is a constant so that no branch is left. Sets of sums
// hide the time an addition takes where one row has too few vectors for that.
template <class C, int Sets, int Rest, class Local>
SELFISH_INLINE void spmm_run(const Entry<Local>* entry, const Entry<Local>* end, int count, const Local*& local,
                             const float*& value, Pieces<const float> x, Pieces<float> y, Ahead& ahead_) {
  Ahead ahead(ahead_);  // in registers
  for (; entry != end; ++entry) {
    const Pieces<float> line = y.template line<C>(entry->line);
    fetch<C>(y.template line<C>(entry[kAhead].line));
    if constexpr (C::kSingle) fetch_weights(local, value, 4 * count + Rest);
    if constexpr (C::kMain == kWidest) ahead.fetch_some();
    Sums<C> sum[Sets];
    sum[0].load_from(line);
    SELFISH_UNROLL for (int set = 1; set < Sets; ++set) sum[set].clear();
    add_products<C, Sets, Rest>(sum, count, local, value, x);
    local += 4 * count + Rest, value += 4 * count + Rest;
    SELFISH_UNROLL for (int set = 1; set < Sets; ++set) sum[0].add(sum[set]);
    sum[0].store_to(line);
  }
  ahead_ = ahead;
}

// y += W x for one tile; x and y are the panels from the tile's first column and first row on.
template <class C, class Local>
inline void spmm_tile(const TileOf<Local>& tile, const float* values, Pieces<const float> x, Pieces<float> y,
                      Ahead& ahead) {
  constexpr int kVectors = C::N + (C::kRest > 0), kSets = kVectors == 1 ? 4 : kVectors <= 3 ? 2 : 1;
  const Entry<Local>*entry = tile.entries, *end = tile.entries + tile.count;
  const Local* local = tile.local;
  const float* value = values + tile.start;
  while (entry != end) {
    const int length = entry->count_minus_one + 1;
    const Entry<Local>* stop = entry + 1;
    while (stop != end && stop->count_minus_one + 1 == length) ++stop;
    switch (length % 4) {
      case 0: spmm_run<C, kSets, 0>(entry, stop, length / 4, local, value, x, y, ahead); break;
      case 1: spmm_run<C, kSets, 1>(entry, stop, length / 4, local, value, x, y, ahead); break;
      case 2: spmm_run<C, kSets, 2>(entry, stop, length / 4, local, value, x, y, ahead); break;
      default: spmm_run<C, kSets, 3>(entry, stop, length / 4, local, value, x, y, ahead);
    }
    entry = stop;
  }
}

// Calls work with the Columns of panels that lie in one piece.
template <class Work>
inline void with_columns(int width, Work work) {
  switch (width) {
    case 1: return work(Columns<float, 1>{});
    case 4: return work(Columns<V4, 1>{});
    case 8: return work(Columns<V8, 1>{});
    case 16: return work(Columns<Widest, 16 / kLanes<Widest>>{});
    case 24: return work(Columns<V8, 3>{});
    case 32: return work(Columns<Widest, 32 / kLanes<Widest>>{});
    case 40: return work(Columns<V8, 5>{});
    case 48: return work(Columns<Widest, 48 / kLanes<Widest>>{});
    case 56: return work(Columns<V8, 7>{});
    default: return work(Columns<Widest, 64 / kLanes<Widest>>{});
  }
}

// The same for panels with a piece of their own for the rest, see StepPanels in window.hpp.
template <int Rest, class Work>
inline void with_rest(int main, Work work) {
  switch (main) {
    case 16: return work(Columns<Widest, 16 / kLanes<Widest>, Rest>{});
    case 32: return work(Columns<Widest, 32 / kLanes<Widest>, Rest>{});
    default: return work(Columns<Widest, 48 / kLanes<Widest>, Rest>{});
  }
}

inline void spmm(int main, int rest, const Tile& tile, const float* values, Pieces<const float> x, Pieces<float> y,
                 Ahead& ahead) {
  with_local(tile.large, [&](auto local) {
    const auto tile_here = tile.of<decltype(local)>();
    const auto work = [&](auto columns) { spmm_tile<decltype(columns)>(tile_here, values, x, y, ahead); };
    switch (rest) {
      case 0: return with_columns(main, work);
      case 4: return with_rest<4>(main, work);
      default: return with_rest<8>(main, work);
    }
  });
}

inline void spmm(int width, const Tile& tile, const float* values, const float* x, float* y, Ahead& ahead) {
  spmm(width, 0, tile, values, {x, x}, {y, y}, ahead);
}

inline void spmm(int width, const Tile& tile, const float* values, const float* x, float* y) {
  Ahead none(x, 0);
  spmm(width, tile, values, x, y, none);
}

}  // namespace SELFISH_TARGET
}  // namespace selfish
