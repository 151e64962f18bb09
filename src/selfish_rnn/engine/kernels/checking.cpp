// Whether memory that comes from a file is an index. A kernel would follow it anywhere.
#include <algorithm>
#include <cstring>
#include <vector>

#include "packed.hpp"

namespace selfish {
namespace {

template <class Local>
bool lines_fit(const TileOf<Local>& tile, int64_t lines) {
  std::vector<char> seen(lines);
  int64_t values = tile.stop - tile.start;
  for (int entry = 0; entry < tile.count; ++entry) {
    const int64_t line = tile.entries[entry].line;
    if (line >= lines || seen[line]) return false;
    seen[line] = 1;
    values -= tile.entries[entry].count_minus_one + 1;
  }
  return values == 0;
}

template <class Local>
bool tile_fits(const Packed& packed, int row_tile, int column_tile) {
  const auto tile = packed.tile(row_tile, column_tile).of<Local>();
  const auto tile_t = packed.tile_t(row_tile, column_tile).of<Local>();
  const int64_t values = tile.stop - tile.start;
  const int64_t height = packed.first_row(row_tile + 1) - packed.first_row(row_tile);
  const int64_t width = packed.first_column(column_tile + 1) - packed.first_column(column_tile);
  if (values > height * width || !lines_fit(tile, height) || !lines_fit(tile_t, width)) return false;
  // Every weight is found by both lists at the same place, and no place is named twice.
  std::vector<Local> row_of(values);
  std::vector<char> met(values);
  int64_t at = 0;
  for (int entry = 0; entry < tile.count; ++entry)
    for (int weight = 0; weight <= tile.entries[entry].count_minus_one; ++weight, ++at) {
      if (tile.local[at] >= width || (weight > 0 && tile.local[at] <= tile.local[at - 1])) return false;
      row_of[at] = tile.entries[entry].line;
    }
  at = 0;
  for (int entry = 0; entry < tile_t.count; ++entry)
    for (int weight = 0; weight <= tile_t.entries[entry].count_minus_one; ++weight, ++at) {
      const int64_t source = packed.sources<Local>()[tile.start + at];
      if (source >= values || met[source]) return false;
      met[source] = 1;
      if (tile.local[source] != tile_t.entries[entry].line || row_of[source] != tile_t.local[at]) return false;
    }
  return true;
}

template <class Local>
bool tiles_fit(const Packed& packed) {
  for (int row_tile = 0; row_tile < packed.row_tiles(); ++row_tile) {
    if (packed.first_row(row_tile + 1) - packed.first_row(row_tile) > kLongestSide<Local>) return false;
    for (int column_tile = 0; column_tile < packed.column_tiles(); ++column_tile)
      if (!tile_fits<Local>(packed, row_tile, column_tile)) return false;
  }
  return true;
}

bool sections_fit(const IndexHeader& header, int64_t bytes) {
  const bool large = header.format == kLargeFormat;
  if ((!large && header.format != kFormat) || header.bytes != bytes) return false;
  for (int64_t size : {header.rows, header.columns, header.row_tiles, header.column_tiles, header.tile_columns})
    if (size < 1 || size > INT32_MAX) return false;
  if (header.count < 0 || header.count > INT32_MAX) return false;
  if (header.tile_columns > (large ? kLongestSide<uint16_t> : kLongestSide<uint8_t>)) return false;
  if (header.row_tiles > header.rows || header.column_tiles > header.columns) return false;
  if (header.column_tiles * header.tile_columns < header.columns) return false;
  if (header.entries < 0 || header.entries > header.count || header.entries_t < 0 || header.entries_t > header.count)
    return false;
  if (header.row_tiles * header.column_tiles > bytes / 16) return false;
  IndexHeader expected = header;
  lay_out(expected);
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
  return with_local(packed.large, [&](auto local) { return tiles_fit<decltype(local)>(packed); });
}

}  // extern "C"
}  // namespace selfish
