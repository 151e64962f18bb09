// The packed form of a sparse matrix: which weights exist, laid out for the products that training needs.
//
// The matrix is cut into tiles of at most 256 rows and 256 columns. Inside a tile a row that has weights is one entry
// (its row in the tile, how many weights); entries are sorted by their number of weights, so that runs of equal
// length follow each other. The values of the weights lie in a separate array, tile after tile (a row of tiles first),
// entry after entry. Gradients and optimizer states lie in the same order.
//
// In a very sparse matrix a row of such a tile has hardly a weight. It is cut into large tiles, of up to 65536 rows and
// columns, whose numbers take twice the bits; everything else is the same. Local is the type of these numbers.
//
// For products with the transposed matrix there is a second list of entries, one for each column of a tile, and for
// each of its weights where in the tile its value lies.
//
// Everything but the values is one block of memory, so that it can be saved, copied and moved as one tensor.
#pragma once

#include "abi.hpp"

namespace selfish {

constexpr int64_t kFormat = 0x31574b43;       // changes with the layout
constexpr int64_t kLargeFormat = 0x314c4b43;  // of large tiles
constexpr int64_t kAlignment = 64;
constexpr int64_t kSpareEntries = 4;  // kernels look a few entries ahead

// The longest side of a tile: a row, a column in it and a count minus one fit a Local, a weight a Source.
template <class Local>
constexpr int64_t kLongestSide = int64_t{1} << (8 * sizeof(Local));

template <class Local>
struct SourceOf {
  typedef uint16_t type;
};
template <>
struct SourceOf<uint16_t> {
  typedef uint32_t type;
};

// Calls work with a number of the type that tiles have.
template <class Work>
inline auto with_local(bool large, Work work) {
  return large ? work(uint16_t{}) : work(uint8_t{});
}

enum Section : int {
  kRowBounds,
  kValueStart,
  kEntryStart,
  kEntryStartT,
  kEntries,
  kEntriesT,
  kColumn,
  kRowT,
  kSource,
  kSections
};

static_assert(sizeof(IndexHeader::offset) == kSections * sizeof(int64_t), "the header has an offset for every section");

template <class Local>
struct Entry {
  Local line;             // row, or in the transposed list column, inside the tile
  Local count_minus_one;  // number of weights minus one
};

// Fills in where the sections lie and what they take together, from everything else the header says.
inline void lay_out(IndexHeader& header) {
  const int64_t tiles = header.row_tiles * header.column_tiles;
  int64_t length[kSections];
  length[kRowBounds] = 4 * (header.row_tiles + 1);
  length[kValueStart] = 8 * (tiles + 1);
  length[kEntryStart] = length[kEntryStartT] = 4 * (tiles + 1);
  with_local(header.format == kLargeFormat, [&](auto local) {
    using Local = decltype(local);
    length[kEntries] = sizeof(Entry<Local>) * (header.entries + kSpareEntries);
    length[kEntriesT] = sizeof(Entry<Local>) * (header.entries_t + kSpareEntries);
    length[kColumn] = length[kRowT] = sizeof(Local) * header.count;
    length[kSource] = sizeof(typename SourceOf<Local>::type) * header.count;
  });
  const auto aligned = [](int64_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; };
  int64_t at = aligned(sizeof(IndexHeader));
  for (int section = 0; section < kSections; ++section) {
    header.offset[section] = at;
    at += aligned(length[section]);
  }
  header.bytes = at;
}

// One direction of one tile, as the kernels take it.
template <class Local>
struct TileOf {
  const Entry<Local>* entries;
  int count;
  const Local* local;   // for each weight: its column in the tile (transposed: its row)
  int64_t start, stop;  // of its values
};

// The same before it is known what its numbers are.
struct Tile {
  bool large;
  const void* entries;
  int count;
  const void* local;
  int64_t start, stop;

  template <class Local>
  TileOf<Local> of() const {
    return {static_cast<const Entry<Local>*>(entries), count, static_cast<const Local*>(local), start, stop};
  }
};

struct Packed {
  const IndexHeader* header;
  const int32_t* row_bounds;     // row_tiles + 1
  const int64_t* value_start;    // tiles + 1
  const int32_t* entry_start;    // tiles + 1
  const int32_t* entry_start_t;  // tiles + 1
  bool large;                    // tiles: the rest are Entry<Local>, Local and SourceOf<Local>
  const char* entries;
  const char* entries_t;
  const char* column;  // for each weight
  const char* row_t;   // for each weight in transposed order
  const char* source;  // for each weight in transposed order: its place in the tile's values

  explicit Packed(const void* memory) : header(static_cast<const IndexHeader*>(memory)) {
    const char* base = static_cast<const char*>(memory);
    const int64_t* at = header->offset;
    row_bounds = reinterpret_cast<const int32_t*>(base + at[kRowBounds]);
    value_start = reinterpret_cast<const int64_t*>(base + at[kValueStart]);
    entry_start = reinterpret_cast<const int32_t*>(base + at[kEntryStart]);
    entry_start_t = reinterpret_cast<const int32_t*>(base + at[kEntryStartT]);
    large = header->format == kLargeFormat;
    entries = base + at[kEntries];
    entries_t = base + at[kEntriesT];
    column = base + at[kColumn];
    row_t = base + at[kRowT];
    source = base + at[kSource];
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
    return tile_of(row_tile, column_tile, entries, entry_start, column);
  }
  Tile tile_t(int row_tile, int column_tile) const {
    return tile_of(row_tile, column_tile, entries_t, entry_start_t, row_t);
  }
  template <class Local>
  const typename SourceOf<Local>::type* sources() const {
    return reinterpret_cast<const typename SourceOf<Local>::type*>(source);
  }

 private:
  Tile tile_of(int row_tile, int column_tile, const char* first_entry, const int32_t* entry_start_,
               const char* local) const {
    const int index = row_tile * column_tiles() + column_tile;
    const int64_t bytes = large ? sizeof(uint16_t) : sizeof(uint8_t);
    return {large,
            first_entry + 2 * bytes * entry_start_[index],
            entry_start_[index + 1] - entry_start_[index],
            local + bytes * value_start[index],
            value_start[index],
            value_start[index + 1]};
  }
};

}  // namespace selfish
