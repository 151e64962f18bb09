// Products of a dense int8 matrix with a vector of activations; the layout is described in matrices.hpp. Sums are the
// same whole numbers as those of windows, and what follows them is the same arithmetic.
#pragma once

#include "int8_products.hpp"
#include "matrices.hpp"

namespace selfish {
namespace SELFISH_TARGET {

// Groups of rows in a block, as many as registers hold the sums of.
#if defined(__AVX2__) || defined(__ARM_NEON)
constexpr int kInt8Block = 4;
#else
constexpr int kInt8Block = 2;
#endif

template <int Groups>
inline void multiply_dense_block(const uint8_t* data, const float* scale, const int32_t* correction, int64_t columns,
                                 const Activations& x, const float* bias, float* y, int64_t rows) {
  constexpr int kBytes = 4 * kHeight;
  const int64_t steps = (columns + 3) / 4;
  Sums even[Groups], odd[Groups];
  SELFISH_UNROLL for (int at = 0; at < Groups; ++at) even[at] = odd[at] = none();
  int64_t step = 0;
  for (; step + 2 <= steps; step += 2, data += 2 * Groups * kBytes) {
    const auto first = four(x.q + 4 * step), second = four(x.q + 4 * step + 4);
    SELFISH_UNROLL for (int at = 0; at < Groups; ++at) {
      even[at] = Weights(data + at * kBytes).add(even[at], first);
      odd[at] = Weights(data + (Groups + at) * kBytes).add(odd[at], second);
    }
  }
  if (step < steps) {
    const auto first = four(x.q + 4 * step);
    SELFISH_UNROLL for (int at = 0; at < Groups; ++at) even[at] = Weights(data + at * kBytes).add(even[at], first);
  }
  SELFISH_UNROLL for (int at = 0; at < Groups; ++at) {
    int32_t whole[kHeight];
    put(whole, both(even[at], odd[at]));
    SELFISH_UNROLL for (int lane = 0; lane < kHeight; lane += 8) {
      const int64_t row = at * kHeight + lane, count = rows - row;
      if (count <= 0) continue;
      I8 total, offset;
      std::memcpy(&total, whole + lane, sizeof total);
      std::memcpy(&offset, correction + row, sizeof offset);
      if (kOffset) total -= offset;
      V8 out = __builtin_convertvector(total, V8) * (load<V8>(scale + row) * x.scale);
      if (bias != nullptr) out += load_some(bias + row, count);
      store_some(y + row, out, count);
    }
  }
}

// Calls multiply_dense_block for a number of groups that is known when the program runs.
template <int Groups = kInt8Block>
inline void multiply_dense_groups(int64_t groups, const uint8_t* data, const float* scale, const int32_t* correction,
                                  int64_t columns, const Activations& x, const float* bias, float* y, int64_t rows) {
  if constexpr (Groups > 1)
    if (groups < Groups)
      return multiply_dense_groups<Groups - 1>(groups, data, scale, correction, columns, x, bias, y, rows);
  multiply_dense_block<Groups>(data, scale, correction, columns, x, bias, y, rows);
}

// The share of one thread; memory as in multiply() of windows, for one vector.
inline void multiply_dense_int8(const Matrix& matrix, const float* x, const float* bias, float* y, const Team& team,
                                uint8_t* memory, float fixed) {
  const Activations activations = quantise(x, matrix.columns, memory, fixed);
  const int64_t blocks = (matrix.groups + kInt8Block - 1) / kInt8Block, steps = (matrix.columns + 3) / 4;
  const int64_t end = blocks * (team.thread + 1) / team.size;
  for (int64_t block = blocks * team.thread / team.size; block < end; ++block) {
    const int64_t row = block * kInt8Block * kHeight;
    multiply_dense_groups(std::min<int64_t>(kInt8Block, matrix.groups - block * kInt8Block),
                          reinterpret_cast<const uint8_t*>(matrix.bytes) + row * steps * 4, matrix.scale + row,
                          matrix.correction + row, matrix.columns, activations, bias == nullptr ? nullptr : bias + row,
                          y + row, matrix.rows - row);
  }
}

}  // namespace SELFISH_TARGET
}  // namespace selfish
