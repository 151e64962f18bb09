// Short vectors of floats and what the kernels do with them. GCC's and Clang's vector types become whatever registers
// the processor that is compiled for has. In a namespace of its own for each such processor: see kernels.hpp.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>

#if defined(__AVX__)
#include <immintrin.h>
#elif defined(__ARM_NEON)
#include <arm_neon.h>
#endif

#define SELFISH_UNROLL _Pragma("GCC unroll 16")
#define SELFISH_INLINE inline __attribute__((always_inline))

namespace selfish {
namespace SELFISH_TARGET {

template <int Lanes>
struct VectorOf {
  typedef float type __attribute__((vector_size(4 * Lanes)));
  typedef float loose __attribute__((vector_size(4 * Lanes), aligned(4), may_alias));
};
using V4 = VectorOf<4>::type;
using V8 = VectorOf<8>::type;
using V16 = VectorOf<16>::type;

template <class V>
constexpr int kLanes = sizeof(V) / sizeof(float);

// Whole numbers in lanes like those of V.
template <class V>
struct IntegersOf {
  typedef int32_t type __attribute__((vector_size(sizeof(V))));
};
template <class V>
using Integers = typename IntegersOf<V>::type;
using I8 = Integers<V8>;

template <class V>
inline V load(const float* from) {
  if constexpr (kLanes<V> == 1) {
    return *from;
  } else {
    return *reinterpret_cast<const typename VectorOf<kLanes<V>>::loose*>(from);
  }
}

template <class V>
inline void store(float* to, V vector) {
  if constexpr (kLanes<V> == 1) {
    *to = vector;
  } else {
    *reinterpret_cast<typename VectorOf<kLanes<V>>::loose*>(to) = vector;
  }
}

template <class V>
inline V broadcast(float number) {
  return number - V{};  // the compiler sees that nothing is subtracted; adding a zero would change a negative one
}

// Load and store for the end of a row, where fewer floats than lanes may be left.
template <class V = V8>
SELFISH_INLINE V load_some(const float* from, int64_t count) {
  if (count >= kLanes<V>) return load<V>(from);
#if defined(__AVX512F__)
  if constexpr (kLanes<V> == 16) return (V)_mm512_maskz_loadu_ps(static_cast<__mmask16>((1u << count) - 1), from);
#endif
  V vector{};
  for (int64_t at = 0; at < count; ++at) vector[at] = from[at];
  return vector;
}

template <class V>
SELFISH_INLINE void store_some(float* to, V vector, int64_t count) {
  if (count >= kLanes<V>) return store<V>(to, vector);
#if defined(__AVX512F__)
  if constexpr (kLanes<V> == 16)
    return _mm512_mask_storeu_ps(to, static_cast<__mmask16>((1u << count) - 1), (__m512)vector);
#endif
  for (int64_t at = 0; at < count; ++at) to[at] = vector[at];
}

// load4 repeats four floats in all lanes (compilers do not find the one instruction for it); spread repeats one of the
// four.
template <class V>
SELFISH_INLINE V load4(const float* from) {
  if constexpr (kLanes<V> == 4) {
    return load<V>(from);
  } else if constexpr (kLanes<V> == 16) {
#if defined(__AVX512F__)
    return (V)_mm512_broadcast_f32x4(_mm_loadu_ps(from));
#else
    static_assert(kLanes<V> < 16, "no vectors of 16 floats on this processor");
#endif
  } else {
#if defined(__AVX__)
    return (V)_mm256_broadcast_ps(reinterpret_cast<const __m128*>(from));
#else
    const V4 four = load<V4>(from);
    return __builtin_shufflevector(four, four, 0, 1, 2, 3, 0, 1, 2, 3);
#endif
  }
}

template <int Which>
SELFISH_INLINE V4 spread(V4 v) {
  return __builtin_shufflevector(v, v, Which, Which, Which, Which);
}

template <int Which>
SELFISH_INLINE V8 spread(V8 v) {
  return __builtin_shufflevector(v, v, Which, Which, Which, Which, 4 + Which, 4 + Which, 4 + Which, 4 + Which);
}

template <int Which>
SELFISH_INLINE V16 spread(V16 v) {
  return __builtin_shufflevector(v, v, Which, Which, Which, Which, 4 + Which, 4 + Which, 4 + Which, 4 + Which,
                                 8 + Which, 8 + Which, 8 + Which, 8 + Which, 12 + Which, 12 + Which, 12 + Which,
                                 12 + Which);
}

// The lowest lanes of a vector.
template <class To, class V>
SELFISH_INLINE To lowest_lanes(V v) {
  if constexpr (kLanes<To> == kLanes<V>) {
    return v;
  } else if constexpr (kLanes<To> == 8) {
    return __builtin_shufflevector(v, v, 0, 1, 2, 3, 4, 5, 6, 7);
  } else {
    return __builtin_shufflevector(v, v, 0, 1, 2, 3);
  }
}

// Sums of the lanes of vectors. A call would send the vectors through memory, so all of it is inlined.
//
// The first two steps: halves adds lanes of two vectors, quarters those of what it gave for two more. In
// every four lanes there are then parts of the sums of the four vectors.
SELFISH_INLINE V8 halves(V8 a, V8 b) {
  return __builtin_shufflevector(a, b, 0, 8, 1, 9, 4, 12, 5, 13) +
         __builtin_shufflevector(a, b, 2, 10, 3, 11, 6, 14, 7, 15);
}

SELFISH_INLINE V8 quarters(V8 a, V8 b) {
  return __builtin_shufflevector(a, b, 0, 1, 8, 9, 4, 5, 12, 13) +
         __builtin_shufflevector(a, b, 2, 3, 10, 11, 6, 7, 14, 15);
}

SELFISH_INLINE V16 halves(V16 a, V16 b) {
  return __builtin_shufflevector(a, b, 0, 16, 1, 17, 4, 20, 5, 21, 8, 24, 9, 25, 12, 28, 13, 29) +
         __builtin_shufflevector(a, b, 2, 18, 3, 19, 6, 22, 7, 23, 10, 26, 11, 27, 14, 30, 15, 31);
}

SELFISH_INLINE V16 quarters(V16 a, V16 b) {
  return __builtin_shufflevector(a, b, 0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28, 29) +
         __builtin_shufflevector(a, b, 2, 3, 18, 19, 6, 7, 22, 23, 10, 11, 26, 27, 14, 15, 30, 31);
}

template <class V>
SELFISH_INLINE V four_sums(const V* v) {
  return quarters(halves(v[0], v[1]), halves(v[2], v[3]));
}

// Adds the even fours of lanes to the odd ones: those of a, then those of b.
SELFISH_INLINE V8 fours(V8 a, V8 b) {
  return __builtin_shufflevector(a, b, 0, 1, 2, 3, 8, 9, 10, 11) +
         __builtin_shufflevector(a, b, 4, 5, 6, 7, 12, 13, 14, 15);
}

SELFISH_INLINE V16 fours(V16 a, V16 b) {
  return __builtin_shufflevector(a, b, 0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19, 24, 25, 26, 27) +
         __builtin_shufflevector(a, b, 4, 5, 6, 7, 12, 13, 14, 15, 20, 21, 22, 23, 28, 29, 30, 31);
}

// As many vectors as they have lanes, to the vector of their sums.
SELFISH_INLINE V8 sums(const V8* v) { return fours(four_sums(v), four_sums(v + 4)); }

SELFISH_INLINE V16 sums(const V16* v) {
  return fours(fours(four_sums(v), four_sums(v + 4)), fours(four_sums(v + 8), four_sums(v + 12)));
}

// How many vectors are summed together: as many as registers hold beside those that are multiplied.
template <class V>
constexpr int kTogether = kLanes<V> == 16 ? 8 : 4;

SELFISH_INLINE V8 sums_of_halves(V16 v) {
  return lowest_lanes<V8>(v) + __builtin_shufflevector(v, v, 8, 9, 10, 11, 12, 13, 14, 15);
}
SELFISH_INLINE V4 sums_of_halves(V8 v) { return lowest_lanes<V4>(v) + __builtin_shufflevector(v, v, 4, 5, 6, 7); }

// Four or eight vectors, to the vector of their sums.
SELFISH_INLINE V4 sums_of_four(const V8* v) { return sums_of_halves(four_sums(v)); }
SELFISH_INLINE V4 sums_of_four(const V16* v) { return sums_of_halves(sums_of_halves(four_sums(v))); }

SELFISH_INLINE V8 sums_of_eight(const V16* v) {
  const V16 both = fours(four_sums(v), four_sums(v + 4));
  return fours(lowest_lanes<V8>(both), __builtin_shufflevector(both, both, 8, 9, 10, 11, 12, 13, 14, 15));
}

// Rows of eight to columns of eight, in place.
inline void transpose(V8* v) {
  V8 pairs[8], quads[8];
  for (int at = 0; at < 8; at += 2) {
    pairs[at] = __builtin_shufflevector(v[at], v[at + 1], 0, 8, 1, 9, 4, 12, 5, 13);
    pairs[at + 1] = __builtin_shufflevector(v[at], v[at + 1], 2, 10, 3, 11, 6, 14, 7, 15);
  }
  for (int at = 0; at < 8; at += 4)
    for (int half = 0; half < 2; ++half) {
      const V8 first = pairs[at + half], second = pairs[at + 2 + half];
      quads[at + 2 * half] = __builtin_shufflevector(first, second, 0, 1, 8, 9, 4, 5, 12, 13);
      quads[at + 2 * half + 1] = __builtin_shufflevector(first, second, 2, 3, 10, 11, 6, 7, 14, 15);
    }
  for (int at = 0; at < 4; ++at) {
    v[at] = __builtin_shufflevector(quads[at], quads[at + 4], 0, 1, 2, 3, 8, 9, 10, 11);
    v[at + 4] = __builtin_shufflevector(quads[at], quads[at + 4], 4, 5, 6, 7, 12, 13, 14, 15);
  }
}

inline float sum(V8 v) { return ((v[0] + v[4]) + (v[1] + v[5])) + ((v[2] + v[6]) + (v[3] + v[7])); }

template <class V>
SELFISH_INLINE V max(V a, V b) {
  return a > b ? a : b;
}

// e^x to about 1e-7 relative: x = n ln 2 + r, a polynomial for e^r, n into the exponent. NaN stays NaN. The same bits
// for every number of lanes.
template <class V>
SELFISH_INLINE V exp(V x) {
  const V lowest = broadcast<V>(-87.3f), highest = broadcast<V>(88.3f);
  x = x < lowest ? lowest : x;
  x = x > highest ? highest : x;
  const V shift = broadcast<V>(12582912.f);  // 1.5 * 2^23: adding it rounds to a whole number, in the lowest bits
  const V shifted = x * 1.44269504f + shift;
  const V n = shifted - shift;
  V r = x - n * 0.693359375f;
  r = r + n * 2.12194440e-4f;
  V p = broadcast<V>(1.9875691500e-4f);
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * (r * r) + (r + 1.f);
  const Integers<V> power = (Integers<V>)shifted + (127 - 0x4b400000);
  return p * (V)(power << 23);
}

template <class V>
SELFISH_INLINE V sigmoid(V x) {
  return 1.f / (1.f + exp<V>(-x));
}
template <class V>
SELFISH_INLINE V tanh(V x) {
  return 2.f * sigmoid<V>(x + x) - 1.f;
}

}  // namespace SELFISH_TARGET
}  // namespace selfish
