// Building, checking and reading back the packed form. None of this is bound by arithmetic, so it is built once, for
// any processor.
#include <algorithm>
#include <cstring>
#include <memory>
#include <vector>

#include "packed.hpp"

namespace selfish {
namespace {

struct Shape {
  int64_t rows, columns, count, row_tiles, column_tiles, tile_columns;
  const int32_t* row_bounds;
  const int64_t* positions;  // sorted, row-major

  int64_t tiles() const { return row_tiles * column_tiles; }

  // Where the weights of each row of a row tile that lie in each of its tiles start: (rows + 1) x (column_tiles + 1).
  void segments(int64_t row_tile, std::vector<int64_t>& start) const {
    const int64_t first = row_bounds[row_tile], height = row_bounds[row_tile + 1] - first;
    start.resize(height * (column_tiles + 1));
    const int64_t* end = positions + count;
    const int64_t* here = std::lower_bound(positions, end, first * columns);
    for (int64_t row = 0; row < height; ++row) {
      const int64_t base = (first + row) * columns;
      int64_t* of_row = start.data() + row * (column_tiles + 1);
      of_row[0] = here - positions;
      for (int64_t tile = 0; tile < column_tiles; ++tile) {
        const int64_t limit = base + std::min((tile + 1) * tile_columns, columns);
        while (here != end && *here < limit) ++here;
        of_row[tile + 1] = here - positions;
      }
    }
  }
};

struct TileSizes {
  int64_t values, entries, entries_t;
};

void measure_row_tile(const Shape& shape, int64_t row_tile, TileSizes* sizes) {
  std::vector<int64_t> start;
  shape.segments(row_tile, start);
  const int64_t height = shape.row_bounds[row_tile + 1] - shape.row_bounds[row_tile];
  for (int64_t tile = 0; tile < shape.column_tiles; ++tile) {
    TileSizes size{0, 0, 0};
    bool occupied[kLargestTile] = {};
    for (int64_t row = 0; row < height; ++row) {
      const int64_t* of_row = start.data() + row * (shape.column_tiles + 1) + tile;
      size.values += of_row[1] - of_row[0];
      size.entries += of_row[1] > of_row[0];
      const int64_t base = (shape.row_bounds[row_tile] + row) * shape.columns + tile * shape.tile_columns;
      for (int64_t at = of_row[0]; at < of_row[1]; ++at) occupied[shape.positions[at] - base] = true;
    }
    for (bool column : occupied) size.entries_t += column;
    sizes[tile] = size;
  }
}

std::vector<TileSizes> measure(const Shape& shape) {
  std::vector<TileSizes> sizes(shape.tiles());
#pragma omp parallel for schedule(dynamic, 1)
  for (int64_t row_tile = 0; row_tile < shape.row_tiles; ++row_tile)
    measure_row_tile(shape, row_tile, sizes.data() + row_tile * shape.column_tiles);
  return sizes;
}

int64_t aligned(int64_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

IndexHeader plan(const Shape& shape, const std::vector<TileSizes>& sizes) {
  IndexHeader header{};
  header.format = kFormat;
  header.rows = shape.rows, header.columns = shape.columns, header.count = shape.count;
  header.row_tiles = shape.row_tiles, header.column_tiles = shape.column_tiles;
  header.tile_columns = shape.tile_columns;
  for (const TileSizes& size : sizes) header.entries += size.entries, header.entries_t += size.entries_t;
  const int64_t tiles = shape.tiles();
  int64_t length[kSections];
  length[kRowBounds] = 4 * (shape.row_tiles + 1);
  length[kValueStart] = 8 * (tiles + 1);
  length[kEntryStart] = length[kEntryStartT] = 4 * (tiles + 1);
  length[kEntries] = 2 * (header.entries + kSpareEntries);
  length[kEntriesT] = 2 * (header.entries_t + kSpareEntries);
  length[kColumn] = length[kRowT] = shape.count;
  length[kSource] = 2 * shape.count;
  int64_t at = aligned(sizeof(IndexHeader));
  for (int section = 0; section < kSections; ++section) {
    header.offset[section] = at;
    at += aligned(length[section]);
  }
  header.bytes = at;
  return header;
}

// The lines of a tile that have weights, longest first, equal ones in their order.
int sort_lines(const int* counts, int64_t lines, Entry* entries, int* order) {
  int starts[kLargestTile + 2] = {};
  for (int64_t line = 0; line < lines; ++line) ++starts[kLargestTile - counts[line] + 1];
  for (int64_t length = 1; length <= kLargestTile + 1; ++length) starts[length] += starts[length - 1];
  const int occupied = starts[kLargestTile];
  for (int64_t line = 0; line < lines; ++line) {
    if (counts[line] == 0) continue;
    const int at = starts[kLargestTile - counts[line]]++;
    entries[at] = {static_cast<uint8_t>(line), static_cast<uint8_t>(counts[line] - 1)};
    order[at] = static_cast<int>(line);
  }
  return occupied;
}

void fill_row_tile(const Shape& shape, int64_t row_tile, char* memory, int32_t* order) {
  const Packed packed(memory);
  std::vector<int64_t> start;
  shape.segments(row_tile, start);
  const int64_t first = shape.row_bounds[row_tile], height = shape.row_bounds[row_tile + 1] - first;
  uint8_t* columns = const_cast<uint8_t*>(packed.column);
  uint8_t* rows_t = const_cast<uint8_t*>(packed.row_t);
  uint16_t* sources = const_cast<uint16_t*>(packed.source);
  for (int64_t tile = 0; tile < shape.column_tiles; ++tile) {
    const int64_t index = row_tile * shape.column_tiles + tile;
    const int64_t value_start = packed.value_start[index];
    int counts[kLargestTile] = {}, counts_t[kLargestTile] = {}, lines[kLargestTile];
    for (int64_t row = 0; row < height; ++row) {
      const int64_t* of_row = start.data() + row * (shape.column_tiles + 1) + tile;
      counts[row] = static_cast<int>(of_row[1] - of_row[0]);
    }
    Entry* entries = const_cast<Entry*>(packed.entries) + packed.entry_start[index];
    const int occupied = sort_lines(counts, height, entries, lines);
    int64_t at = value_start;
    for (int entry = 0; entry < occupied; ++entry) {
      const int64_t row = lines[entry];
      const int64_t base = (first + row) * shape.columns + tile * shape.tile_columns;
      const int64_t* of_row = start.data() + row * (shape.column_tiles + 1) + tile;
      for (int64_t rank = of_row[0]; rank < of_row[1]; ++rank, ++at) {
        const int64_t column = shape.positions[rank] - base;
        columns[at] = static_cast<uint8_t>(column);
        order[at] = static_cast<int32_t>(rank);
        ++counts_t[column];
      }
    }
    Entry* entries_t = const_cast<Entry*>(packed.entries_t) + packed.entry_start_t[index];
    const int occupied_t = sort_lines(counts_t, kLargestTile, entries_t, lines);
    int64_t next[kLargestTile], at_t = value_start;
    for (int entry = 0; entry < occupied_t; ++entry) next[lines[entry]] = at_t, at_t += counts_t[lines[entry]];
    at = value_start;
    for (int entry = 0; entry < occupied; ++entry)
      for (int weight = 0; weight <= entries[entry].count_minus_one; ++weight, ++at) {
        const int64_t to = next[columns[at]]++;
        rows_t[to] = entries[entry].line;
        sources[to] = static_cast<uint16_t>(at - value_start);
      }
  }
}

bool lines_fit(const Entry* entries, int64_t count, int64_t lines, int64_t values) {
  bool seen[kLargestTile] = {};
  for (int64_t entry = 0; entry < count; ++entry) {
    if (entries[entry].line >= lines || seen[entries[entry].line]) return false;
    seen[entries[entry].line] = true;
    values -= entries[entry].count_minus_one + 1;
  }
  return values == 0;
}

bool tile_fits(const Packed& packed, int row_tile, int column_tile) {
  const Tile tile = packed.tile(row_tile, column_tile), tile_t = packed.tile_t(row_tile, column_tile);
  const int index = row_tile * packed.column_tiles() + column_tile;
  const int64_t values = packed.value_start[index + 1] - packed.value_start[index];
  const int64_t height = packed.first_row(row_tile + 1) - packed.first_row(row_tile);
  const int64_t width = packed.first_column(column_tile + 1) - packed.first_column(column_tile);
  if (values > height * width) return false;
  if (!lines_fit(tile.entries, tile.count, height, values)) return false;
  if (!lines_fit(tile_t.entries, tile_t.count, width, values)) return false;
  // Every weight is found by both lists at the same place, and no place is named twice.
  std::vector<uint8_t> row_of(values), met(values);
  int64_t at = 0;
  for (int entry = 0; entry < tile.count; ++entry)
    for (int weight = 0; weight <= tile.entries[entry].count_minus_one; ++weight, ++at) {
      if (tile.local[at] >= width || (weight > 0 && tile.local[at] <= tile.local[at - 1])) return false;
      row_of[at] = tile.entries[entry].line;
    }
  at = 0;
  for (int entry = 0; entry < tile_t.count; ++entry)
    for (int weight = 0; weight <= tile_t.entries[entry].count_minus_one; ++weight, ++at) {
      const int64_t source = packed.source[tile.start + at];
      if (source >= values || met[source]) return false;
      met[source] = 1;
      if (tile.local[source] != tile_t.entries[entry].line || row_of[source] != tile_t.local[at]) return false;
    }
  return true;
}

bool sections_fit(const IndexHeader& header, int64_t bytes) {
  if (header.format != kFormat || header.bytes != bytes) return false;
  for (int64_t size : {header.rows, header.columns, header.row_tiles, header.column_tiles, header.tile_columns})
    if (size < 1 || size > INT32_MAX) return false;
  if (header.count < 0 || header.count > INT32_MAX || header.tile_columns > kLargestTile) return false;
  if (header.row_tiles > header.rows || header.column_tiles > header.columns) return false;
  if (header.column_tiles * header.tile_columns < header.columns) return false;
  if (header.entries < 0 || header.entries > header.count || header.entries_t < 0 || header.entries_t > header.count)
    return false;
  if (header.row_tiles * header.column_tiles > bytes / 16) return false;
  Shape shape{header.rows, header.columns, header.count, header.row_tiles, header.column_tiles, header.tile_columns,
              nullptr, nullptr};
  const std::vector<TileSizes> sizes{{header.count, header.entries, header.entries_t}};
  const IndexHeader expected = plan(shape, sizes);
  return expected.bytes == bytes && std::equal(expected.offset, expected.offset + kSections, header.offset);
}

template <class Number>
bool rises(const Number* numbers, int64_t count, int64_t last, bool strictly) {
  if (numbers[0] != 0 || numbers[count] != last) return false;
  for (int64_t at = 0; at < count; ++at)
    if (numbers[at + 1] < numbers[at] || (strictly && numbers[at + 1] == numbers[at])) return false;
  return true;
}

}  // namespace

extern "C" {

int64_t selfish_index_bytes(int64_t rows, int64_t columns, int64_t count, const int64_t* positions, int64_t row_tiles,
                            const int32_t* row_bounds, int64_t column_tiles, int64_t tile_columns) {
  const Shape shape{rows, columns, count, row_tiles, column_tiles, tile_columns, row_bounds, positions};
  return plan(shape, measure(shape)).bytes;
}

void selfish_index_build(int64_t rows, int64_t columns, int64_t count, const int64_t* positions, int64_t row_tiles,
                         const int32_t* row_bounds, int64_t column_tiles, int64_t tile_columns, char* memory,
                         int32_t* order) {
  const Shape shape{rows, columns, count, row_tiles, column_tiles, tile_columns, row_bounds, positions};
  const std::vector<TileSizes> sizes = measure(shape);
  const IndexHeader header = plan(shape, sizes);
  std::memset(memory, 0, header.bytes);
  std::memcpy(memory, &header, sizeof(IndexHeader));
  const Packed packed(memory);
  std::copy(row_bounds, row_bounds + row_tiles + 1, const_cast<int32_t*>(packed.row_bounds));
  int64_t* value_start = const_cast<int64_t*>(packed.value_start);
  int32_t* entry_start = const_cast<int32_t*>(packed.entry_start);
  int32_t* entry_start_t = const_cast<int32_t*>(packed.entry_start_t);
  for (int64_t tile = 0; tile < shape.tiles(); ++tile) {
    value_start[tile + 1] = value_start[tile] + sizes[tile].values;
    entry_start[tile + 1] = entry_start[tile] + static_cast<int32_t>(sizes[tile].entries);
    entry_start_t[tile + 1] = entry_start_t[tile] + static_cast<int32_t>(sizes[tile].entries_t);
  }
#pragma omp parallel for schedule(dynamic, 1)
  for (int64_t row_tile = 0; row_tile < row_tiles; ++row_tile) fill_row_tile(shape, row_tile, memory, order);
}

int64_t selfish_index_valid(const char* memory, int64_t bytes) {
  if (bytes < static_cast<int64_t>(sizeof(IndexHeader))) return 0;
  IndexHeader header;
  std::memcpy(&header, memory, sizeof(IndexHeader));
  if (!sections_fit(header, bytes)) return 0;
  const Packed packed(memory);
  if (!rises(packed.row_bounds, header.row_tiles, header.rows, true)) return 0;
  if (!rises(packed.value_start, packed.tiles(), header.count, false)) return 0;
  if (!rises(packed.entry_start, packed.tiles(), header.entries, false)) return 0;
  if (!rises(packed.entry_start_t, packed.tiles(), header.entries_t, false)) return 0;
  for (int row_tile = 0; row_tile < packed.row_tiles(); ++row_tile) {
    if (packed.first_row(row_tile + 1) - packed.first_row(row_tile) > kLargestTile) return 0;
    for (int column_tile = 0; column_tile < packed.column_tiles(); ++column_tile)
      if (!tile_fits(packed, row_tile, column_tile)) return 0;
  }
  return 1;
}

void selfish_index_sorted(const char* memory, int64_t* positions, int32_t* places) {
  const Packed packed(memory);
#pragma omp parallel for schedule(dynamic, 1)
  for (int row_tile = 0; row_tile < packed.row_tiles(); ++row_tile) {
    const int64_t first = packed.first_row(row_tile), height = packed.first_row(row_tile + 1) - first;
    // The weights of a row tile lie together, in both orders.
    std::vector<int64_t> next(height + 1, 0);
    next[0] = packed.value_start[row_tile * packed.column_tiles()];
    for (int column_tile = 0; column_tile < packed.column_tiles(); ++column_tile) {
      const Tile tile = packed.tile(row_tile, column_tile);
      for (int entry = 0; entry < tile.count; ++entry)
        next[tile.entries[entry].line + 1] += tile.entries[entry].count_minus_one + 1;
    }
    for (int64_t row = 0; row < height; ++row) next[row + 1] += next[row];
    for (int column_tile = 0; column_tile < packed.column_tiles(); ++column_tile) {
      const Tile tile = packed.tile(row_tile, column_tile);
      int64_t at = 0;
      for (int entry = 0; entry < tile.count; ++entry) {
        const int64_t line = tile.entries[entry].line;
        const int64_t base = (first + line) * packed.columns() + packed.first_column(column_tile);
        for (int weight = 0; weight <= tile.entries[entry].count_minus_one; ++weight, ++at) {
          const int64_t rank = next[line]++;
          positions[rank] = base + tile.local[at];
          places[rank] = static_cast<int32_t>(tile.start + at);
        }
      }
    }
  }
}

}  // extern "C"
}  // namespace selfish
