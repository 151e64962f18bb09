// Products of an int8 matrix of blocks, 8 rows by 4 columns each, with a vector of activations; the layout is described
// in matrices.hpp. Sums are the same whole numbers as those of windows, and what follows them is the same arithmetic.
#pragma once

#include "int8_products.hpp"
#include "matrices.hpp"

namespace selfish {
namespace SELFISH_TARGET {

static_assert(kHeight % kBlockRows == 0 && kHeight <= 2 * kBlockRows, "a group has one strip of rows or two");

// Four activations for each strip of a group, from the columns that the base names.
#ifdef SELFISH_BITS  // groups of 16 rows
SELFISH_INLINE __m512i activations_of(const uint8_t* x, uint32_t base) {
  int32_t low, high;
  std::memcpy(&low, x + 4 * (base & 0xffff), sizeof low);
  std::memcpy(&high, x + 4 * (base >> 16), sizeof high);
  return _mm512_mask_broadcastd_epi32(_mm512_set1_epi32(low), 0xff00, _mm_cvtsi32_si128(high));
}
#else
SELFISH_INLINE auto activations_of(const uint8_t* x, uint32_t base) { return four(x + 4 * base); }
#endif

// The share of one thread; memory as in multiply() of windows, for one vector. Four sets of sums hide the latency of a
// product.
inline void multiply_blocks(const Matrix& matrix, const float* x, const float* bias, float* y, const Team& team,
                            uint8_t* memory, float fixed) {
  constexpr int kSets = 4, kBytes = 4 * kHeight, kStrips = kHeight / kBlockRows;
  const Activations activations = quantise(x, matrix.columns, memory, fixed);
  const auto bound = [&](int64_t thread) {  // threads share the blocks evenly
    const int64_t steps = matrix.first[matrix.groups] * thread / team.size;
    return std::lower_bound(matrix.first, matrix.first + matrix.groups, steps) - matrix.first;
  };
  const int64_t end = team.thread + 1 == team.size ? matrix.groups : bound(team.thread + 1);
  for (int64_t group = bound(team.thread); group < end; ++group) {
    Sums sum[kSets];
  SELFISH_UNROLL for (int set = 0; set < kSets; ++set) sum[set] = none();
    int64_t step = matrix.first[group];
    const int64_t last = matrix.first[group + 1];
    const auto add = [&](int64_t at, Sums& total) {
      const auto* bytes = reinterpret_cast<const uint8_t*>(matrix.bytes) + at * kBytes;
      total = Weights(bytes).add(total, activations_of(activations.q, matrix.base[at]));
    };
    for (; step + kSets <= last; step += kSets)
      SELFISH_UNROLL for (int set = 0; set < kSets; ++set) add(step + set, sum[set]);
    for (; step < last; ++step) add(step, sum[0]);
    int32_t whole[kHeight];
    put(whole, both(both(sum[0], sum[1]), both(sum[2], sum[3])));
    SELFISH_UNROLL for (int strip = 0; strip < kStrips; ++strip) {
      const int32_t row = matrix.row[group * kStrips + strip];
      if (row < 0) continue;
      I8 total, offset;
      std::memcpy(&total, whole + strip * kBlockRows, sizeof total);
      std::memcpy(&offset, matrix.correction + row, sizeof offset);
      if (kOffset) total -= offset;
      V8 out = __builtin_convertvector(total, V8) * (load<V8>(matrix.scale + row) * activations.scale);
      if (bias != nullptr) out += load<V8>(bias + row);
      store<V8>(y + row, out);
    }
  }
}

// A row in floats.
inline void look_up_blocks(const Matrix& matrix, int64_t row, float* y) {
  constexpr int kStrips = kHeight / kBlockRows;
  std::memset(y, 0, sizeof(float) * matrix.columns);
  int64_t strip = 0;
  while (matrix.row[strip] != row / kBlockRows * kBlockRows) ++strip;
  for (int64_t step = matrix.first[strip / kStrips]; step < matrix.first[strip / kStrips + 1]; ++step) {
    const int64_t column = 4 * (matrix.base[step] >> 16 * (strip % kStrips) & 0xffff);
    const int8_t* from = matrix.bytes + (step * kHeight + strip % kStrips * kBlockRows + row % kBlockRows) * 4;
    for (int at = 0; at < 4; ++at)
      if (from[at] != 0) y[column + at] = static_cast<float>(from[at]) * matrix.scale[row];
  }
}

}  // namespace SELFISH_TARGET
}  // namespace selfish
