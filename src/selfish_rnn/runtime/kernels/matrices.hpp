// Matrices of a program as the step reads them: four layouts, and the rows of an embedding.
//
//   dense float   blocks of a few vectors of rows; in a block the weights of all its rows lie column by column
//   sparse float  groups of rows; a step of a group has for each row a weight and a code, its column less the base of
//                 the step; bases and weights slide over the columns as in windows.hpp, one weight a row and step
//   dense int8    blocks of a few groups of rows; in a block the weights lie by four columns, row by row
//   sparse int8   see windows.hpp
//   blocks int8   strips of 8 rows, one or two in a group; a step of a group has for each strip 8 x 4 weights and the
//                 columns they belong to, divided by 4, in 16 bits of its base
//   rows          float, row after row, for embeddings that nothing multiplies
#pragma once

#include "windows.hpp"

namespace selfish {

enum MatrixLayout : int64_t { kDenseFloat, kSparseFloat, kDenseInt8, kSparseInt8, kBlocksInt8, kRowsFloat };

constexpr int64_t kBlockRows = 8, kBlockColumns = 4;

// A matrix in memory; what a layout does not use is null.
struct Matrix {
  int64_t layout, rows, columns;
  int64_t groups;             // of rows; of dense float: vectors of rows
  const float* values;        // dense and sparse float, rows
  const uint8_t* codes;       // sparse float: one for each weight
  const uint32_t* base;       // sparse float, blocks: of each step
  const uint32_t* first;      // sparse float, blocks: the first step of each group, and the end
  const int32_t* row;         // sparse float: the row of each lane; blocks: the first row of each strip; -1 for none
  const int8_t* bytes;        // dense int8, blocks
  const float* scale;         // dense int8, blocks: of each row
  const int32_t* correction;  // dense int8, blocks: 128 times the sum of each row
  const void* windows;        // sparse int8
};

// What products cost on a processor, in picoseconds: a sparse one for each weight and each row, one of blocks for each
// weight that a block has room for, a dense one for each byte as long as all dense matrices of a program fit in the
// first cache, in the second, or in neither.
struct MatrixCosts {
  float weight, row, block, first_cache, second_cache, memory;
};

// How the kernels of a processor want matrices.
struct MatrixRules {
  int64_t height;       // rows of a group in int8
  int64_t int8_block;   // groups of rows in a block of a dense int8 matrix
  int64_t lanes;        // rows of a vector or group in float
  int64_t float_block;  // vectors of rows in a block of a dense float matrix
  int64_t window;       // columns that a code reaches
  MatrixCosts float_costs, int8_costs;
  int (*planes_for)(const Int8Weights& weights);
};

}  // namespace selfish
