// Products of an int8 matrix in windows with one to eight vectors of activations.
//
// A vector of activations is x ~ scale * q with whole numbers q from -127 to 127. The sums of a row are whole numbers,
// so they are the same on every processor, for any number of threads and vectors. All processors then do the same
// arithmetic with them: sources that include this are compiled without fused multiplication and addition.
#pragma once

#include <vector>

#include "int8_lanes.hpp"
#include "team.hpp"

namespace selfish {
namespace SELFISH_TARGET {

constexpr int kMostVectors = 8;

// How a matrix is laid out. Of 2 bytes for each weight in windows the last cache of a processor holds about so many,
// and a little more comes from memory in time: with 17 million weights (22 with those of the embedding, which are
// counted) windows were the faster ones, with 20 million (26) bits.
constexpr int64_t kWeightsInCache = 22 << 20;

inline int planes_for(const Int8Weights& weights) {
  const double density =
      static_cast<double>(weights.count) / static_cast<double>(weights.rows) / static_cast<double>(weights.columns);
  const bool large = std::max(weights.together, weights.count) > kWeightsInCache && weights.count >> 32 == 0;
  if (kHasBits && large && density > kDense) return kBits;
  return density > kDense ? 0 : density > kSparse ? kPlanes : kPlanes + 1;
}

inline bool has_planes(int64_t planes) {
  return planes == 0 || planes == kPlanes || planes == kPlanes + 1 || (kHasBits && planes == kBits);
}

// Activations of one vector. What is not finite makes every result NaN; what is smaller than any weight can make count
// is zero.
struct Activations {
  const uint8_t* q;
  float scale;
};

// A scale of zero makes the largest number 127; with a fixed scale larger numbers saturate.
inline Activations quantise(const float* x, int64_t columns, uint8_t* to, float fixed = 0.f) {
  typedef uint8_t Bytes __attribute__((vector_size(8)));
  constexpr float kLargest = 3.4e38f, kSmallest = 1e-30f;
  const V8 largest = broadcast<V8>(kLargest);
  V8 most{};
  I8 wrong{};
  for (int64_t at = 0; at < columns; at += 8) {
    const V8 here = load_some(x + at, columns - at), magnitude = here < 0.f ? -here : here;
    wrong |= ~(magnitude <= largest);
    most = max(magnitude, most);
  }
  float top = 0;
  bool finite = true;
  for (int lane = 0; lane < 8; ++lane) top = most[lane] > top ? most[lane] : top, finite &= wrong[lane] == 0;
  const bool zero = !finite || (fixed == 0.f && top < kSmallest);
  const float inverse = zero ? 0.f : fixed > 0.f ? 1.f / fixed : 127.f / top;
  const V8 limit = broadcast<V8>(127.f), shift = broadcast<V8>(12582912.f);  // 1.5 * 2^23: adding it rounds to a whole
                                                                             // number, in the lowest bits
  for (int64_t at = 0; at < columns; at += 8) {
    V8 here = (zero ? V8{} : load_some(x + at, columns - at)) * inverse;
    here = here > limit ? limit : here < -limit ? -limit : here;
    const I8 whole = (I8)(here + shift) - 0x4b400000 + kOffset;
    const Bytes bytes = __builtin_convertvector(whole, Bytes);
    std::memcpy(to + at, &bytes, sizeof bytes);
  }
  const float scale = fixed > 0.f ? fixed : zero ? 0.f : top / 127.f;
  return {to, finite ? scale : static_cast<float>(NAN)};
}

// Adds up one group for N vectors.
template <int Planes, int N, int Sets>
SELFISH_INLINE void add_group(const Windows& windows, int64_t group, const Activations* x, Sums (&sum)[Sets][N]) {
  constexpr int kWords = 1 + 2 * Planes * kHeight / 8, kBytes = 12 * kHeight;
  const uint8_t* data = windows.data + windows.first[group] * static_cast<int64_t>(kBytes);
  const uint8_t* end = windows.data + windows.first[group + 1] * static_cast<int64_t>(kBytes);
  const uint32_t* head = windows.head + windows.first[group] * static_cast<int64_t>(kWords);
  for (; data != end; data += kBytes, head += kWords) {
    // clang-format off
    if constexpr (kBytesAhead > 0)
      SELFISH_UNROLL for (int at = 0; at < kBytes; at += 64) __builtin_prefetch(data + kBytesAhead + at);
    // clang-format on
    SELFISH_UNROLL for (int step = 0; step < 2; ++step) {
      const Codes<Planes> codes(data, head, step);
      const Weights weights(data + 4 * kHeight * (1 + step));
      const uint32_t base = step ? head[0] >> 16 : head[0] & 0xffff;
      SELFISH_UNROLL for (int n = 0; n < N; ++n) {
        Sums& here = sum[step % Sets][n];
        here = weights.add(here, codes.look_up(x[n].q + base));
      }
    }
  }
}

#ifdef SELFISH_BITS
template <int N, int Sets>
SELFISH_INLINE void add_bits(const Windows& windows, int64_t group, const Activations* x, Sums (&sum)[Sets][N]) {
  const uint8_t* data = windows.data + windows.first[group];
  const int64_t steps = bit_steps(windows.columns());
  const uint32_t* head = windows.head + 2 * group * steps;
  for (int64_t at = 0; at < steps; at += 2, head += 4) {
    SELFISH_UNROLL for (int step = 0; step < 2; ++step) {
      uint64_t bits;
      std::memcpy(&bits, head + 2 * step, sizeof bits);
      const Weights weights(data, bits);
      data += __builtin_popcountll(bits);
      SELFISH_UNROLL for (int n = 0; n < N; ++n) {
        Sums& here = sum[step % Sets][n];
        here = weights.add(here, four(x[n].q + 4 * (at + step)));
      }
    }
  }
}
#endif

// Calls give(n, lane) for the first `wanted` of N vectors.
template <int N, class Give>
SELFISH_INLINE void scatter(int64_t lanes, int wanted, Give give) {
  for (int64_t lane = 0; lane < lanes; ++lane) {
    if constexpr (N == 1)
      give(0, lane);
    else
      for (int n = 0; n < wanted; ++n) give(n, lane);
  }
}

// For N vectors, of which the first `wanted` are.
template <int Planes, int N>
inline void multiply_groups(const Windows& windows, const Activations* x, int wanted, const float* bias, float* y,
                            Part groups) {
  constexpr int kSets = N <= 4 ? 2 : 1;
  for (int64_t group = groups.begin; group < groups.end; ++group) {
    Sums sum[kSets][N];
    SELFISH_UNROLL for (int at = 0; at < kSets * N; ++at) sum[at / N][at % N] = none();
    if constexpr (Planes == kBits)
      add_bits(windows, group, x, sum);
    else
      add_group<Planes>(windows, group, x, sum);
    const int32_t* row = windows.row + kHeight * group;
    const int64_t lanes = std::min<int64_t>(kHeight, windows.rows() - kHeight * group);
    float out[N][kHeight];
    SELFISH_UNROLL for (int n = 0; n < N; ++n) {
      int32_t whole[kHeight];
      put(whole, kSets == 2 ? both(sum[0][n], sum[1 % kSets][n]) : sum[0][n]);
      SELFISH_UNROLL for (int lane = 0; lane < kHeight; lane += 8) {
        I8 total, correction;
        std::memcpy(&total, whole + lane, sizeof total);
        std::memcpy(&correction, windows.correction + kHeight * group + lane, sizeof correction);
        if (kOffset) total -= correction;
        const V8 scale = load<V8>(windows.scale + kHeight * group + lane) * x[n].scale;
        store<V8>(out[n] + lane, __builtin_convertvector(total, V8) * scale);
      }
    }
    if (bias == nullptr)
      scatter<N>(lanes, wanted, [&](int n, int64_t lane) { y[n * windows.rows() + row[lane]] = out[n][lane]; });
    else
      scatter<N>(lanes, wanted,
                 [&](int n, int64_t lane) { y[n * windows.rows() + row[lane]] = out[n][lane] + bias[row[lane]]; });
  }
}

template <int Planes>
inline void multiply_groups(int n, const Windows& windows, const Activations* x, const float* bias, float* y,
                            Part groups) {
  if (n == 1) return multiply_groups<Planes, 1>(windows, x, n, bias, y, groups);
  if (n == 2) return multiply_groups<Planes, 2>(windows, x, n, bias, y, groups);
  if (n <= 4) return multiply_groups<Planes, 4>(windows, x, n, bias, y, groups);
  return multiply_groups<Planes, 8>(windows, x, n, bias, y, groups);
}

// The groups of one thread: threads share the weights evenly.
inline Part groups_of(const Windows& windows, const Team& team) {
  const auto bound = [&](int64_t thread) {
    const uint32_t* end = windows.first + windows.groups();
    return std::lower_bound(windows.first, end, windows.header->pairs * thread / team.size) - windows.first;
  };
  return {bound(team.thread), team.thread + 1 == team.size ? windows.groups() : bound(team.thread + 1)};
}

// Bytes that one vector of activations takes.
inline int64_t activation_bytes(int64_t columns) { return (columns + 7) / 8 * 8 + kActivationSlack; }

// The share of one thread of y (n x rows) = x (n x columns) W^T + bias. Every thread quantises for itself, in memory of
// its own for min(n, 8) vectors: that is cheaper than to wait for each other.
inline void multiply(const Windows& windows, const float* x, int64_t n, const float* bias, float* y, const Team& team,
                     uint8_t* memory, float fixed = 0.f) {
  const int64_t columns = windows.columns(), stride = activation_bytes(columns);
  const Part groups = groups_of(windows, team);
  for (int64_t from = 0; from < n; from += kMostVectors) {
    const int here = static_cast<int>(std::min<int64_t>(kMostVectors, n - from));
    Activations vectors[kMostVectors] = {};
    for (int at = 0; at < here; ++at)
      vectors[at] = quantise(x + (from + at) * columns, columns, memory + at * stride, fixed);
    float* to = y + from * windows.rows();
    for (int at = here; at < kMostVectors; ++at) vectors[at] = vectors[0];
    switch (windows.planes()) {
      case 0: multiply_groups<0>(here, windows, vectors, bias, to, groups); break;
      case kPlanes: multiply_groups<kPlanes>(here, windows, vectors, bias, to, groups); break;
      case kPlanes + 1: multiply_groups<kPlanes + 1>(here, windows, vectors, bias, to, groups); break;
      default: multiply_groups<kHasBits ? kBits : 0>(here, windows, vectors, bias, to, groups);
    }
  }
}

// The same in memory of the calling thread, for batches.
inline void multiply(const Windows& windows, const float* x, int64_t n, const float* bias, float* y, const Team& team) {
  static thread_local std::vector<uint8_t> memory;
  const int64_t needed = std::min<int64_t>(n, kMostVectors) * activation_bytes(windows.columns());
  if (static_cast<int64_t>(memory.size()) < needed) memory.resize(needed);
  multiply(windows, x, n, bias, y, team, memory.data());
}

}  // namespace SELFISH_TARGET
}  // namespace selfish
