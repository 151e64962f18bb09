// A word from scores.
#pragma once

#include <algorithm>
#include <functional>
#include <vector>

#include "../../engine/kernels/vectors.hpp"

namespace selfish {
namespace SELFISH_TARGET {

// exp(score / temperature), added up in the order of the words until `number` of the total is passed. Only the `top`
// best words count (0: all), never `forbidden` (-1: none). Temperature 0 takes the best.
inline int64_t choose(const float* scores, int64_t words, double temperature, int64_t top, int64_t forbidden,
                      double number) {
  int64_t best = forbidden == 0 ? 1 : 0;
  for (int64_t word = best; word < words; ++word)
    if (word != forbidden && scores[word] > scores[best]) best = word;
  if (best >= words || temperature <= 0 || top == 1) return std::min(best, words - 1);
  static thread_local std::vector<float> chances;
  chances.assign(scores, scores + words);
  if (forbidden >= 0 && forbidden < words) chances[forbidden] = -INFINITY;
  float least = -INFINITY;
  if (top > 0 && top < words) {
    std::vector<float> sorted(chances);
    std::nth_element(sorted.begin(), sorted.begin() + top - 1, sorted.end(), std::greater<float>());
    least = sorted[top - 1];
  }
  const float inverse = static_cast<float>(1 / temperature), highest = scores[best];
  double total = 0;
  for (int64_t at = 0; at < words; at += 8) {
    V8 chance = exp((load_some(chances.data() + at, words - at) - highest) * inverse);
    for (int64_t lane = 0; lane < 8 && at + lane < words; ++lane) {
      const bool out = !(chances[at + lane] >= least) || at + lane == forbidden;
      total += chances[at + lane] = out ? 0.f : chance[lane];
    }
  }
  int64_t last = best;
  double left = number * total;
  for (int64_t word = 0; word < words; ++word) {
    if (chances[word] == 0.f) continue;
    last = word;
    if ((left -= chances[word]) < 0) break;
  }
  return last;
}

}  // namespace SELFISH_TARGET
}  // namespace selfish
