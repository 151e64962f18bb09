// Products of a dense int8 matrix with a vector of activations; the layout is described in matrices.hpp. Sums are the
// same whole numbers as those of windows, and what follows them is the same arithmetic.
#pragma once

#include "int8_products.hpp"
#include "matrices.hpp"

namespace selfish {
namespace SELFISH_TARGET {

// The density from which the dense layout is the faster one.
#if defined(SELFISH_BITS)
constexpr double kDenseInt8From = 0.3;
#elif defined(__AVX2__)
constexpr double kDenseInt8From = 0.35;
#else
constexpr double kDenseInt8From = 0.35;
#endif

template <int Groups>
inline void multiply_dense_groups(const Matrix& matrix, int64_t group, const Activations& x, const float* bias,
                                  float* y) {
  const int64_t steps = (matrix.columns + 3) / 4, stride = 4 * kHeight * steps;
  const auto* data = reinterpret_cast<const uint8_t*>(matrix.bytes) + group * stride;
  Sums sum[2][Groups];
  SELFISH_UNROLL for (int at = 0; at < 2 * Groups; ++at) sum[at / Groups][at % Groups] = none();
  int64_t step = 0;
  for (; step + 2 <= steps; step += 2) {
    SELFISH_UNROLL for (int set = 0; set < 2; ++set) {
      const auto here = four(x.q + 4 * (step + set));
      SELFISH_UNROLL for (int at = 0; at < Groups; ++at)
        sum[set][at] = Weights(data + at * stride + 4 * kHeight * (step + set)).add(sum[set][at], here);
    }
  }
  if (step < steps) {
    const auto here = four(x.q + 4 * step);
    SELFISH_UNROLL for (int at = 0; at < Groups; ++at)
      sum[0][at] = Weights(data + at * stride + 4 * kHeight * step).add(sum[0][at], here);
  }
  SELFISH_UNROLL for (int at = 0; at < Groups; ++at) {
    int32_t whole[kHeight];
    put(whole, both(sum[0][at], sum[1][at]));
    SELFISH_UNROLL for (int lane = 0; lane < kHeight; lane += 8) {
      const int64_t row = (group + at) * kHeight + lane;
      I8 total, correction;
      std::memcpy(&total, whole + lane, sizeof total);
      std::memcpy(&correction, matrix.correction + row, sizeof correction);
      if (kOffset) total -= correction;
      V8 out = __builtin_convertvector(total, V8) * (load<V8>(matrix.scale + row) * x.scale);
      const int64_t count = matrix.rows - row;
      if (count <= 0) continue;
      if (bias != nullptr) out += load_some(bias + row, count);
      store_some(y + row, out, count);
    }
  }
}

// The share of one thread; memory as in multiply() of windows, for one vector.
inline void multiply_dense_int8(const Matrix& matrix, const float* x, const float* bias, float* y, const Team& team,
                                uint8_t* memory, float fixed) {
  const Activations activations = quantise(x, matrix.columns, memory, fixed);
  const int64_t end = matrix.groups * (team.thread + 1) / team.size;
  int64_t group = matrix.groups * team.thread / team.size;
  for (; group + 4 <= end; group += 4) multiply_dense_groups<4>(matrix, group, activations, bias, y);
  switch (end - group) {
    case 1: return multiply_dense_groups<1>(matrix, group, activations, bias, y);
    case 2: return multiply_dense_groups<2>(matrix, group, activations, bias, y);
    case 3: return multiply_dense_groups<3>(matrix, group, activations, bias, y);
    default: return;
  }
}

}  // namespace SELFISH_TARGET
}  // namespace selfish
