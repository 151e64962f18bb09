// Vectors of bfloat16 operands, with sums in float32: AVX512_BF16 where it is compiled for, else an emulation that
// rounds the operands in the same way and multiplies them in float32.
//
// Tokens come in chunks of 32, 64 bytes. In a chunk the fours of tokens lie in the order 0 4 1 5 2 6 3 7: interleaving
// two chunks in every 128 bits, as processors do, then gives tokens 0 to 15 and 16 to 31 in their natural order.
#pragma once

#include "vectors.hpp"

namespace selfish {
namespace SELFISH_TARGET {

constexpr int kChunk = 32, kChunkBytes = 64;

// Place of a token in its chunk.
constexpr int place_in_chunk(int token) {
  const int four = token / 4;
  return ((four & 3) * 2 + four / 4) * 4 + token % 4;
}

inline float widened(uint16_t number) {
  const uint32_t bits = uint32_t{number} << 16;
  float result;
  std::memcpy(&result, &bits, sizeof bits);
  return result;
}

// Round to nearest, ties to even; NaN stays NaN.
inline uint16_t rounded(float number) {
  uint32_t bits;
  std::memcpy(&bits, &number, sizeof bits);
  if ((bits & 0x7fffffff) > 0x7f800000) return static_cast<uint16_t>(bits >> 16 | 0x40);
  return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

// Offsets of four operands, in one register.
SELFISH_INLINE uint64_t four_offsets(const uint16_t* offsets) {
  uint64_t four;
  std::memcpy(&four, offsets, sizeof four);
  return four;
}
template <int Which>
SELFISH_INLINE size_t offset_of(uint64_t four) {
  return static_cast<uint16_t>(four >> (16 * Which));
}

// Sums of a chunk's tokens: the first up to 16, and up to 16 more.
template <int Low, int High>
struct ChunkSums {
  typename VectorOf<Low>::type low;
  typename VectorOf<High == 0 ? 4 : High>::type high;
};

#if defined(__AVX512BF16__)

// Eight weights, repeated in every 128 bits.
using EightWeights = __m512i;
SELFISH_INLINE EightWeights load_weights(const uint16_t* weights) {
  return _mm512_broadcast_i32x4(_mm_loadu_si128(reinterpret_cast<const __m128i*>(weights)));
}

using Chunk = __m512i;
SELFISH_INLINE Chunk load_chunk(const char* from) { return _mm512_loadu_si512(from); }

// A load that is not repeated: GCC would let both interleavings load for themselves.
SELFISH_INLINE Chunk load_once(const char* from) {
  Chunk chunk = load_chunk(from);
  asm("" : "+v"(chunk));
  return chunk;
}

SELFISH_INLINE V16 multiply(V16 sum, __m512i a, __m512i b) {
  return (V16)_mm512_dpbf16_ps((__m512)sum, (__m512bh)a, (__m512bh)b);
}
SELFISH_INLINE V8 multiply(V8 sum, __m256i a, __m256i b) {
  return (V8)_mm256_dpbf16_ps((__m256)sum, (__m256bh)a, (__m256bh)b);
}
SELFISH_INLINE V4 multiply(V4 sum, __m128i a, __m128i b) {
  return (V4)_mm_dpbf16_ps((__m128)sum, (__m128bh)a, (__m128bh)b);
}

// sum += weight 2 Pair times the chunk at a + weight 2 Pair + 1 times the chunk at b.
template <int Pair, int Low, int High>
SELFISH_INLINE void add_pair(ChunkSums<Low, High>& sum, EightWeights weights, const char* a, const char* b) {
  const __m512i pair = _mm512_shuffle_epi32(weights, (_MM_PERM_ENUM)(Pair * 0x55));
  if constexpr (Low == 16) {
    const Chunk p = load_once(a), q = load_once(b);
    sum.low = multiply(sum.low, pair, _mm512_unpacklo_epi16(p, q));
    if constexpr (High == 16) {
      sum.high = multiply(sum.high, pair, _mm512_unpackhi_epi16(p, q));
    } else if constexpr (High == 8) {
      sum.high = multiply(sum.high, _mm512_castsi512_si256(pair),
                          _mm256_unpackhi_epi16(_mm512_castsi512_si256(p), _mm512_castsi512_si256(q)));
    } else if constexpr (High == 4) {
      sum.high = multiply(sum.high, _mm512_castsi512_si128(pair),
                          _mm_unpackhi_epi16(_mm512_castsi512_si128(p), _mm512_castsi512_si128(q)));
    }
  } else if constexpr (Low == 8) {
    const __m256i p = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(a));
    const __m256i q = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(b));
    sum.low = multiply(sum.low, _mm512_castsi512_si256(pair), _mm256_unpacklo_epi16(p, q));
  } else {
    const __m128i p = _mm_loadu_si128(reinterpret_cast<const __m128i*>(a));
    const __m128i q = _mm_loadu_si128(reinterpret_cast<const __m128i*>(b));
    sum.low = multiply(sum.low, _mm512_castsi512_si128(pair), _mm_unpacklo_epi16(p, q));
  }
}

// Inner products of chunks, spread over the lanes of the sum.
SELFISH_INLINE V16 add_inner(V16 sum, Chunk d, const char* x) { return multiply(sum, d, load_chunk(x)); }

SELFISH_INLINE void round_chunk(uint16_t* to, V16 low, V16 high) {
  const __m512i order = _mm512_setr_epi64(0, 4, 1, 5, 2, 6, 3, 7);
  _mm512_storeu_si512(to, _mm512_permutexvar_epi64(order, (__m512i)_mm512_cvtne2ps_pbh((__m512)high, (__m512)low)));
}

// Sixteen numbers in their natural order.
SELFISH_INLINE void round_sixteen(uint16_t* to, V16 from) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), (__m256i)_mm512_cvtneps_pbh((__m512)from));
}

#else

using EightWeights = const uint16_t*;
SELFISH_INLINE EightWeights load_weights(const uint16_t* weights) { return weights; }

struct Chunk {
  uint16_t numbers[kChunk];
};
SELFISH_INLINE Chunk load_chunk(const char* from) {
  Chunk chunk;
  std::memcpy(&chunk, from, kChunkBytes);
  return chunk;
}

template <int Pair, int Low, int High>
SELFISH_INLINE void add_pair(ChunkSums<Low, High>& sum, EightWeights weights, const char* a, const char* b) {
  const uint16_t *p = reinterpret_cast<const uint16_t*>(a), *q = reinterpret_cast<const uint16_t*>(b);
  const float first = widened(weights[2 * Pair]), second = widened(weights[2 * Pair + 1]);
  for (int at = 0; at < Low; ++at) {
    const int place = place_in_chunk(at);
    sum.low[at] += first * widened(p[place]) + second * widened(q[place]);
  }
  for (int at = 0; at < High; ++at) {
    const int place = place_in_chunk(16 + at);
    sum.high[at] += first * widened(p[place]) + second * widened(q[place]);
  }
}

SELFISH_INLINE V16 add_inner(V16 sum, const Chunk& d, const char* x) {
  const uint16_t* numbers = reinterpret_cast<const uint16_t*>(x);
  for (int at = 0; at < 16; ++at)
    sum[at] += widened(d.numbers[2 * at]) * widened(numbers[2 * at]) +
               widened(d.numbers[2 * at + 1]) * widened(numbers[2 * at + 1]);
  return sum;
}

SELFISH_INLINE void round_chunk(uint16_t* to, V16 low, V16 high) {
  for (int at = 0; at < 16; ++at) {
    to[place_in_chunk(at)] = rounded(low[at]);
    to[place_in_chunk(16 + at)] = rounded(high[at]);
  }
}

SELFISH_INLINE void round_sixteen(uint16_t* to, V16 from) {
  for (int at = 0; at < 16; ++at) to[at] = rounded(from[at]);
}

#endif

}  // namespace SELFISH_TARGET
}  // namespace selfish
