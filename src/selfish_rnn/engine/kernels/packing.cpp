// Building and reading back the packed form. None of this is bound by arithmetic, so it is built once, for any
// processor.
#include <algorithm>
#include <cstring>
#include <vector>

#include "packed.hpp"

namespace selfish {
namespace {

struct Shape {
  int64_t rows, columns, count, row_tiles, column_tiles, tile_columns;
  const int32_t* row_bounds;
  const int64_t* positions;  // sorted, row-major

  int64_t tiles() const { return row_tiles * column_tiles; }
  int64_t height(int64_t row_tile) const { return row_bounds[row_tile + 1] - row_bounds[row_tile]; }

  bool large() const {
    int64_t longest = tile_columns;
    for (int64_t row_tile = 0; row_tile < row_tiles; ++row_tile) longest = std::max(longest, height(row_tile));
    return longest > kLongestSide<uint8_t>;
  }

  // Where the weights of each row of a row tile that lie in each of its tiles start: (rows + 1) x (column_tiles + 1).
  void segments(int64_t row_tile, std::vector<int64_t>& start) const {
    const int64_t first = row_bounds[row_tile], rows_here = height(row_tile);
    start.resize(rows_here * (column_tiles + 1));
    const int64_t* end = positions + count;
    const int64_t* here = std::lower_bound(positions, end, first * columns);
    for (int64_t row = 0; row < rows_here; ++row) {
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
  std::vector<char> occupied(shape.tile_columns);
  for (int64_t tile = 0; tile < shape.column_tiles; ++tile) {
    TileSizes size{0, 0, 0};
    std::fill(occupied.begin(), occupied.end(), 0);
    for (int64_t row = 0; row < shape.height(row_tile); ++row) {
      const int64_t* of_row = start.data() + row * (shape.column_tiles + 1) + tile;
      size.values += of_row[1] - of_row[0];
      size.entries += of_row[1] > of_row[0];
      const int64_t base = (shape.row_bounds[row_tile] + row) * shape.columns + tile * shape.tile_columns;
      for (int64_t at = of_row[0]; at < of_row[1]; ++at) occupied[shape.positions[at] - base] = 1;
    }
    for (char column : occupied) size.entries_t += column;
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

IndexHeader plan(const Shape& shape, const std::vector<TileSizes>& sizes) {
  IndexHeader header{};
  header.format = shape.large() ? kLargeFormat : kFormat;
  header.rows = shape.rows, header.columns = shape.columns, header.count = shape.count;
  header.row_tiles = shape.row_tiles, header.column_tiles = shape.column_tiles;
  header.tile_columns = shape.tile_columns;
  for (const TileSizes& size : sizes) header.entries += size.entries, header.entries_t += size.entries_t;
  lay_out(header);
  return header;
}

// The lines of a tile that have weights, longest first, equal ones in their order.
template <class Local>
int sort_lines(const std::vector<int>& counts, Entry<Local>* entries, std::vector<int>& starts) {
  const int longest = counts.empty() ? 0 : *std::max_element(counts.begin(), counts.end());
  starts.assign(longest + 2, 0);
  for (int count : counts) ++starts[longest - count + 1];
  for (int length = 1; length <= longest + 1; ++length) starts[length] += starts[length - 1];
  const int occupied = starts[longest];
  for (size_t line = 0; line < counts.size(); ++line) {
    if (counts[line] == 0) continue;
    entries[starts[longest - counts[line]]++] = {static_cast<Local>(line), static_cast<Local>(counts[line] - 1)};
  }
  return occupied;
}

template <class Local>
void fill_row_tile(const Shape& shape, int64_t row_tile, char* memory, int32_t* order) {
  using Source = typename SourceOf<Local>::type;
  const Packed packed(memory);
  std::vector<int64_t> start;
  shape.segments(row_tile, start);
  const int64_t first = shape.row_bounds[row_tile], height = shape.height(row_tile);
  Local* columns = reinterpret_cast<Local*>(memory + packed.header->offset[kColumn]);
  Local* rows_t = reinterpret_cast<Local*>(memory + packed.header->offset[kRowT]);
  Source* sources = reinterpret_cast<Source*>(memory + packed.header->offset[kSource]);
  std::vector<int> counts(height), counts_t(shape.tile_columns), starts;
  std::vector<int64_t> next(shape.tile_columns);
  for (int64_t tile = 0; tile < shape.column_tiles; ++tile) {
    const int64_t index = row_tile * shape.column_tiles + tile;
    const int64_t value_start = packed.value_start[index];
    for (int64_t row = 0; row < height; ++row) {
      const int64_t* of_row = start.data() + row * (shape.column_tiles + 1) + tile;
      counts[row] = static_cast<int>(of_row[1] - of_row[0]);
    }
    std::fill(counts_t.begin(), counts_t.end(), 0);
    auto* entries =
        reinterpret_cast<Entry<Local>*>(memory + packed.header->offset[kEntries]) + packed.entry_start[index];
    const int occupied = sort_lines(counts, entries, starts);
    int64_t at = value_start;
    for (int entry = 0; entry < occupied; ++entry) {
      const int64_t row = entries[entry].line;
      const int64_t base = (first + row) * shape.columns + tile * shape.tile_columns;
      const int64_t* of_row = start.data() + row * (shape.column_tiles + 1) + tile;
      for (int64_t rank = of_row[0]; rank < of_row[1]; ++rank, ++at) {
        const int64_t column = shape.positions[rank] - base;
        columns[at] = static_cast<Local>(column);
        order[at] = static_cast<int32_t>(rank);
        ++counts_t[column];
      }
    }
    auto* entries_t =
        reinterpret_cast<Entry<Local>*>(memory + packed.header->offset[kEntriesT]) + packed.entry_start_t[index];
    const int occupied_t = sort_lines(counts_t, entries_t, starts);
    int64_t at_t = value_start;
    for (int entry = 0; entry < occupied_t; ++entry) {
      next[entries_t[entry].line] = at_t;
      at_t += entries_t[entry].count_minus_one + 1;
    }
    at = value_start;
    for (int entry = 0; entry < occupied; ++entry)
      for (int weight = 0; weight <= entries[entry].count_minus_one; ++weight, ++at) {
        const int64_t to = next[columns[at]]++;
        rows_t[to] = entries[entry].line;
        sources[to] = static_cast<Source>(at - value_start);
      }
  }
}

template <class Local>
void sort_row_tile(const Packed& packed, int row_tile, int64_t* positions, int32_t* places) {
  const int64_t first = packed.first_row(row_tile), height = packed.first_row(row_tile + 1) - first;
  // The weights of a row tile lie together, in both orders.
  std::vector<int64_t> next(height + 1, 0);
  next[0] = packed.value_start[row_tile * packed.column_tiles()];
  for (int column_tile = 0; column_tile < packed.column_tiles(); ++column_tile) {
    const auto tile = packed.tile(row_tile, column_tile).of<Local>();
    for (int entry = 0; entry < tile.count; ++entry)
      next[tile.entries[entry].line + 1] += tile.entries[entry].count_minus_one + 1;
  }
  for (int64_t row = 0; row < height; ++row) next[row + 1] += next[row];
  for (int column_tile = 0; column_tile < packed.column_tiles(); ++column_tile) {
    const auto tile = packed.tile(row_tile, column_tile).of<Local>();
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

// Spreads the bits of a number over all of them: a permutation of the whole numbers below 2^32 (C. Wellons' lowbias32).
inline uint32_t mixed(uint32_t number) {
  number = (number ^ (number >> 16)) * 0x7feb352dU;
  number = (number ^ (number >> 15)) * 0x846ca68bU;
  return number ^ (number >> 16);
}

template <class Local>
void keep_in_row_tile(const Packed& packed, int row_tile, uint32_t row_key, uint32_t column_key, int64_t limit,
                      float* kept) {
  std::vector<uint32_t> codes(packed.header->tile_columns);
  for (int column_tile = 0; column_tile < packed.column_tiles(); ++column_tile) {
    const auto tile = packed.tile(row_tile, column_tile).of<Local>();
    const auto first_row = static_cast<uint32_t>(packed.first_row(row_tile));
    const auto first_column = static_cast<uint32_t>(packed.first_column(column_tile));
    for (uint32_t column = 0; column < codes.size(); ++column)
      codes[column] = mixed(column_key + first_column + column);
    const Local* local = tile.local;
    float* to = kept + tile.start;
    for (int entry = 0; entry < tile.count; ++entry) {
      const uint32_t code = mixed(row_key + first_row + tile.entries[entry].line);
      for (int left = tile.entries[entry].count_minus_one + 1; left > 0; --left)
        *to++ = mixed(code ^ codes[*local++]) >= limit ? 1.f : 0.f;
    }
  }
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
  with_local(packed.large, [&](auto local) {
#pragma omp parallel for schedule(dynamic, 1)
    for (int64_t row_tile = 0; row_tile < row_tiles; ++row_tile)
      fill_row_tile<decltype(local)>(shape, row_tile, memory, order);
  });
}

void selfish_index_sorted(const char* memory, int64_t* positions, int32_t* places) {
  const Packed packed(memory);
  with_local(packed.large, [&](auto local) {
#pragma omp parallel for schedule(dynamic, 1)
    for (int row_tile = 0; row_tile < packed.row_tiles(); ++row_tile)
      sort_row_tile<decltype(local)>(packed, row_tile, positions, places);
  });
}

void selfish_index_kept(const char* memory, int64_t row_key, int64_t column_key, int64_t limit, float* kept) {
  const Packed packed(memory);
  with_local(packed.large, [&](auto local) {
#pragma omp parallel for schedule(dynamic, 1)
    for (int row_tile = 0; row_tile < packed.row_tiles(); ++row_tile)
      keep_in_row_tile<decltype(local)>(packed, row_tile, static_cast<uint32_t>(row_key),
                                        static_cast<uint32_t>(column_key), limit, kept);
  });
}

}  // extern "C"
}  // namespace selfish
