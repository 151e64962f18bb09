// Laying matrices out for the kernels of a processor.
#pragma once

#include <limits>

#include "matrices.hpp"
#include "windows_packing.hpp"

namespace selfish {

// The existing weights of a matrix in the order of their positions: float32, or int8 with a scale for each row.
struct SavedMatrix {
  int64_t rows = 0, columns = 0;
  std::vector<int64_t> first;    // rows + 1: the first weight of each row
  std::vector<uint32_t> column;  // of each weight
  std::vector<float> values;     // float32, or
  std::vector<int8_t> bytes;     // int8
  std::vector<float> scale;      // of int8

  bool is_int8() const { return !scale.empty(); }
  int64_t count() const { return first.back(); }
  double density() const {
    return static_cast<double>(count()) / static_cast<double>(rows) / static_cast<double>(columns);
  }
  float value(int64_t row, int64_t weight) const {
    return is_int8() ? static_cast<float>(bytes[weight]) * scale[row] : values[weight];
  }
};

// A matrix laid out, and the memory it lies in.
class LaidOutMatrix {
 public:
  Matrix matrix{};

  // As float or int8, in the layout that is estimated to be the faster one, given the bytes that all matrices of the
  // program would take if they were dense. Float is for int8 weights, too: they are multiplied by the scales of rows.
  static LaidOutMatrix as_float(const SavedMatrix& saved, const MatrixRules& rules, double program_bytes) {
    const bool dense = dense_is_faster(saved, rules.float_costs, sizeof(float), program_bytes);
    return dense ? dense_float(saved, rules) : sparse_float(saved, rules);
  }
  static LaidOutMatrix as_int8(const SavedMatrix& saved, const MatrixRules& rules, double program_bytes,
                               int64_t together) {
    const Blocks blocks(saved, rules.height / kBlockRows);
    const float of_blocks = blocks.cost(rules.int8_costs);
    if (blocks.fit && of_blocks < sparse_cost(saved, rules.int8_costs) &&
        of_blocks < dense_cost(saved, rules.int8_costs, 1, program_bytes))
      return blocks_int8(saved, rules, blocks);
    const bool dense = dense_is_faster(saved, rules.int8_costs, 1, program_bytes);
    return dense ? dense_int8(saved, rules) : sparse_int8(saved, rules, together);
  }

  static float dense_cost(const SavedMatrix& saved, const MatrixCosts& costs, int64_t width, double program_bytes) {
    constexpr double kFirstCache = 40 << 10, kSecondCache = 800 << 10;
    const float byte = program_bytes <= kFirstCache    ? costs.first_cache
                       : program_bytes <= kSecondCache ? costs.second_cache
                                                       : costs.memory;
    return byte * static_cast<float>(width) * static_cast<float>(saved.rows) * static_cast<float>(saved.columns);
  }
  static float sparse_cost(const SavedMatrix& saved, const MatrixCosts& costs) {
    return costs.weight * static_cast<float>(saved.count()) + costs.row * static_cast<float>(saved.rows);
  }
  static bool dense_is_faster(const SavedMatrix& saved, const MatrixCosts& costs, int64_t width, double program_bytes) {
    // A large matrix that is nearly empty never becomes dense, whatever the estimate says: it takes the memory.
    return saved.density() >= 0.02 && dense_cost(saved, costs, width, program_bytes) <= sparse_cost(saved, costs);
  }

  static LaidOutMatrix as_rows(const SavedMatrix& saved) {
    LaidOutMatrix made(saved, kRowsFloat);
    float* values = made.take<float>(saved.rows * saved.columns);
    for (int64_t row = 0; row < saved.rows; ++row)
      for (int64_t at = saved.first[row]; at < saved.first[row + 1]; ++at)
        values[row * saved.columns + saved.column[at]] = saved.value(row, at);
    made.matrix.values = values;
    return made;
  }

  int64_t bytes() const { return bytes_; }

 private:
  std::vector<FreshMemory> memory_;
  int64_t bytes_ = 0;

  // The blocks that hold a weight, by strips of 8 rows. Strips with equally many blocks are neighbours in a group.
  struct Blocks {
    bool fit;                               // rows and columns divide into blocks, and columns fit a base
    std::vector<std::vector<uint32_t>> of;  // of each strip: its blocks, columns divided by 4
    std::vector<int32_t> order;             // of strips
    int64_t strips = 0, steps = 0;

    Blocks(const SavedMatrix& saved, int64_t strips_of_group)
        : fit(saved.rows % kBlockRows == 0 && saved.columns % kBlockColumns == 0 && saved.columns <= kMostColumns) {
      if (!fit) return;
      of.resize(saved.rows / kBlockRows), order.resize(of.size());
      for (size_t strip = 0; strip < of.size(); ++strip) {
        std::vector<uint32_t>& blocks = of[strip];
        const int64_t from = saved.first[strip * kBlockRows], to = saved.first[(strip + 1) * kBlockRows];
        for (int64_t at = from; at < to; ++at) blocks.push_back(saved.column[at] / kBlockColumns);
        std::sort(blocks.begin(), blocks.end());
        blocks.erase(std::unique(blocks.begin(), blocks.end()), blocks.end());
      }
      std::iota(order.begin(), order.end(), 0);
      std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) { return of[a].size() < of[b].size(); });
      strips = strips_of_group;
      for (int64_t group = 0; group * strips < static_cast<int64_t>(of.size()); ++group) steps += steps_of(group);
    }

    int64_t members(int64_t group) const {
      return std::min<int64_t>(strips, static_cast<int64_t>(of.size()) - group * strips);
    }
    int64_t steps_of(int64_t group) const {  // the last strip of a group has the most blocks
      return static_cast<int64_t>(of[order[group * strips + members(group) - 1]].size());
    }
    float cost(const MatrixCosts& costs) const {
      const auto weights = static_cast<float>(steps * strips * kBlockRows * kBlockColumns);
      // A strip stores its sums at once, where a sparse row scatters its own.
      return costs.block * weights + costs.row / 4 * static_cast<float>(of.size() * kBlockRows);
    }
  };

  LaidOutMatrix(const SavedMatrix& saved, MatrixLayout layout) {
    matrix.layout = layout, matrix.rows = saved.rows, matrix.columns = saved.columns;
  }

  // Zeros, and a few more behind them that kernels may read.
  template <class Number>
  Number* take(int64_t count) {
    const int64_t bytes = count * static_cast<int64_t>(sizeof(Number)) + 64;
    memory_.emplace_back(bytes);
    ask_large_pages(memory_.back().begin(), bytes);
    std::memset(memory_.back().begin(), 0, bytes);
    bytes_ += bytes;
    return reinterpret_cast<Number*>(memory_.back().begin());
  }

  static LaidOutMatrix dense_float(const SavedMatrix& saved, const MatrixRules& rules) {
    LaidOutMatrix made(saved, kDenseFloat);
    const int64_t lanes = rules.lanes, groups = (saved.rows + lanes - 1) / lanes, columns = saved.columns;
    float* values = made.take<float>(groups * lanes * columns);
    for (int64_t row = 0; row < saved.rows; ++row) {
      const int64_t block = row / (lanes * rules.float_block) * rules.float_block;
      const int64_t vectors = std::min(rules.float_block, groups - block);
      float* to = values + block * lanes * columns + row - block * lanes;
      for (int64_t at = saved.first[row]; at < saved.first[row + 1]; ++at)
        to[saved.column[at] * vectors * lanes] = saved.value(row, at);
    }
    made.matrix.groups = groups, made.matrix.values = values;
    return made;
  }

  static LaidOutMatrix sparse_float(const SavedMatrix& saved, const MatrixRules& rules) {
    LaidOutMatrix made(saved, kSparseFloat);
    const int64_t lanes = rules.lanes, groups = (saved.rows + lanes - 1) / lanes;
    std::vector<int32_t> order(saved.rows);
    std::iota(order.begin(), order.end(), 0);
    const auto length = [&](int32_t row) { return saved.first[row + 1] - saved.first[row]; };
    for (int64_t row = 0; row < saved.rows; row += kStretch)
      std::stable_sort(order.begin() + row, order.begin() + std::min(saved.rows, row + kStretch),
                       [&](int32_t a, int32_t b) { return length(a) < length(b); });
    const auto members = [&](int64_t group) { return static_cast<int>(std::min(lanes, saved.rows - group * lanes)); };
    // Every step has the least column that any row still has as its base, and from each row its next weight in reach.
    const auto walk = [&](int64_t group, auto give) {
      int64_t next[kMostHeight], stop[kMostHeight];
      for (int lane = 0; lane < members(group); ++lane) {
        const int32_t row = order[group * lanes + lane];
        next[lane] = saved.first[row], stop[lane] = saved.first[row + 1];
      }
      for (int64_t step = 0;; ++step) {
        uint32_t base = std::numeric_limits<uint32_t>::max();
        for (int lane = 0; lane < members(group); ++lane)
          if (next[lane] < stop[lane]) base = std::min(base, saved.column[next[lane]]);
        if (base == std::numeric_limits<uint32_t>::max()) return step;
        for (int lane = 0; lane < members(group); ++lane)
          if (next[lane] < stop[lane] && saved.column[next[lane]] - base < rules.window)
            give(step, base, lane, next[lane]++);
      }
    };
    auto* first = made.take<uint32_t>(groups + 1);
    auto* row = made.take<int32_t>(groups * lanes);
    for (int64_t group = 0; group < groups; ++group) {
      const int64_t steps = first[group] + walk(group, [](int64_t, uint32_t, int, int64_t) {});
      if (steps >= std::numeric_limits<uint32_t>::max()) throw std::runtime_error("has a matrix that is too large");
      first[group + 1] = static_cast<uint32_t>(steps);
    }
    const int64_t steps = first[groups];
    auto* values = made.take<float>(steps * lanes);
    auto* codes = made.take<uint8_t>(steps * lanes);
    auto* bases = made.take<uint32_t>(steps);
    for (int64_t group = 0; group < groups; ++group) {
      for (int64_t lane = 0; lane < lanes; ++lane)
        row[group * lanes + lane] = lane < members(group) ? order[group * lanes + lane] : -1;
      walk(group, [&](int64_t step, uint32_t base, int lane, int64_t weight) {
        const int64_t at = first[group] + step;
        bases[at] = base;
        values[at * lanes + lane] = saved.value(order[group * lanes + lane], weight);
        codes[at * lanes + lane] = static_cast<uint8_t>(saved.column[weight] - base);
      });
    }
    made.matrix.groups = groups, made.matrix.values = values, made.matrix.codes = codes, made.matrix.base = bases;
    made.matrix.first = first, made.matrix.row = row;
    return made;
  }

  static LaidOutMatrix dense_int8(const SavedMatrix& saved, const MatrixRules& rules) {
    LaidOutMatrix made(saved, kDenseInt8);
    const int64_t height = rules.height, groups = (saved.rows + height - 1) / height, steps = (saved.columns + 3) / 4;
    auto* bytes = made.take<int8_t>(groups * height * steps * 4);
    auto* scale = made.take<float>(groups * height);
    auto* correction = made.take<int32_t>(groups * height);
    for (int64_t row = 0; row < saved.rows; ++row) {
      const int64_t block = row / (height * rules.int8_block) * rules.int8_block;
      const int64_t members = std::min(rules.int8_block, groups - block), step = members * height * 4;
      int8_t* to = bytes + block * height * steps * 4 + (row - block * height) * 4;
      scale[row] = saved.scale[row];
      for (int64_t at = saved.first[row]; at < saved.first[row + 1]; ++at) {
        to[saved.column[at] / 4 * step + saved.column[at] % 4] = saved.bytes[at];
        correction[row] += 128 * saved.bytes[at];
      }
    }
    made.matrix.groups = groups, made.matrix.bytes = bytes, made.matrix.scale = scale;
    made.matrix.correction = correction;
    return made;
  }

  static LaidOutMatrix blocks_int8(const SavedMatrix& saved, const MatrixRules& rules, const Blocks& blocks) {
    LaidOutMatrix made(saved, kBlocksInt8);
    const int64_t height = rules.height, strips = blocks.strips;
    const auto groups = (static_cast<int64_t>(blocks.of.size()) + strips - 1) / strips;
    auto* first = made.take<uint32_t>(groups + 1);
    auto* row = made.take<int32_t>(groups * strips);
    auto* base = made.take<uint32_t>(blocks.steps);
    auto* bytes = made.take<int8_t>(blocks.steps * height * kBlockColumns);
    auto* scale = made.take<float>(saved.rows);
    auto* correction = made.take<int32_t>(saved.rows);
    std::fill(row, row + groups * strips, -1);
    for (int64_t group = 0; group < groups; ++group) {
      first[group + 1] = first[group] + static_cast<uint32_t>(blocks.steps_of(group));
      for (int64_t place = 0; place < blocks.members(group); ++place) {
        const int32_t strip = blocks.order[group * strips + place];
        const std::vector<uint32_t>& columns = blocks.of[strip];
        row[group * strips + place] = static_cast<int32_t>(strip * kBlockRows);
        for (size_t step = 0; step < columns.size(); ++step) base[first[group] + step] |= columns[step] << 16 * place;
        for (int64_t line = 0; line < kBlockRows; ++line) {
          const int64_t from = strip * kBlockRows + line;
          scale[from] = saved.scale[from];
          for (int64_t at = saved.first[from]; at < saved.first[from + 1]; ++at) {
            const uint32_t column = saved.column[at];
            const auto step =
                std::lower_bound(columns.begin(), columns.end(), column / kBlockColumns) - columns.begin();
            const int64_t lane = place * kBlockRows + line;
            bytes[((first[group] + step) * height + lane) * kBlockColumns + column % kBlockColumns] = saved.bytes[at];
            correction[from] += 128 * saved.bytes[at];
          }
        }
      }
    }
    made.matrix.groups = groups, made.matrix.first = first, made.matrix.row = row, made.matrix.base = base;
    made.matrix.bytes = bytes, made.matrix.scale = scale, made.matrix.correction = correction;
    return made;
  }

  static LaidOutMatrix sparse_int8(const SavedMatrix& saved, const MatrixRules& rules, int64_t together) {
    LaidOutMatrix made(saved, kSparseInt8);
    const std::vector<uint16_t> column(saved.column.begin(), saved.column.end());
    const Int8Weights weights{saved.rows,         saved.columns, saved.count(),      together,
                              saved.first.data(), column.data(), saved.bytes.data(), saved.scale.data()};
    const WindowsPacking packing(weights, rules.height, rules.planes_for(weights));
    made.bytes_ = packing.header().bytes;
    made.memory_.emplace_back(made.bytes_);
    packing.build(made.memory_.back().begin());
    made.matrix.windows = made.memory_.back().begin();
    return made;
  }
};

}  // namespace selfish
