// The packed form of a sparse matrix: which weights exist, laid out for the products that training needs.
//
// The matrix is cut into tiles of at most 256 rows and 256 columns. Inside a tile a row that has weights is one entry
// (its row in the tile, how many weights); entries are sorted by their number of weights, so that runs of equal
// length follow each other. The values of the weights lie in a separate array, tile after tile (a row of tiles first),
// entry after entry. Gradients and optimizer states lie in the same order.
//
// For products with the transposed matrix there is a second list of entries, one for each column of a tile, and for
// each of its weights where in the tile its value lies.
//
// Everything but the values is one block of memory, so that it can be saved, copied and moved as one tensor.
#pragma once

#include "abi.hpp"

namespace selfish {

constexpr int64_t kFormat = 0x31574b43;  // changes with the layout
constexpr int64_t kLargestTile = 256;    // a row, a column in a tile and a count minus one fit 8 bits, a weight 16
constexpr int64_t kAlignment = 64;
constexpr int64_t kSpareEntries = 4;     // kernels look a few entries ahead

enum Section : int { kRowBounds, kValueStart, kEntryStart, kEntryStartT, kEntries, kEntriesT, kColumn, kRowT, kSource, kSections };

static_assert(sizeof(IndexHeader::offset) == kSections * sizeof(int64_t), "the header has an offset for every section");

struct Entry {
  uint8_t line;             // row, or in the transposed list column, inside the tile
  uint8_t count_minus_one;  // number of weights minus one
};

// One direction of one tile, as the kernels take it.
struct Tile {
  const Entry* entries;
  int count;
  const uint8_t* local;  // for each weight: its column in the tile (transposed: its row)
  int64_t start, stop;   // of its values
};

struct Packed {
  const IndexHeader* header;
  const int32_t* row_bounds;     // row_tiles + 1
  const int64_t* value_start;    // tiles + 1
  const int32_t* entry_start;    // tiles + 1
  const int32_t* entry_start_t;  // tiles + 1
  const Entry* entries;
  const Entry* entries_t;
  const uint8_t* column;    // for each weight
  const uint8_t* row_t;     // for each weight in transposed order
  const uint16_t* source;   // for each weight in transposed order: its place in the tile's values

  explicit Packed(const void* memory) : header(static_cast<const IndexHeader*>(memory)) {
    const char* base = static_cast<const char*>(memory);
    const int64_t* at = header->offset;
    row_bounds = reinterpret_cast<const int32_t*>(base + at[kRowBounds]);
    value_start = reinterpret_cast<const int64_t*>(base + at[kValueStart]);
    entry_start = reinterpret_cast<const int32_t*>(base + at[kEntryStart]);
    entry_start_t = reinterpret_cast<const int32_t*>(base + at[kEntryStartT]);
    entries = reinterpret_cast<const Entry*>(base + at[kEntries]);
    entries_t = reinterpret_cast<const Entry*>(base + at[kEntriesT]);
    column = reinterpret_cast<const uint8_t*>(base + at[kColumn]);
    row_t = reinterpret_cast<const uint8_t*>(base + at[kRowT]);
    source = reinterpret_cast<const uint16_t*>(base + at[kSource]);
  }

  int64_t rows() const { return header->rows; }
  int64_t columns() const { return header->columns; }
  int row_tiles() const { return static_cast<int>(header->row_tiles); }
  int column_tiles() const { return static_cast<int>(header->column_tiles); }
  int tiles() const { return row_tiles() * column_tiles(); }
  int64_t first_row(int row_tile) const { return row_bounds[row_tile]; }
  int64_t first_column(int column_tile) const {
    const int64_t first = column_tile * header->tile_columns;
    return first < header->columns ? first : header->columns;
  }

  Tile tile(int row_tile, int column_tile) const {
    const int index = row_tile * column_tiles() + column_tile;
    return {entries + entry_start[index], entry_start[index + 1] - entry_start[index], column + value_start[index],
            value_start[index], value_start[index + 1]};
  }
  Tile tile_t(int row_tile, int column_tile) const {
    const int index = row_tile * column_tiles() + column_tile;
    return {entries_t + entry_start_t[index], entry_start_t[index + 1] - entry_start_t[index],
            row_t + value_start[index], value_start[index], value_start[index + 1]};
  }
};

}  // namespace selfish
