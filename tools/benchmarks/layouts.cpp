// Times of a product of a 3N x N matrix with a vector in all layouts, which the costs in
// runtime/kernels/execution.hpp are taken from. From the top of the repository:
//
//   selfish-rnn header
//   g++ -std=c++17 -O3 -march=native -I. tools/benchmarks/layouts.cpp -o layouts && ./layouts
#define SRNN_IMPLEMENTATION
#include "selfish_rnn.h"

#include <cstdio>
#include <ctime>
#include <random>

using namespace selfish;

double nanoseconds() {
  timespec now;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) * 1e9 + static_cast<double>(now.tv_nsec);
}

// Weights exist in blocks of so many rows and columns.
SavedMatrix random_matrix(int64_t rows, int64_t columns, double density, bool int8, int64_t tall = 1,
                          int64_t wide = 1) {
  std::mt19937 random(1);
  std::bernoulli_distribution chance(density);
  std::vector<bool> exists(rows / tall * (columns / wide));
  for (size_t block = 0; block < exists.size(); ++block) exists[block] = chance(random);
  SavedMatrix made;
  made.rows = rows, made.columns = columns, made.first = {0};
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t column = 0; column < columns; ++column) {
      if (!exists[row / tall * (columns / wide) + column / wide]) continue;
      made.column.push_back(static_cast<uint32_t>(column));
      if (int8)
        made.bytes.push_back(static_cast<int8_t>(1 + random() % 100));
      else
        made.values.push_back(0.01f * static_cast<float>(random() % 100));
    }
    made.first.push_back(static_cast<int64_t>(made.column.size()));
  }
  if (int8) made.scale.assign(static_cast<size_t>(rows), 0.01f);
  return made;
}

int main() {
  const char* const kNames[] = {"dense float32", "sparse float32", "dense int8", "sparse int8", "blocks int8"};
  std::printf("%s\nunits density", srnn_kernels());
  for (const char* name : kNames) std::printf(" %14s", name);
  std::printf(" (ns)\n");
  for (int64_t units : {24, 64, 128, 256, 384, 512}) {
    for (double density : {1.0, 0.6, 0.5, 0.4, 0.33, 0.25, 0.2, 0.1, 0.05}) {
      std::printf("%5d %7.2f", static_cast<int>(units), density);
      for (int kind = 0; kind < 5; ++kind) {
        const bool blocks = kind == 4;
        const SavedMatrix saved =
            random_matrix(3 * units, units, density, kind >= 2, blocks ? kBlockRows : 1, blocks ? kBlockColumns : 1);
        MatrixRules rules = step_kernels().rules;
        rules.float_costs = rules.int8_costs = blocks          ? MatrixCosts{1, 1, 0, 1, 1, 1}
                                               : kind % 2 == 0 ? MatrixCosts{1e9f, 0, 2e9f, 0, 0, 0}
                                                               : MatrixCosts{0, 0, 1, 1, 1, 1};
        const LaidOutMatrix laid_out =
            kind >= 2 ? LaidOutMatrix::as_int8(saved, rules, 0, 0) : LaidOutMatrix::as_float(saved, rules, 0);
        std::vector<float> x(units + 64, 0.5f), y(3 * units + 64);
        std::vector<uint8_t> activations(units + 1024);
        Operation product{};
        product.matrix = &laid_out.matrix, product.count = 1;
        const int64_t times = std::max<int64_t>(3, 20000000 / (3 * units * units));
        double best = 1e18;
        for (int round = 0; round < 9; ++round) {
          const double start = nanoseconds();
          for (int64_t at = 0; at < times; ++at)
            native::multiply(product, x.data(), y.data(), activations.data(), native::Team::alone());
          best = std::min(best, (nanoseconds() - start) / static_cast<double>(times));
        }
        std::printf(" %14.0f", best);
      }
      std::printf("\n");
    }
  }
}
