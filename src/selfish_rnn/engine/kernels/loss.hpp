// Output layer, softmax and cross-entropy in one: only a few panels of scores exist at a time, and become their own
// gradients in place.
#pragma once

#include <vector>

#include "products.hpp"

namespace selfish {
namespace SELFISH_TARGET {

constexpr int kPanelsAtOnce = 4;  // scores that are kept: enough for all threads, few enough for the last cache

// For each column of a panel: the largest score so far, and the sum of e^(score - largest).
struct Softmax {
  float largest[kWidest], total[kWidest];

  Softmax() {
    std::fill(largest, largest + kWidest, -INFINITY);
    std::fill(total, total + kWidest, 0.f);
  }

  // Puts e^(score - largest) in the place of every score: its gradient is then a product away.
  void exponentiate(float* scores, int64_t lines, int width) {
    constexpr int kLane = kLanes<Widest>;
    int at = 0;
    for (; at + 2 * kLane <= width; at += 2 * kLane) exponentiate_columns<Widest, 2>(scores + at, lines, width, at);
    for (; at + kLane <= width; at += kLane) exponentiate_columns<Widest, 1>(scores + at, lines, width, at);
    if (at < width) exponentiate_columns<V8, 1>(scores + at, lines, width, at);
  }

  template <class V, int N>
  void exponentiate_columns(float* scores, int64_t lines, int width, int at) {
    constexpr int kLane = kLanes<V>;
    V top[N], sum_here[N] = {};
    SELFISH_UNROLL for (int i = 0; i < N; ++i) top[i] = load<V>(largest + at + kLane * i);
    for (int64_t line = 0; line < lines; ++line)
      SELFISH_UNROLL for (int i = 0; i < N; ++i) top[i] = max(load<V>(scores + line * width + kLane * i), top[i]);
    for (int64_t line = 0; line < lines; ++line)
      SELFISH_UNROLL for (int i = 0; i < N; ++i) {
        float* here = scores + line * width + kLane * i;
        const V power = exp(load<V>(here) - top[i]);
        store<V>(here, power);
        sum_here[i] += power;
      }
    SELFISH_UNROLL for (int i = 0; i < N; ++i) {
      store<V>(largest + at + kLane * i, top[i]);
      store<V>(total + at + kLane * i, sum_here[i]);
    }
  }

  void join(const Softmax& other, int width) {
    for (int at = 0; at < width; at += 8) {
      const V8 mine = load<V8>(largest + at), theirs = load<V8>(other.largest + at), top = max(mine, theirs);
      store<V8>(total + at, load<V8>(total + at) * exp(mine - top) +
                                load<V8>(other.total + at) * exp(theirs - top));
      store<V8>(largest + at, top);
    }
  }
};

// A single column would be a panel without vectors; seven empty ones beside it cost nothing here.
inline Panels loss_panels(int64_t n) {
  Panels panels(std::max<int64_t>(n, 2));
  panels.columns = n;
  return panels;
}

inline int64_t cross_entropy_floats(int64_t n, int64_t rows, int64_t columns) {
  const Panels all = loss_panels(n);
  return std::min(all.count, kPanelsAtOnce) * (rows + columns) * all.width;
}

// Mean cross-entropy of x W^T + bias with the targets. With gradients (all three or none): of x, the values, the bias.
// work: cross_entropy_floats; values_t: only for gradients.
inline double cross_entropy(const Packed& packed, const float* values, const float* bias, const float* x,
                            const int64_t* targets, int64_t n, float* x_gradient, float* gradients,
                            float* bias_gradient, float* values_t, float* work) {
  const Panels all = loss_panels(n);
  const int64_t rows = packed.rows(), columns = packed.columns();
  const int width = all.width;
  const Groups groups(packed.row_tiles(), rows, 1);
  float* scores = work;
  float* x_panels = work + std::min(all.count, kPanelsAtOnce) * rows * width;
  if (x_gradient != nullptr) transpose_values(packed, values, values_t);
  double loss = 0;

  for (int begin = 0; begin < all.count; begin += kPanelsAtOnce) {
    Panels panels(all);
    panels.count = std::min(kPanelsAtOnce, all.count - begin);
    panels.columns = std::min<int64_t>(static_cast<int64_t>(panels.count) * width, n - all.first(begin));
    const int64_t first_token = all.first(begin);
    all_from_rows(x + first_token * columns, columns, panels, x_panels);

    std::vector<Softmax> parts(groups.count * panels.count);
    std::vector<float> target_score(panels.count * width);
    spmm_groups<false>(
        packed, values, bias, x_panels, panels, groups,
        [&](int64_t first, int64_t, int panel) { return scores + (panel * rows + first) * width; },
        [&](int group, int64_t first, int64_t lines, int panel, float* piece) {
          for (int at = 0; at < panels.filled(panel); ++at) {
            const int64_t line = targets[first_token + panels.first(panel) + at] - first;
            if (line >= 0 && line < lines) target_score[panel * width + at] = piece[line * width + at];
          }
          parts[group * panels.count + panel].exponentiate(piece, lines, width);
        });

    // Over all rows, and what makes a gradient of a power.
    std::vector<Softmax> whole(panels.count);
    for (int panel = 0; panel < panels.count; ++panel) {
      Softmax& softmax = whole[panel];
      for (int group = 0; group < groups.count; ++group) softmax.join(parts[group * panels.count + panel], width);
      for (int at = 0; at < width; ++at) {
        const bool filled = at < panels.filled(panel);
        if (filled)
          loss -= target_score[panel * width + at] - softmax.largest[at] -
                  std::log(static_cast<double>(softmax.total[at]));
        softmax.total[at] = filled ? 1.f / (softmax.total[at] * static_cast<float>(n)) : 0.f;
      }
    }
    if (x_gradient == nullptr) continue;

#pragma omp parallel for schedule(dynamic, 1)
    for (int group = 0; group < groups.count; ++group) {
      const int64_t first = packed.first_row(groups.first(group)), stop = packed.first_row(groups.stop(group));
      if (begin == 0) std::fill(bias_gradient + first, bias_gradient + stop, 0.f);
      for (int panel = 0; panel < panels.count; ++panel) {
        float factor[kWidest];
        for (int at = 0; at < width; at += 8)
          store<V8>(factor + at, exp(load<V8>(parts[group * panels.count + panel].largest + at) -
                                             load<V8>(whole[panel].largest + at)) *
                                     load<V8>(whole[panel].total + at));
        for (int64_t row = first; row < stop; ++row) {
          float* line = scores + (panel * rows + row) * width;
          V8 total{};
          for (int at = 0; at < width; at += 8) {
            const V8 gradient = load<V8>(line + at) * load<V8>(factor + at);
            store<V8>(line + at, gradient);
            total += gradient;
          }
          bias_gradient[row] += sum(total);
        }
        for (int at = 0; at < panels.filled(panel); ++at) {
          const int64_t target = targets[first_token + panels.first(panel) + at];
          if (target < first || target >= stop) continue;
          scores[(panel * rows + target) * width + at] -= 1.f / static_cast<float>(n);
          bias_gradient[target] -= 1.f / static_cast<float>(n);
        }
      }
    }
    spmm_panels<true>(packed, values_t, nullptr, scores, panels,
                          RowsSink{x_gradient + first_token * columns, columns, panels});
    sddmm_panels(packed, gradients, x_panels, scores, panels, begin == 0);
  }
  return loss / static_cast<double>(n);
}

}  // namespace SELFISH_TARGET
}  // namespace selfish
