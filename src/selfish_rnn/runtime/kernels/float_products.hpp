// Products of float matrices with a vector: dense in blocks of rows, sparse in sliding windows.
#pragma once

#include "../../engine/kernels/vectors.hpp"
#include "matrices.hpp"
#include "team.hpp"

namespace selfish {
namespace SELFISH_TARGET {

// A vector of rows, as many of them as registers hold in a block, and lookups in a window of columns. Dense products
// are the same sums in the same order on every processor. Sparse ones are added up as the layout has them, and fused
// where the processor can: they may differ in the last bits.
#if defined(__AVX512F__)
constexpr int kFloatLanes = 16, kBlock = 8, kWindow = 32;
using Lanes = V16;
SELFISH_INLINE Lanes fused(Lanes a, Lanes b, Lanes c) {
  return (Lanes)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
}
SELFISH_INLINE Lanes look_up(const float* x, const uint8_t* code) {
  const __m512i index = _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(code)));
  return (Lanes)_mm512_permutex2var_ps(_mm512_loadu_ps(x), index, _mm512_loadu_ps(x + 16));
}
#elif defined(__AVX2__) && defined(__FMA__)
constexpr int kFloatLanes = 8, kBlock = 6, kWindow = 16;
using Lanes = V8;
SELFISH_INLINE Lanes fused(Lanes a, Lanes b, Lanes c) {
  return (Lanes)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
}
SELFISH_INLINE Lanes look_up(const float* x, const uint8_t* code) {
  const __m256i index = _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(code)));
  const __m256 low = _mm256_permutevar8x32_ps(_mm256_loadu_ps(x), index);
  const __m256 high = _mm256_permutevar8x32_ps(_mm256_loadu_ps(x + 8), index);
  return (Lanes)_mm256_blendv_ps(low, high, _mm256_castsi256_ps(_mm256_slli_epi32(index, 28)));
}
#else
constexpr int kFloatLanes = 8, kWindow = 256;
#if defined(__ARM_NEON)
constexpr int kBlock = 6;
#else
constexpr int kBlock = 3;
#endif
using Lanes = V8;
#if defined(__ARM_NEON)
SELFISH_INLINE Lanes fused(Lanes a, Lanes b, Lanes c) {
  float32x4_t x[2], y[2], z[2];
  std::memcpy(x, &a, sizeof a), std::memcpy(y, &b, sizeof b), std::memcpy(z, &c, sizeof c);
  z[0] = vfmaq_f32(z[0], x[0], y[0]), z[1] = vfmaq_f32(z[1], x[1], y[1]);
  std::memcpy(&c, z, sizeof c);
  return c;
}
#else
SELFISH_INLINE Lanes fused(Lanes a, Lanes b, Lanes c) { return a * b + c; }
#endif
SELFISH_INLINE Lanes look_up(const float* x, const uint8_t* code) {
  return Lanes{x[code[0]], x[code[1]], x[code[2]], x[code[3]], x[code[4]], x[code[5]], x[code[6]], x[code[7]]};
}
#endif

// The rows of a vector that exist.
SELFISH_INLINE void store_rows(float* y, Lanes sum, const float* bias, int64_t count) {
  if (count >= kFloatLanes) {
    store<Lanes>(y, bias == nullptr ? sum : sum + load<Lanes>(bias));
  } else {
    for (int64_t at = 0; at < count; ++at) y[at] = bias == nullptr ? sum[at] : sum[at] + bias[at];
  }
}

// A block of so many vectors of rows. Even and odd columns are added up apart, so that additions need not wait for each
// other.
template <int Vectors>
inline void multiply_block(const float* w, const float* x, int64_t columns, const float* bias, float* y, int64_t rows) {
  constexpr int kStep = Vectors * kFloatLanes;
  Lanes even[Vectors] = {}, odd[Vectors] = {};
  int64_t column = 0;
  for (; column + 2 <= columns; column += 2, w += 2 * kStep) {
    const Lanes first = broadcast<Lanes>(x[column]), second = broadcast<Lanes>(x[column + 1]);
  SELFISH_UNROLL for (int at = 0; at < Vectors; ++at) even[at] += load<Lanes>(w + at * kFloatLanes) * first;
    SELFISH_UNROLL for (int at = 0; at < Vectors; ++at) odd[at] += load<Lanes>(w + kStep + at * kFloatLanes) * second;
  }
  if (column < columns) {
    const Lanes first = broadcast<Lanes>(x[column]);
    SELFISH_UNROLL for (int at = 0; at < Vectors; ++at) even[at] += load<Lanes>(w + at * kFloatLanes) * first;
  }
  SELFISH_UNROLL for (int at = 0; at < Vectors; ++at) {
    const int64_t row = at * kFloatLanes;
    store_rows(y + row, even[at] + odd[at], bias == nullptr ? nullptr : bias + row, rows - row);
  }
}

// Calls multiply_block for a number of vectors that is known when the program runs.
template <int Vectors = kBlock>
inline void multiply_vectors(int64_t vectors, const float* w, const float* x, int64_t columns, const float* bias,
                             float* y, int64_t rows) {
  if constexpr (Vectors > 1)
    if (vectors < Vectors) return multiply_vectors<Vectors - 1>(vectors, w, x, columns, bias, y, rows);
  multiply_block<Vectors>(w, x, columns, bias, y, rows);
}

inline void multiply_dense_float(const Matrix& matrix, const float* x, const float* bias, float* y, const Team& team) {
  const int64_t blocks = (matrix.groups + kBlock - 1) / kBlock;
  const int64_t end = blocks * (team.thread + 1) / team.size;
  for (int64_t block = blocks * team.thread / team.size; block < end; ++block) {
    const int64_t row = block * kBlock * kFloatLanes;
    multiply_vectors(std::min<int64_t>(kBlock, matrix.groups - block * kBlock), matrix.values + row * matrix.columns, x,
                     matrix.columns, bias == nullptr ? nullptr : bias + row, y + row, matrix.rows - row);
  }
}

inline void multiply_sparse_float(const Matrix& matrix, const float* x, const float* bias, float* y, const Team& team) {
  const auto bound = [&](int64_t thread) {  // threads share the weights evenly
    const int64_t steps = matrix.first[matrix.groups] * thread / team.size;
    return std::lower_bound(matrix.first, matrix.first + matrix.groups, steps) - matrix.first;
  };
  const int64_t end = team.thread + 1 == team.size ? matrix.groups : bound(team.thread + 1);
  for (int64_t group = bound(team.thread); group < end; ++group) {
    Lanes sum[4] = {};
    int64_t step = matrix.first[group];
    const int64_t last = matrix.first[group + 1];
    const auto product = [&](int64_t at, Lanes total) {
      return fused(load<Lanes>(matrix.values + at * kFloatLanes),
                   look_up(x + matrix.base[at], matrix.codes + at * kFloatLanes), total);
    };
    for (; step + 4 <= last; step += 4)
      SELFISH_UNROLL for (int set = 0; set < 4; ++set) sum[set] = product(step + set, sum[set]);
    for (; step < last; ++step) sum[0] = product(step, sum[0]);
    const Lanes total = (sum[0] + sum[1]) + (sum[2] + sum[3]);
    const int32_t* row = matrix.row + group * kFloatLanes;
    const int64_t lanes = std::min<int64_t>(kFloatLanes, matrix.rows - group * kFloatLanes);
    for (int64_t lane = 0; lane < lanes; ++lane)
      y[row[lane]] = bias == nullptr ? total[lane] : total[lane] + bias[row[lane]];
  }
}

}  // namespace SELFISH_TARGET
}  // namespace selfish
