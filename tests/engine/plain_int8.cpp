// Compares the int8 kernels with plain loops, as plain_loops.cpp does with the float ones. Products are sums of whole
// numbers and have to be equal to the last bit; a layer's gates are compared with doubles.
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <vector>

#include "engine/kernels/abi.hpp"
#include "runtime/kernels/abi.hpp"
#include "runtime/kernels/api.h"

using namespace selfish;
using Floats = std::vector<float>;

namespace {

std::mt19937 generator(1);
double largest = 0;
int cases = 0, unequal = 0;

Floats random_floats(int64_t count) {
  std::uniform_real_distribution<float> uniform(-1.f, 1.f);
  Floats found(count);
  for (float& number : found) number = uniform(generator);
  return found;
}

void equal(const char* what, const Floats& found, const Floats& expected) {
  ++cases;
  if (found == expected) return;
  ++unequal;
  std::printf("%s: not the same bits\n", what);
}

// A sparse matrix both ways: in windows, and as a dense matrix of whole numbers with a scale for every row.
struct Matrix {
  int64_t rows, columns;
  std::vector<int64_t> first{0};
  std::vector<uint16_t> column;
  std::vector<int8_t> value;
  std::vector<int> dense;
  Floats scale;
  char* windows;

  // `together`: as one of the matrices of a model with so many weights, which may be laid out in another way.
  Matrix(int64_t rows_, int64_t columns_, double density, int64_t together = 0)
      : rows(rows_), columns(columns_), dense(rows_ * columns_) {
    std::bernoulli_distribution exists(density);
    for (int64_t row = 0; row < rows; ++row) {
      for (int64_t at = 0; at < columns; ++at)
        if (exists(generator)) {
          const int weight = generator() % 2 ? 1 + generator() % 127 : -1 - static_cast<int>(generator() % 127);
          column.push_back(at), value.push_back(weight), dense[row * columns + at] = weight;
        }
      first.push_back(column.size());
      scale.push_back(0.001f + 0.01f * (generator() % 100));
    }
    const Int8Weights weights{rows,         columns,       first.back(), together,
                              first.data(), column.data(), value.data(), scale.data()};
    windows = static_cast<char*>(std::aligned_alloc(64, selfish_windows_bytes(&weights)));
    selfish_windows_build(&weights, windows);
  }
  ~Matrix() { std::free(windows); }

  // y = W x + bias: activations are rounded to whole numbers of their largest magnitude's 127th part.
  void multiply(const float* x, const float* bias, float* y) const {
    float top = 0;
    for (int64_t at = 0; at < columns; ++at) top = std::max(top, std::fabs(x[at]));
    const float inverse = 127.f / top, step = top / 127.f;
    for (int64_t row = 0; row < rows; ++row) {
      int64_t sum = 0;
      for (int64_t at = 0; at < columns; ++at) sum += dense[row * columns + at] * std::lrint(x[at] * inverse);
      y[row] = static_cast<float>(sum) * (scale[row] * step);
      if (bias != nullptr) y[row] += bias[row];
    }
  }
};

void check_matrix(int64_t rows, int64_t columns, double density, int64_t together) {
  const Matrix w(rows, columns, density, together);
  std::vector<int64_t> first(rows + 1);
  std::vector<uint16_t> column(w.column.size() + 1);
  std::vector<int8_t> value(w.value.size() + 1);
  Floats scale(rows), found(columns), expected(columns);
  selfish_windows_weights(w.windows, first.data(), column.data(), value.data(), scale.data());
  column.pop_back(), value.pop_back();
  ++cases;
  if (first != w.first || column != w.column || value != w.value || scale != w.scale)
    ++unequal, std::printf("weights read back are others\n");
  const int64_t row = rows / 2;
  selfish_int8_lookup(w.windows, &row, 1, found.data());
  for (int64_t at = 0; at < columns; ++at)
    expected[at] = static_cast<float>(w.dense[row * columns + at]) * w.scale[row];
  equal("lookup", found, expected);
  for (int64_t n : {1, 2, 3, 8, 11}) {
    const Floats x = random_floats(n * columns), bias = random_floats(rows);
    Floats y(n * rows), y_(n * rows);
    selfish_int8_linear(w.windows, bias.data(), x.data(), n, y.data());
    for (int64_t at = 0; at < n; ++at) w.multiply(&x[at * columns], bias.data(), &y_[at * rows]);
    equal("linear", y, y_);
  }
}

double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

void check_layer(int64_t kind, int64_t steps, int64_t batch, int64_t inputs, int64_t hidden) {
  const int64_t rows = hidden * (kind == kLstm ? 4 : kind == kGru ? 3 : 1), state = batch * hidden;
  const Matrix w(rows, inputs, 0.4), r(rows, hidden, 0.4);
  const Floats bias = random_floats(rows), other = random_floats(rows), x = random_floats(steps * batch * inputs);
  Floats h = random_floats(state), c = random_floats(state), y(steps * state), c_last(state);
  Floats input_sums(steps * batch * rows), recurrent_sums(batch * rows), a(rows), b(rows), next(state);
  Int8Layer layer{kind,
                  steps,
                  batch,
                  hidden,
                  2,
                  w.windows,
                  r.windows,
                  bias.data(),
                  other.data(),
                  x.data(),
                  h.data(),
                  c.data(),
                  y.data(),
                  kind == kLstm ? c_last.data() : nullptr,
                  input_sums.data(),
                  recurrent_sums.data()};
  selfish_int8_layer(&layer);
  double difference = 0;
  for (int64_t step = 0; step < steps; ++step) {
    for (int64_t text = 0; text < batch; ++text) {
      w.multiply(&x[(step * batch + text) * inputs], bias.data(), a.data());
      r.multiply(&h[text * hidden], other.data(), b.data());
      for (int64_t unit = 0; unit < hidden; ++unit) {
        const auto sum = [&](int gate) { return double(a[gate * hidden + unit]) + b[gate * hidden + unit]; };
        float& carried = c[text * hidden + unit];
        double after;
        if (kind == kLstm) {
          carried = sigmoid(sum(1)) * carried + sigmoid(sum(0)) * std::tanh(sum(2));
          after = sigmoid(sum(3)) * std::tanh(carried);
        } else if (kind == kGru) {
          const double candidate = std::tanh(a[2 * hidden + unit] + sigmoid(sum(0)) * b[2 * hidden + unit]);
          after = candidate + sigmoid(sum(1)) * (h[text * hidden + unit] - candidate);
        } else {
          after = kind == kRnnTanh ? std::tanh(sum(0)) : std::max(sum(0), 0.0);
        }
        const float found = y[(step * batch + text) * hidden + unit];
        difference = std::max(difference, std::isnan(found) ? 1e9 : std::fabs(found - after) / std::max(1.0, after));
        next[text * hidden + unit] = found;  // from its own state on: a rounding may fall the other way
      }
    }
    h = next;
  }
  ++cases;
  largest = std::max(largest, difference);
  if (difference > 2e-5) std::printf("layer of kind %d: %g\n", static_cast<int>(kind), difference);
}

void check_choice(int64_t words) {
  const Floats scores = random_floats(words);
  int64_t best = 0;
  double total = 0;
  for (int64_t word = 0; word < words; ++word) best = scores[word] > scores[best] ? word : best;
  for (float score : scores) total += std::exp(double(score));
  ++cases;
  if (srnn_choose(scores.data(), words, 0, 0, -1, 0.5) != best) ++unequal, std::printf("not the likeliest word\n");
  std::vector<int> drawn(words);
  const int tries = 20000;
  for (int at = 0; at < tries; ++at) ++drawn[srnn_choose(scores.data(), words, 1, 0, -1, (at + 0.5) / tries)];
  for (int64_t word = 0; word < words; ++word) {
    ++cases;
    const double off = std::fabs(double(drawn[word]) / tries - std::exp(double(scores[word])) / total);
    if (off > 2.0 / tries) ++unequal, std::printf("a word is drawn too often or too rarely\n");
  }
}

}  // namespace

int main() {
  for (int64_t rows : {5, 16, 67, 300})
    for (double density : {0.0, 0.03, 0.15, 0.33, 0.9})
      for (int64_t together : {0, 100'000'000}) check_matrix(rows, 141, density, together);
  for (int64_t kind : {kLstm, kGru, kRnnTanh, kRnnRelu})
    for (int64_t batch : {1, 3, 20}) check_layer(kind, 4, batch, 13, 12);
  check_choice(12);
  std::printf("%d cases, largest difference %.2g, %s\n", cases, largest,
              selfish_threaded() ? "several threads" : "one thread");
  return unequal > 0 || largest > 2e-5;
}
