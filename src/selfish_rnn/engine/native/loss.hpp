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

  void include(const float* scores, int64_t lines, int width) {
    constexpr int64_t kLines = 64;  // read twice, from the innermost cache the second time
    for (int64_t first = 0; first < lines; first += kLines) {
      const int64_t stop = std::min(lines, first + kLines);
      for (int at = 0; at < width; at += 8) {
        V8 top = load<V8>(largest + at), before = top, sum_here = load<V8>(total + at);
        for (int64_t line = first; line < stop; ++line) top = larger(load<V8>(scores + line * width + at), top);
        sum_here *= exponential(before - top);
        for (int64_t line = first; line < stop; ++line)
          sum_here += exponential(load<V8>(scores + line * width + at) - top);
        store<V8>(largest + at, top);
        store<V8>(total + at, sum_here);
      }
    }
  }

  void join(const Softmax& other, int width) {
    for (int at = 0; at < width; at += 8) {
      const V8 mine = load<V8>(largest + at), theirs = load<V8>(other.largest + at), top = larger(mine, theirs);
      store<V8>(total + at, load<V8>(total + at) * exponential(mine - top) +
                                load<V8>(other.total + at) * exponential(theirs - top));
      store<V8>(largest + at, top);
    }
  }
};

// Mean cross-entropy of x W^T + bias with the targets. With gradients (all three or none): of x, the values, the bias.
// work: (rows + columns) x width x min(panels, kPanelsAtOnce); values_t: only for gradients.
inline double cross_entropy(const Packed& packed, const float* values, const float* bias, const float* x,
                            const int64_t* targets, int64_t n, float* x_gradient, float* gradients,
                            float* bias_gradient, float* values_t, float* work) {
  // A single column would be a panel without vectors; seven empty ones beside it cost nothing here.
  Panels all(std::max<int64_t>(n, 2));
  all.columns = n;
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
#pragma omp parallel for collapse(2) schedule(dynamic, 1)
    for (int group = 0; group < groups.count; ++group)
      for (int panel = 0; panel < panels.count; ++panel) {
        const int64_t first = packed.first_row(groups.first(group));
        const int64_t lines = packed.first_row(groups.stop(group)) - first;
        float* piece = scores + (panel * rows + first) * width;
        fill_lines(piece, width, lines, bias == nullptr ? nullptr : bias + first);
        for (int column_tile = 0; column_tile < packed.column_tiles(); ++column_tile)
          for (int row_tile = groups.first(group); row_tile < groups.stop(group); ++row_tile)
            multiply(width, packed.tile(row_tile, column_tile), values,
                     x_panels + (panel * columns + packed.first_column(column_tile)) * width,
                     piece + (packed.first_row(row_tile) - first) * width);
        parts[group * panels.count + panel].include(piece, lines, width);
      }

    for (int group = 1; group < groups.count; ++group)
      for (int panel = 0; panel < panels.count; ++panel) parts[panel].join(parts[group * panels.count + panel], width);
    for (int panel = 0; panel < panels.count; ++panel) {
      Softmax& softmax = parts[panel];
      for (int at = 0; at < panels.filled(panel); ++at) {
        const int64_t target = targets[first_token + panels.first(panel) + at];
        const double score = scores[(panel * rows + target) * width + at];
        loss -= score - softmax.largest[at] - std::log(static_cast<double>(softmax.total[at]));
        softmax.total[at] = 1.f / (softmax.total[at] * static_cast<float>(n));  // from here on a factor
      }
      for (int at = panels.filled(panel); at < width; ++at) softmax.total[at] = 0.f;
    }
    if (x_gradient == nullptr) continue;

#pragma omp parallel for schedule(dynamic, 1)
    for (int group = 0; group < groups.count; ++group) {
      const int64_t first = packed.first_row(groups.first(group)), stop = packed.first_row(groups.stop(group));
      if (begin == 0) std::fill(bias_gradient + first, bias_gradient + stop, 0.f);
      for (int panel = 0; panel < panels.count; ++panel) {
        const Softmax& softmax = parts[panel];
        for (int64_t row = first; row < stop; ++row) {
          float* line = scores + (panel * rows + row) * width;
          V8 total{};
          for (int at = 0; at < width; at += 8) {
            const V8 gradient =
                exponential(load<V8>(line + at) - load<V8>(softmax.largest + at)) * load<V8>(softmax.total + at);
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
    multiply_transposed_panels(packed, values_t, scores, panels,
                               RowsSink{x_gradient + first_token * columns, columns, panels});
    correlate_panels(packed, gradients, x_panels, scores, panels, begin == 0);
  }
  return loss / static_cast<double>(n);
}

}  // namespace SELFISH_TARGET
}  // namespace selfish
