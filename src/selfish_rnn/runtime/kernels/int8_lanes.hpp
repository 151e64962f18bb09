// What int8 products need of a processor: lookups of activations by codes, and sums of products of bytes.
#pragma once

#include "../../engine/kernels/vectors.hpp"
#include "windows.hpp"

#define SELFISH_UNROLL _Pragma("GCC unroll 16")
#define SELFISH_INLINE inline __attribute__((always_inline))

namespace selfish {
namespace SELFISH_TARGET {

#if defined(__AVX512VBMI__) && defined(__AVX512VBMI2__) && defined(__AVX512VNNI__)
constexpr int kHeight = 16;
constexpr uint8_t kOffset = 128;  // what is added to activations: one factor has to be without sign
constexpr char kName[] = "AVX-512 VBMI VNNI";
#define SELFISH_BITS
constexpr int kBytesAhead = 0;  // these processors fetch early enough of their own accord
constexpr int kPlanes = 2;      // between the two densities; above the first none, below the second one more
constexpr double kDense = 0.22, kSparse = 0.08;
using Sums = __m512i;

// Sixteen rows: 64 activations are looked up at once, and the planes of the codes are masks.
template <int Planes>
struct Codes {
  __m512i code;
  SELFISH_INLINE Codes(const uint8_t* data, const uint32_t* head, int step) {
    const __m512i both = _mm512_loadu_si512(data);
    code = step ? _mm512_srli_epi16(both, 4) : both;
    if constexpr (Planes == 0) return;  // a lookup among 16 takes no notice of the other bits
    code = _mm512_and_si512(code, _mm512_set1_epi8(15));
    SELFISH_UNROLL for (int plane = 0; plane < Planes; ++plane) {
      uint64_t mask;
      std::memcpy(&mask, head + 1 + 2 * (step * Planes + plane), sizeof mask);
      code = _mm512_mask_add_epi8(code, mask, code, _mm512_set1_epi8(static_cast<char>(16 << plane)));
    }
  }
  SELFISH_INLINE __m512i look_up(const uint8_t* x) const {
    if constexpr (Planes == 3)
      return _mm512_permutex2var_epi8(_mm512_loadu_si512(x), code, _mm512_loadu_si512(x + 64));
    else if constexpr (Planes == 0)
      return _mm512_permutexvar_epi8(
          code, _mm512_broadcast_i32x4(_mm_loadu_si128(reinterpret_cast<const __m128i*>(x))));
    else
      return _mm512_permutexvar_epi8(code, _mm512_loadu_si512(x));
  }
};

struct Weights {
  __m512i value;
  SELFISH_INLINE explicit Weights(const uint8_t* from) : value(_mm512_loadu_si512(from)) {}
  SELFISH_INLINE Weights(const uint8_t* from, uint64_t bits) : value(_mm512_maskz_expandloadu_epi8(bits, from)) {}
  SELFISH_INLINE Sums add(Sums sum, __m512i x) const { return _mm512_dpbusd_epi32(sum, x, value); }
};
// The same four activations for every row.
SELFISH_INLINE __m512i four(const uint8_t* x) {
  int32_t found;
  std::memcpy(&found, x, sizeof found);
  return _mm512_set1_epi32(found);
}
SELFISH_INLINE Sums none() { return _mm512_setzero_si512(); }
SELFISH_INLINE Sums both(Sums a, Sums b) { return _mm512_add_epi32(a, b); }
SELFISH_INLINE void put(int32_t* to, Sums sum) { _mm512_storeu_si512(to, sum); }

#elif defined(__AVX2__)
constexpr int kHeight = 8;
constexpr int kBytesAhead = 3072;  // weights are fetched so early: processors confine themselves to a page
constexpr int kPlanes = 1;
constexpr double kDense = 0.27, kSparse = 0.08;
using Sums = __m256i;

// Eight rows: 16 activations are looked up at once; of several such lookups the planes choose.
template <int Planes>
struct Codes {
  __m256i code, plane[Planes + 1];
  SELFISH_INLINE Codes(const uint8_t* data, const uint32_t* head, int step) {
    const __m256i both = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(data));
    code = _mm256_and_si256(step ? _mm256_srli_epi16(both, 4) : both, _mm256_set1_epi8(15));
    const __m256i by = _mm256_setr_epi32(7, 6, 5, 4, 3, 2, 1, 0);
    SELFISH_UNROLL for (int at = 0; at < Planes; ++at)
      plane[at] = _mm256_sllv_epi32(_mm256_set1_epi32(static_cast<int>(head[1 + step * Planes + at])), by);
  }
  template <int Bits = Planes>
  SELFISH_INLINE __m256i look_up(const uint8_t* x) const {
    if constexpr (Bits == 0) {
      const __m128i sixteen = _mm_loadu_si128(reinterpret_cast<const __m128i*>(x));
      return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(sixteen), code);
    } else {
      return _mm256_blendv_epi8(look_up<Bits - 1>(x), look_up<Bits - 1>(x + (8 << Bits)), plane[Bits - 1]);
    }
  }
};

#if defined(__AVXVNNI__) || (defined(__AVX512VNNI__) && defined(__AVX512VL__))
constexpr uint8_t kOffset = 128;
constexpr char kName[] = "AVX2 VNNI";
struct Weights {
  __m256i value;
  SELFISH_INLINE explicit Weights(const uint8_t* from)
      : value(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from))) {}
  SELFISH_INLINE Sums add(Sums sum, __m256i x) const {
#if defined(__AVXVNNI__)
    return _mm256_dpbusd_avx_epi32(sum, x, value);
#else
    return _mm256_dpbusd_epi32(sum, x, value);
#endif
  }
};
#else
constexpr uint8_t kOffset = 0;
constexpr char kName[] = "AVX2";
// The sign of the weight goes to x, so that |w| serves all vectors. Nothing saturates as |x| and |w| are at most 127.
struct Weights {
  __m256i value, magnitude;
  SELFISH_INLINE explicit Weights(const uint8_t* from)
      : value(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from))), magnitude(_mm256_abs_epi8(value)) {}
  SELFISH_INLINE Sums add(Sums sum, __m256i x) const {
    const __m256i twos = _mm256_maddubs_epi16(magnitude, _mm256_sign_epi8(x, value));
    return _mm256_add_epi32(sum, _mm256_madd_epi16(twos, _mm256_set1_epi16(1)));
  }
};
#endif
SELFISH_INLINE __m256i four(const uint8_t* x) {
  int32_t found;
  std::memcpy(&found, x, sizeof found);
  return _mm256_set1_epi32(found);
}
SELFISH_INLINE Sums none() { return _mm256_setzero_si256(); }
SELFISH_INLINE Sums both(Sums a, Sums b) { return _mm256_add_epi32(a, b); }
SELFISH_INLINE void put(int32_t* to, Sums sum) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), sum); }

#elif defined(__ARM_NEON)
constexpr int kHeight = 8;
constexpr uint8_t kOffset = 0;
constexpr int kBytesAhead = 1536;
constexpr int kPlanes = 1;
constexpr double kDense = 0.27, kSparse = 0.08;
struct Sums {
  int32x4_t half[2];
};

// Eight rows in two halves: up to 64 activations are looked up at once.
struct Looked {
  int8x16_t half[2];
};

template <int Planes>
struct Codes {
  uint8x16_t code[2];
  SELFISH_INLINE Codes(const uint8_t* data, const uint32_t* head, int step) {
    SELFISH_UNROLL for (int at = 0; at < 2; ++at) {
      const uint8x16_t both = vld1q_u8(data + 16 * at);
      code[at] = step ? vshrq_n_u8(both, 4) : vandq_u8(both, vdupq_n_u8(15));
    }
    // Byte `slot` of a plane has the bits of all rows for that slot: it goes to every row, which looks at its own bit.
    static const uint8_t kSlot[16] = {0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3};
    static const uint8_t kBit[32] = {1,  1,  1,  1,  2,  2,  2,  2,  4,  4,  4,  4,  8,   8,   8,   8,
                                     16, 16, 16, 16, 32, 32, 32, 32, 64, 64, 64, 64, 128, 128, 128, 128};
    SELFISH_UNROLL for (int plane = 0; plane < Planes; ++plane) {
      const uint8x16_t word = vreinterpretq_u8_u32(vdupq_n_u32(head[1 + step * Planes + plane]));
      const uint8x16_t spread = vqtbl1q_u8(word, vld1q_u8(kSlot));
      SELFISH_UNROLL for (int at = 0; at < 2; ++at) {
        const uint8x16_t set = vtstq_u8(spread, vld1q_u8(kBit + 16 * at));
        code[at] = vorrq_u8(code[at], vandq_u8(set, vdupq_n_u8(static_cast<uint8_t>(16 << plane))));
      }
    }
  }
  SELFISH_INLINE Looked look_up(const uint8_t* x) const {
    Looked found;
    SELFISH_UNROLL for (int at = 0; at < 2; ++at) {
      uint8x16_t bytes;
      if constexpr (Planes == 0) {
        bytes = vqtbl1q_u8(vld1q_u8(x), code[at]);
      } else if constexpr (Planes == 1) {
        bytes = vqtbl2q_u8(vld1q_u8_x2(x), code[at]);
      } else {
        bytes = vqtbl4q_u8(vld1q_u8_x4(x), code[at]);
      }
      found.half[at] = vreinterpretq_s8_u8(bytes);
    }
    return found;
  }
};

struct Weights {
  int8x16_t half[2];
  SELFISH_INLINE explicit Weights(const uint8_t* from)
      : half{vreinterpretq_s8_u8(vld1q_u8(from)), vreinterpretq_s8_u8(vld1q_u8(from + 16))} {}
  SELFISH_INLINE Sums add(Sums sum, const Looked& x) const {
    SELFISH_UNROLL for (int at = 0; at < 2; ++at) {
#if defined(__ARM_FEATURE_DOTPROD)
      sum.half[at] = vdotq_s32(sum.half[at], half[at], x.half[at]);
#else
      // Two products of at most 127 * 127 fit 16 bits.
      const int16x8_t low = vmull_s8(vget_low_s8(half[at]), vget_low_s8(x.half[at]));
      const int16x8_t high = vmull_high_s8(half[at], x.half[at]);
      sum.half[at] = vpadalq_s16(sum.half[at], vpaddq_s16(low, high));
#endif
    }
    return sum;
  }
};
#if defined(__ARM_FEATURE_DOTPROD)
constexpr char kName[] = "NEON dotprod";
#else
constexpr char kName[] = "NEON";
#endif
SELFISH_INLINE Looked four(const uint8_t* x) {
  int32_t found;
  std::memcpy(&found, x, sizeof found);
  const int8x16_t all = vreinterpretq_s8_s32(vdupq_n_s32(found));
  return {{all, all}};
}
SELFISH_INLINE Sums none() { return {{vdupq_n_s32(0), vdupq_n_s32(0)}}; }
SELFISH_INLINE Sums both(const Sums& a, const Sums& b) {
  return {{vaddq_s32(a.half[0], b.half[0]), vaddq_s32(a.half[1], b.half[1])}};
}
SELFISH_INLINE void put(int32_t* to, const Sums& sum) { vst1q_s32(to, sum.half[0]), vst1q_s32(to + 4, sum.half[1]); }

#else
constexpr int kHeight = 8;
constexpr uint8_t kOffset = 0;
constexpr char kName[] = "portable";
constexpr int kBytesAhead = 3072;
constexpr int kPlanes = 1;
constexpr double kDense = 0.27, kSparse = 0.08;
typedef int32_t Sums __attribute__((vector_size(32)));
typedef int8_t Looked __attribute__((vector_size(32)));

// The same lane by lane, for any processor.
template <int Planes>
struct Codes {
  uint8_t code[4 * kHeight];
  SELFISH_INLINE Codes(const uint8_t* data, const uint32_t* head, int step) {
    for (int at = 0; at < 4 * kHeight; ++at) {
      code[at] = data[at] >> (4 * step) & 15;
      for (int plane = 0; plane < Planes; ++plane)
        code[at] |= (head[1 + step * Planes + plane] >> (8 * (at % 4) + at / 4) & 1) << (4 + plane);
    }
  }
  SELFISH_INLINE Looked look_up(const uint8_t* x) const {
    Looked found;
    for (int at = 0; at < 4 * kHeight; ++at) found[at] = static_cast<int8_t>(x[code[at]]);
    return found;
  }
};

struct Weights {
  const int8_t* value;
  SELFISH_INLINE explicit Weights(const uint8_t* from) : value(reinterpret_cast<const int8_t*>(from)) {}
  SELFISH_INLINE Sums add(Sums sum, const Looked& x) const {
    for (int at = 0; at < 4 * kHeight; ++at) sum[at / 4] += value[at] * x[at];
    return sum;
  }
};
SELFISH_INLINE Looked four(const uint8_t* x) {
  Looked found;
  for (int at = 0; at < 4 * kHeight; ++at) found[at] = static_cast<int8_t>(x[at % 4]);
  return found;
}
SELFISH_INLINE Sums none() { return Sums{}; }
SELFISH_INLINE Sums both(const Sums& a, const Sums& b) { return a + b; }
SELFISH_INLINE void put(int32_t* to, const Sums& sum) { std::memcpy(to, &sum, sizeof sum); }
#endif

#ifdef SELFISH_BITS
constexpr bool kHasBits = true;
#else
constexpr bool kHasBits = false;
#endif

}  // namespace SELFISH_TARGET
}  // namespace selfish
