// Functions of every number, and reductions. Vectors begin at whole cache lines and have room up to the end of one, so
// functions run over eight numbers at a time and may write behind the last. NaN stays NaN, as in torch.
#pragma once

#include "../../engine/kernels/vectors.hpp"
#include "team.hpp"

namespace selfish {
namespace SELFISH_TARGET {

inline V8 larger(V8 a, V8 b) { return a > b ? a : (a != a ? a : b); }
inline V8 smaller(V8 a, V8 b) { return a < b ? a : (a != a ? a : b); }
inline V8 magnitude(V8 x) { return (V8)((I8)x & 0x7fffffff); }
inline V8 root(V8 x) {
  for (int lane = 0; lane < 8; ++lane) x[lane] = std::sqrt(x[lane]);
  return x;
}
// Unlike exp(), which gates use, this one overflows to infinity.
inline V8 full_exp(V8 x) {
  const V8 half = exp(x * 0.5f);
  return half * half;
}

// ln x to about 1e-7: x = m 2^n with m from sqrt(1/2) to sqrt(2), and a polynomial for ln m.
inline V8 log(V8 x) {
  const V8 tiny = broadcast<V8>(1.17549435e-38f);
  const I8 denormal = x < tiny;
  const V8 scaled = denormal ? x * 8388608.f : x;
  const I8 bits = (I8)scaled;
  I8 power = ((bits >> 23) & 255) - 126;
  V8 m = (V8)((bits & 0x007fffff) | 0x3f000000);  // from 1/2 to 1
  const I8 low = m < 0.707106781186547524f;
  power += low;  // true is -1
  m = (low ? m + m : m) - 1.f;
  const V8 n = __builtin_convertvector(power, V8) - (denormal ? broadcast<V8>(23.f) : V8{});
  V8 p = broadcast<V8>(7.0376836292e-2f);
  p = p * m - 1.1514610310e-1f;
  p = p * m + 1.1676998740e-1f;
  p = p * m - 1.2420140846e-1f;
  p = p * m + 1.4249322787e-1f;
  p = p * m - 1.6668057665e-1f;
  p = p * m + 2.0000714765e-1f;
  p = p * m - 2.4999993993e-1f;
  p = p * m + 3.3333331174e-1f;
  const V8 square = m * m;
  V8 y = p * m * square + n * -2.12194440e-4f - 0.5f * square;
  y = m + y + n * 0.693359375f;
  const V8 infinity = broadcast<V8>(INFINITY), nan = broadcast<V8>(NAN);
  y = x == infinity ? infinity : y;
  y = x == 0.f ? -infinity : y;
  return x < 0.f || x != x ? nan : y;
}

// The error function to 2e-7 (Abramowitz and Stegun 7.1.26).
inline V8 erf(V8 x) {
  const V8 size = magnitude(x), t = 1.f / (1.f + 0.3275911f * size);
  V8 p = broadcast<V8>(1.061405429f);
  p = p * t - 1.453152027f;
  p = p * t + 1.421413741f;
  p = p * t - 0.284496736f;
  p = p * t + 0.254829592f;
  const V8 y = 1.f - p * t * exp(-size * size);
  return x < 0.f ? -y : y;
}

inline V8 clamp(V8 x, float low, float high) {
  x = x < low ? broadcast<V8>(low) : x;
  return x > high ? broadcast<V8>(high) : x;
}
inline V8 relu(V8 x) { return x < 0.f ? V8{} : x; }
inline V8 softplus(V8 x) { return relu(x) + log(1.f + exp(-magnitude(x))); }
inline V8 silu(V8 x) { return x * sigmoid(x); }
inline V8 gelu(V8 x) { return 0.5f * x * (1.f + erf(x * 0.707106781186547524f)); }
inline V8 gelu_tanh(V8 x) { return 0.5f * x * (1.f + tanh(0.797884560802865356f * (x + 0.044715f * x * x * x))); }
inline V8 hardsigmoid(V8 x) { return clamp(x * (1.f / 6.f) + 0.5f, 0.f, 1.f); }

// y = f(x) for the numbers of a part.
template <class Function>
inline void map(const float* x, float* y, Part part, Function function) {
  for (int64_t at = part.begin; at < part.end; at += 8) store<V8>(y + at, function(load<V8>(x + at)));
}

// The same of two vectors, of which one may be a single number.
template <class Function>
inline void map(const float* a, bool a_single, const float* b, bool b_single, float* y, Part part, Function function) {
  const V8 a_all = broadcast<V8>(*a), b_all = broadcast<V8>(*b);
  for (int64_t at = part.begin; at < part.end; at += 8)
    store<V8>(y + at, function(a_single ? a_all : load<V8>(a + at), b_single ? b_all : load<V8>(b + at)));
}

inline float total(const float* x, int64_t n) {
  V8 found{};
  for (int64_t at = 0; at < n; at += 8) found += load_some(x + at, n - at);
  return sum(found);
}

// Mean 0 and variance 1; without the mean, root mean square 1.
template <bool Centred>
inline void normalise(const float* x, int64_t n, float epsilon, float* y) {
  const float count = static_cast<float>(n), mean = Centred ? total(x, n) / count : 0.f;
  V8 squares{};
  for (int64_t at = 0; at < n; at += 8) {
    V8 here = load_some(x + at, n - at) - mean;
    for (int64_t lane = n - at; lane < 8; ++lane) here[lane] = 0.f;
    squares += here * here;
  }
  const float factor = 1.f / std::sqrt(sum(squares) / count + epsilon);
  for (int64_t at = 0; at < n; at += 8) store_some(y + at, (load_some(x + at, n - at) - mean) * factor, n - at);
}

inline void log_softmax(const float* x, int64_t n, float* y) {
  float top = x[0];
  for (int64_t at = 1; at < n; ++at) top = x[at] > top ? x[at] : top;
  V8 found{};
  for (int64_t at = 0; at < n; at += 8) {
    V8 here = exp(load_some(x + at, n - at) - top);
    for (int64_t lane = n - at; lane < 8; ++lane) here[lane] = 0.f;
    found += here;
  }
  const float shift = top + log(broadcast<V8>(sum(found)))[0];
  for (int64_t at = 0; at < n; at += 8) store_some(y + at, load_some(x + at, n - at) - shift, n - at);
}

}  // namespace SELFISH_TARGET
}  // namespace selfish
