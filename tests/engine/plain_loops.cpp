// Compares the kernels with plain loops, through the functions of the library only: for processors and compilers on
// which there is no Python to test with. Prints the number of cases and the largest difference, relative to the largest
// value.
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <vector>

#include "engine/kernels/abi.hpp"

using namespace selfish;
using Floats = std::vector<float>;

namespace {

std::mt19937 generator(1);
double largest = 0;
int cases = 0;

Floats random_floats(int64_t count, float size = 1.f) {
  std::uniform_real_distribution<float> uniform(-size, size);
  Floats found(count);
  for (float& number : found) number = uniform(generator);
  return found;
}

void compare(const char* what, const Floats& found, const std::vector<double>& expected) {
  double scale = 1e-3, difference = 0;
  for (size_t at = 0; at < expected.size(); ++at) scale = std::max(scale, std::fabs(expected[at]));
  for (size_t at = 0; at < expected.size(); ++at)
    difference = std::max(difference, std::isnan(found[at]) ? 1e9 : std::fabs(found[at] - expected[at]));
  largest = std::max(largest, difference / scale);
  ++cases;
  if (difference / scale > 2e-5) std::printf("%s: %g of %g\n", what, difference, scale);
}

float* floats(int64_t count) {  // with a whole cache line of room, as tensors have
  return static_cast<float*>(std::aligned_alloc(64, (count * 4 / 64 + 2) * 64));
}

// A sparse matrix both ways: packed, and as a dense matrix of doubles with a mark for every weight.
struct Matrix {
  int64_t rows, columns;
  std::vector<int64_t> positions;
  std::vector<int32_t> order;
  char* index;
  Floats values;  // in the order of the index
  std::vector<double> dense;

  Matrix(int64_t rows_, int64_t columns_, double density, int gates) : rows(rows_), columns(columns_) {
    std::bernoulli_distribution exists(density);
    for (int64_t at = 0; at < rows * columns; ++at)
      if (exists(generator)) positions.push_back(at);
    std::vector<int32_t> bounds{0};
    for (int gate = 0; gate < gates; ++gate) {  // two tiles for each gate
      bounds.push_back(gate * rows / gates + rows / gates / 2);
      bounds.push_back((gate + 1) * rows / gates);
    }
    const int64_t width = (columns + 1) / 2, tiles = (columns + width - 1) / width, count = positions.size();
    const int64_t bytes =
        selfish_index_bytes(rows, columns, count, positions.data(), bounds.size() - 1, bounds.data(), tiles, width);
    index = static_cast<char*>(std::aligned_alloc(64, (bytes + 63) / 64 * 64));
    order.resize(count);
    selfish_index_build(rows, columns, count, positions.data(), bounds.size() - 1, bounds.data(), tiles, width, index,
                        order.data());
    if (!selfish_index_valid(index, bytes)) std::printf("the index is not valid\n"), std::exit(1);
    values = random_floats(count);
    dense.assign(rows * columns, 0);
    for (int64_t at = 0; at < count; ++at) dense[positions[order[at]]] = values[at];
  }

  std::vector<double> at_weights(const std::vector<double>& whole) const {
    std::vector<double> found(values.size());
    for (size_t at = 0; at < found.size(); ++at) found[at] = whole[positions[order[at]]];
    return found;
  }
};

void check_linear(int64_t rows, int64_t columns, int64_t n, double density) {
  Matrix w(rows, columns, density, 1);
  const Floats bias = random_floats(rows), x = random_floats(n * columns), d = random_floats(n * rows);
  Floats y(n * rows), dx(n * columns), gradients(w.values.size()), dbias(rows), values_t(w.values.size() + 16);
  float* work = floats(selfish_panel_floats(n, rows + columns));
  selfish_linear(w.index, w.values.data(), bias.data(), x.data(), n, y.data(), work);
  selfish_linear_backward(w.index, w.values.data(), x.data(), d.data(), n, dx.data(), gradients.data(), dbias.data(),
                          values_t.data(), work);
  std::vector<double> y_(n * rows), dx_(n * columns), dw_(rows * columns), dbias_(rows);
  for (int64_t token = 0; token < n; ++token)
    for (int64_t row = 0; row < rows; ++row) {
      y_[token * rows + row] += bias[row];
      dbias_[row] += d[token * rows + row];
      for (int64_t column = 0; column < columns; ++column) {
        const double weight = w.dense[row * columns + column];
        y_[token * rows + row] += weight * x[token * columns + column];
        dx_[token * columns + column] += weight * d[token * rows + row];
        dw_[row * columns + column] += double(d[token * rows + row]) * x[token * columns + column];
      }
    }
  compare("linear", y, y_);
  compare("linear, input gradient", dx, dx_);
  compare("linear, weight gradient", gradients, w.at_weights(dw_));
  compare("linear, bias gradient", dbias, dbias_);
  std::free(work);
}

void check_cross_entropy(int64_t rows, int64_t columns, int64_t n) {
  Matrix w(rows, columns, 0.3, 1);
  const Floats bias = random_floats(rows), x = random_floats(n * columns);
  std::vector<int64_t> targets(n);
  for (int64_t& target : targets) target = generator() % rows;
  Floats dx(n * columns), gradients(w.values.size()), dbias(rows), values_t(w.values.size() + 16);
  float* work = floats(selfish_cross_entropy_floats(n, rows, columns));
  const double loss = selfish_cross_entropy(w.index, w.values.data(), bias.data(), x.data(), targets.data(), n,
                                            dx.data(), gradients.data(), dbias.data(), values_t.data(), work);
  double loss_ = 0;
  std::vector<double> dx_(n * columns), dw_(rows * columns), dbias_(rows), scores(rows);
  for (int64_t token = 0; token < n; ++token) {
    double sum = 0;
    for (int64_t row = 0; row < rows; ++row) {
      scores[row] = bias[row];
      for (int64_t column = 0; column < columns; ++column)
        scores[row] += w.dense[row * columns + column] * x[token * columns + column];
      sum += std::exp(scores[row]);
    }
    loss_ += std::log(sum) - scores[targets[token]];
    for (int64_t row = 0; row < rows; ++row) {
      const double d = (std::exp(scores[row]) / sum - (row == targets[token])) / n;
      dbias_[row] += d;
      for (int64_t column = 0; column < columns; ++column) {
        dx_[token * columns + column] += d * w.dense[row * columns + column];
        dw_[row * columns + column] += d * x[token * columns + column];
      }
    }
  }
  compare("cross entropy", {float(loss)}, {loss_ / n});
  compare("cross entropy, input gradient", dx, dx_);
  compare("cross entropy, weight gradient", gradients, w.at_weights(dw_));
  compare("cross entropy, bias gradient", dbias, dbias_);
  std::free(work);
}

void check_lookup(int64_t rows, int64_t columns, int64_t n) {
  Matrix w(rows, columns, 0.4, 1);
  std::vector<int64_t> tokens(n);
  for (int64_t& token : tokens) token = generator() % rows;
  const Floats d = random_floats(n * columns);
  Floats y(n * columns), gradients(w.values.size());
  selfish_lookup(w.index, w.values.data(), tokens.data(), n, y.data());
  selfish_lookup_backward(w.index, tokens.data(), d.data(), n, gradients.data());
  std::vector<double> y_(n * columns), dw_(rows * columns);
  for (int64_t at = 0; at < n; ++at)
    for (int64_t column = 0; column < columns; ++column) {
      y_[at * columns + column] = w.dense[tokens[at] * columns + column];
      dw_[tokens[at] * columns + column] += d[at * columns + column];
    }
  compare("lookup", y, y_);
  compare("lookup, gradient", gradients, w.at_weights(dw_));
}

double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

// y, the last h and c of a layer, for these numbers; everything in doubles.
struct Layer {
  int64_t kind, steps, batch, inputs, hidden;
  std::vector<double> w, r, bias, recurrent_bias, x, h, c;

  double loss(const std::vector<double>& dy, const std::vector<double>& dh, const std::vector<double>& dc,
              std::vector<double>* y = nullptr, std::vector<double>* last = nullptr) const {
    const int gates = kind == kLstm ? 4 : kind == kGru ? 3 : 1;
    std::vector<double> state = h, cell = c, next(hidden), in(gates * hidden), re(gates * hidden);
    double total = 0;
    for (int64_t step = 0; step < steps; ++step)
      for (int64_t text = 0; text < batch; ++text) {
        for (int64_t row = 0; row < gates * hidden; ++row) {
          in[row] = bias[row], re[row] = recurrent_bias[row];
          for (int64_t at = 0; at < inputs; ++at)
            in[row] += w[row * inputs + at] * x[(step * batch + text) * inputs + at];
          for (int64_t at = 0; at < hidden; ++at) re[row] += r[row * hidden + at] * state[text * hidden + at];
        }
        for (int64_t unit = 0; unit < hidden; ++unit) {
          const auto sum = [&](int gate) { return in[gate * hidden + unit] + re[gate * hidden + unit]; };
          double& carried = cell[text * hidden + unit];
          if (kind == kLstm) {
            carried = sigmoid(sum(1)) * carried + sigmoid(sum(0)) * std::tanh(sum(2));
            next[unit] = sigmoid(sum(3)) * std::tanh(carried);
          } else if (kind == kGru) {
            const double candidate = std::tanh(in[2 * hidden + unit] + sigmoid(sum(0)) * re[2 * hidden + unit]);
            next[unit] = candidate + sigmoid(sum(1)) * (state[text * hidden + unit] - candidate);
          } else {
            next[unit] = kind == kRnnTanh ? std::tanh(sum(0)) : std::max(sum(0), 0.0);
          }
        }
        for (int64_t unit = 0; unit < hidden; ++unit) {
          state[text * hidden + unit] = next[unit];
          total += next[unit] * dy[(step * batch + text) * hidden + unit];
          if (y != nullptr) (*y)[(step * batch + text) * hidden + unit] = next[unit];
        }
      }
    for (int64_t at = 0; at < batch * hidden; ++at) {
      total += state[at] * dh[at];
      if (kind == kLstm) total += cell[at] * dc[at];
    }
    if (last != nullptr) *last = state;
    return total;
  }
};

std::vector<double> doubles(const Floats& numbers) { return {numbers.begin(), numbers.end()}; }

// The gradients of a layer are compared with differences of the doubles' loss, at some of the numbers.
void check_layer(int64_t kind, int64_t steps, int64_t batch, int64_t inputs, int64_t hidden) {
  const int gates = kind == kLstm ? 4 : kind == kGru ? 3 : 1;
  const int64_t rows = gates * hidden, tokens = steps * batch;
  Matrix w(rows, inputs, 0.4, gates), r(rows, hidden, 0.4, gates);
  const Floats bias = random_floats(rows), other = random_floats(rows);
  const Floats x = random_floats(tokens * inputs), h = random_floats(batch * hidden), c = random_floats(batch * hidden);
  const Floats dy = random_floats(tokens * hidden), dh = random_floats(batch * hidden),
               dc = random_floats(batch * hidden);
  const bool gru = kind == kGru;
  Floats both = bias;
  for (int64_t row = 0; row < rows; ++row) both[row] += other[row];

  std::vector<float*> memory;
  const auto take = [&](int64_t count) { return memory.emplace_back(floats(count)); };
  const auto window = [&](int64_t features) { return selfish_panel_floats(tokens, features); };
  const auto step = [&](int64_t features) { return selfish_step_floats(batch, features); };
  Floats y(tokens * hidden), h_last(batch * hidden), c_last(batch * hidden);
  LayerForward forward{};
  forward.shape = {kind, steps, batch, hidden};
  forward.weights = {w.index, w.values.data(), r.index, r.values.data()};
  forward.bias = gru ? bias.data() : both.data();
  forward.recurrent_bias = gru ? other.data() : nullptr;
  forward.x = x.data(), forward.h_first = h.data(), forward.c_first = c.data();
  forward.y = y.data(), forward.h_last = h_last.data(), forward.c_last = c_last.data();
  forward.gates = take(steps * step(rows)), forward.states = take((steps + 1) * step(hidden));
  forward.cells = take((steps + 1) * step(hidden)), forward.extra = take(steps * step(hidden));
  forward.h_panels = take(window(hidden)), forward.x_panels = take(window(inputs)), forward.apart = take(step(rows));
  selfish_layer_forward(&forward);

  Floats dx(tokens * inputs), dh_first(batch * hidden), dc_first(batch * hidden), dw(w.values.size()),
      dr(r.values.size());
  Floats dbias(rows), dother(rows);
  LayerBackward backward{};
  backward.shape = forward.shape, backward.weights = forward.weights, backward.x = forward.x;
  backward.gates = forward.gates, backward.states = forward.states, backward.cells = forward.cells;
  backward.extra = forward.extra, backward.h_panels = forward.h_panels;
  backward.dy = dy.data(), backward.dh_last = dh.data(), backward.dc_last = kind == kLstm ? dc.data() : nullptr;
  backward.gradients = {dx.data(),
                        dh_first.data(),
                        kind == kLstm ? dc_first.data() : nullptr,
                        dw.data(),
                        dr.data(),
                        dbias.data(),
                        gru ? dother.data() : nullptr};
  backward.values_t = take(std::max(w.values.size(), r.values.size())), backward.x_panels = take(window(inputs));
  backward.d_input_panels = take(window(rows)), backward.d_recurrent_panels = take(window(rows));
  backward.d_input = take(2 * step(rows)), backward.d_recurrent = take(2 * step(rows));
  backward.d_state = take(step(hidden)), backward.d_cell = take(step(hidden));
  selfish_layer_backward(&backward);

  Layer plain{kind,    steps,         batch,          inputs,     hidden,     w.dense,
              r.dense, doubles(bias), doubles(other), doubles(x), doubles(h), doubles(c)};
  const auto dy_ = doubles(dy), dh_ = doubles(dh), dc_ = doubles(dc);
  std::vector<double> y_(tokens * hidden), last_;
  plain.loss(dy_, dh_, dc_, &y_, &last_);
  compare("layer", y, y_);
  compare("layer, last state", h_last, last_);
  const auto differences = [&](const char* what, std::vector<double>& numbers, const Floats& found, auto place) {
    Floats some;
    std::vector<double> expected;
    for (size_t at = 0; at < found.size(); at += 1 + found.size() / 12) {
      double& number = numbers[place(at)];
      const double before = number;
      number = before + 1e-5;
      const double above = plain.loss(dy_, dh_, dc_);
      number = before - 1e-5;
      expected.push_back((above - plain.loss(dy_, dh_, dc_)) / 2e-5);
      number = before;
      some.push_back(found[at]);
    }
    compare(what, some, expected);
  };
  const auto itself = [](size_t at) { return at; };
  differences("layer, input gradient", plain.x, dx, itself);
  differences("layer, state gradient", plain.h, dh_first, itself);
  if (kind == kLstm) differences("layer, cell gradient", plain.c, dc_first, itself);
  differences("layer, input weights", plain.w, dw, [&](size_t at) { return w.positions[w.order[at]]; });
  differences("layer, recurrent weights", plain.r, dr, [&](size_t at) { return r.positions[r.order[at]]; });
  differences("layer, bias", plain.bias, dbias, itself);
  if (gru) differences("layer, recurrent bias", plain.recurrent_bias, dother, itself);
  for (float* piece : memory) std::free(piece);
}

}  // namespace

int main() {
  for (int64_t n : {1, 2, 7, 8, 20, 33, 64, 150})
    for (double density : {0.05, 0.33, 0.9}) check_linear(67, 45, n, density);
  for (int64_t n : {1, 5, 24, 70}) check_cross_entropy(90, 41, n);
  for (int64_t n : {1, 9, 60}) check_lookup(50, 37, n);
  for (int64_t kind : {kLstm, kGru, kRnnTanh, kRnnRelu})
    for (int64_t batch : {1, 3, 20}) check_layer(kind, 4, batch, 13, 12);
  std::printf("%d cases, largest difference %.2g, %s\n", cases, largest,
              selfish_threaded() ? "several threads" : "one thread");
  return largest > 2e-5;
}
