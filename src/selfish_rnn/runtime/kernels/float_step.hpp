// The program for the next word with packed matrices in single precision.
#pragma once

#include "../../engine/kernels/lookup.hpp"
#include "../../engine/kernels/products.hpp"
#include "step.hpp"

namespace selfish {
namespace SELFISH_TARGET {

struct PackedMatrices {
  static void multiply(const Operation& operation, const float* x, float* y, const Team& team) {
    const Packed packed(operation.matrix);
    const auto bound = [&](int64_t thread) {  // threads share the weights evenly
      const auto begin = [&](int tile) { return packed.value_start[tile * packed.column_tiles()]; };
      int tile = 0;
      while (tile < packed.row_tiles() && begin(tile) < packed.header->count * thread / team.size) ++tile;
      return thread == team.size ? packed.row_tiles() : tile;
    };
    const int stop = bound(team.thread + 1);
    static thread_local std::vector<float> scaled;
    if (operation.factor != 1) {
      scaled.assign(x, x + operation.count * operation.columns);
      for (float& number : scaled) number *= static_cast<float>(operation.factor);
      x = scaled.data();
    }
    for (int64_t n = 0; n < operation.count; ++n)
      for (int tile = bound(team.thread); tile < stop; ++tile) {
        const int64_t row = packed.first_row(tile);
        float* to = y + n * operation.size + row;
        fill_lines(to, 1, packed.first_row(tile + 1) - row, operation.bias == nullptr ? nullptr : operation.bias + row);
        for (int column_tile = 0; column_tile < packed.column_tiles(); ++column_tile)
          spmm(1, packed.tile(tile, column_tile), operation.values,
               x + n * operation.columns + packed.first_column(column_tile), to);
      }
  }
  static void lookup(const Operation& operation, int64_t row, float* y) {
    SELFISH_TARGET::lookup(Packed(operation.matrix), operation.values, &row, 1, y);
  }
};

}  // namespace SELFISH_TARGET
}  // namespace selfish
