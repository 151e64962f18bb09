// Output layer, softmax and cross-entropy in bfloat16: a few panels of scores exist at a time, as powers that are
// rounded once and are operands of both products of the backward pass.
//
// A power is e^(score - r). The reference r is a multiple of ln 2, so powers of groups of rows with different
// references are brought to a common one by a subtraction from their exponents. What turns the powers of a token into
// gradients, one over their sum, is a factor of the token's inputs in the gradient of the weights, and of its results
// in that of x.
#pragma once

#include <vector>

#include "bf16_products.hpp"
#include "loss.hpp"

namespace selfish {
namespace SELFISH_TARGET {

constexpr float kLn2 = 0.693147182f, kLowestReference = -1e30f;

// For each column of a wide panel: r / ln 2, and the sum of e^(score - r).
struct Powers {
  float exponent[kWide], total[kWide];

  // Turns scores into powers, and rounds them to operands if there is memory for these.
  void of_scores(const float* scores, int64_t lines, uint16_t* operands) {
    for (int column = 0; column < kWide; column += kChunk) {
      V16 reference[2], sums_here[2] = {};
      for (V16& here : reference) here = broadcast<V16>(kLowestReference);
      for (int64_t line = 0; line < lines; ++line) SELFISH_UNROLL for (int i = 0; i < 2; ++i)
          reference[i] = max(load<V16>(scores + line * kWide + column + 16 * i), reference[i]);
      for (int at = 0; at < kChunk; ++at) exponent[column + at] = std::ceil(reference[at / 16][at % 16] / kLn2);
      SELFISH_UNROLL for (int i = 0; i < 2; ++i) reference[i] = load<V16>(exponent + column + 16 * i) * kLn2;
      for (int64_t line = 0; line < lines; ++line) {
        V16 power[2];
        SELFISH_UNROLL for (int i = 0; i < 2; ++i) {
          power[i] = exp(load<V16>(scores + line * kWide + column + 16 * i) - reference[i]);
          sums_here[i] += power[i];
        }
        if (operands != nullptr) round_chunk(operands + line * kWide + column, power[0], power[1]);
      }
      SELFISH_UNROLL for (int i = 0; i < 2; ++i) store<V16>(total + column + 16 * i, sums_here[i]);
    }
  }

  void join(const Powers& other) {
    for (int at = 0; at < kWide; ++at) {
      const float top = std::max(exponent[at], other.exponent[at]);
      total[at] = total[at] * std::exp2(exponent[at] - top) + other.total[at] * std::exp2(other.exponent[at] - top);
      exponent[at] = top;
    }
  }
};

// One group's rows of a panel of rounded powers: to the common reference. Returns nothing; adds to bias_gradient what the
// powers times their tokens' factors are in each row.
inline void align_powers(uint16_t* operands, int64_t first, int64_t stop, const Powers& here, const Powers& common,
                         const float* factor, float* bias_gradient) {
  // By the places of tokens in chunks: what to subtract from a number's bits, and the factors.
  uint16_t less[kWide];
  float by_place[kWide];
  for (int column = 0; column < kWide; ++column) {
    const float steps = common.exponent[column] - here.exponent[column];
    const int place = column / kChunk * kChunk + place_in_chunk(column % kChunk);
    less[place] = static_cast<uint16_t>((steps >= 255.f ? 255 : steps > 0.f ? static_cast<int>(steps) : 0) << 7);
    by_place[place] = factor[column];
  }
  for (int64_t row = first; row < stop; ++row) {
    uint16_t* line = operands + row * kWide;
    float totals[16] = {};
    for (int at = 0; at < kWide; at += 16)
      for (int lane = 0; lane < 16; ++lane) {
        const uint16_t bits = line[at + lane], lesser = less[at + lane];
        line[at + lane] = bits > lesser ? static_cast<uint16_t>(bits - lesser) : uint16_t{0};
        totals[lane] += widened(line[at + lane]) * by_place[at + lane];
      }
    float total = 0.f;
    for (float part : totals) total += part;
    bias_gradient[row] += total;
  }
}

// Mean cross-entropy of x W^T + bias with the targets, written to loss. With gradients (all three or none): of x, the
// values, the bias. Takes as much work memory as it counts over none.
inline int64_t bf16_cross_entropy(const Bf16Matrix& matrix, const float* bias, const float* x, const int64_t* targets,
                                  int64_t n, float* x_gradient, float* gradients, float* bias_gradient, double* loss,
                                  void* work) {
  const Panels all = wide_panels(n);
  const int64_t rows = matrix.rows.lines(), columns = matrix.columns.lines();
  const int at_once = std::min(all.count, kPanelsAtOnce);
  const bool backward = x_gradient != nullptr;
  WorkMemory memory(work);
  uint16_t* x_operands = memory.take<uint16_t>(at_once * columns * kWide);
  uint16_t* values = memory.take<uint16_t>(matrix.rows.value_slots());
  uint16_t* scores = memory.take<uint16_t>(backward ? at_once * rows * kWide : 0);
  uint16_t* values_t = memory.take<uint16_t>(backward ? matrix.columns.value_slots() : 0);
  if (memory.counting()) return memory.floats();

  const Groups groups(matrix.rows.line_tiles(), rows, 1);
  round_values<false>(matrix, values);
  if (backward) round_values<true>(matrix, values_t);
  double sum = 0;
  for (int begin = 0; begin < all.count; begin += kPanelsAtOnce) {
    Panels panels(all);
    panels.count = std::min(kPanelsAtOnce, all.count - begin);
    panels.columns = std::min<int64_t>(static_cast<int64_t>(panels.count) * kWide, n - all.first(begin));
    const int64_t first_token = all.first(begin);
    operands_from_rows(x + first_token * columns, columns, panels, x_operands);

    std::vector<Powers> parts(groups.count * panels.count);
    std::vector<float> target_score(panels.count * kWide);
    bf16_spmm_groups(
        matrix.rows, values, bias, x_operands, panels, groups,
        [&](int64_t, int64_t lines, int) { return scratch(lines * kWide); },
        [&](int group, int64_t first, int64_t lines, int panel, float* piece) {
          for (int at = 0; at < panels.filled(panel); ++at) {
            const int64_t line = targets[first_token + panels.first(panel) + at] - first;
            if (line >= 0 && line < lines) target_score[panel * kWide + at] = piece[line * kWide + at];
          }
          parts[group * panels.count + panel].of_scores(
              piece, lines, backward ? scores + (panel * rows + first) * kWide : nullptr);
        });

    // Over all rows, and what makes gradients of powers.
    std::vector<Powers> whole(panels.count);
    std::vector<float> factor(panels.count * kWide);
    for (int panel = 0; panel < panels.count; ++panel) {
      Powers& powers = whole[panel] = parts[panel];
      for (int group = 1; group < groups.count; ++group) powers.join(parts[group * panels.count + panel]);
      for (int at = 0; at < panels.filled(panel); ++at) {
        sum -= target_score[panel * kWide + at] - powers.exponent[at] * kLn2 -
               std::log(static_cast<double>(powers.total[at]));
        factor[panel * kWide + at] = 1.f / (powers.total[at] * static_cast<float>(n));
      }
    }
    if (!backward) continue;

#pragma omp parallel for schedule(dynamic, 1)
    for (int group = 0; group < groups.count; ++group) {
      const int64_t first = matrix.rows.first_line(groups.first(group));
      const int64_t stop = matrix.rows.first_line(groups.stop(group));
      if (begin == 0) std::fill(bias_gradient + first, bias_gradient + stop, 0.f);
      for (int panel = 0; panel < panels.count; ++panel) {
        const Powers& powers = whole[panel];
        const float* of_panel = factor.data() + panel * kWide;
        align_powers(scores + panel * rows * kWide, first, stop, parts[group * panels.count + panel], powers, of_panel,
                     bias_gradient);
        for (int at = 0; at < panels.filled(panel); ++at) {
          const int64_t target = targets[first_token + panels.first(panel) + at];
          if (target < first || target >= stop) continue;
          uint16_t& here = scores[(panel * rows + target) * kWide + at / kChunk * kChunk + place_in_chunk(at % kChunk)];
          const float power = exp(broadcast<V8>(target_score[panel * kWide + at] - powers.exponent[at] * kLn2))[0];
          const uint16_t less = rounded(power - powers.total[at]);
          bias_gradient[target] += (widened(less) - widened(here)) * of_panel[at];
          here = less;
        }
      }
    }
    const RowsSink to_rows{x_gradient + first_token * columns, columns, panels};
    bf16_spmm(matrix.columns, values_t, nullptr, scores, panels,
              [&](int64_t first, int64_t lines, int panel, float* piece) {
                scale_columns(piece, lines, factor.data() + panel * kWide);
                to_rows(first, lines, panel, piece);
              });
    operands_from_rows(x + first_token * columns, columns, panels, x_operands, factor.data());
    bf16_sddmm(matrix.rows, gradients, x_operands, scores, panels, begin == 0);
  }
  *loss = sum / static_cast<double>(n);
  return 0;
}

}  // namespace SELFISH_TARGET
}  // namespace selfish
