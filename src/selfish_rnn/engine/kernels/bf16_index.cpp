// Derives the index of the bfloat16 kernels. Built once, for any processor.
#include "bf16_index.hpp"

#include <algorithm>
#include <cstring>
#include <vector>

namespace selfish {
namespace {

// One side of a float32 index: lines cut as its tiles are, each crossing `pieces()` of them.
template <class Local>
struct FloatSide {
  const Packed& packed;
  bool transposed;

  int line_tiles() const { return transposed ? packed.column_tiles() : packed.row_tiles(); }
  int pieces() const { return transposed ? packed.row_tiles() : packed.column_tiles(); }
  int64_t first_line(int tile) const { return transposed ? packed.first_column(tile) : packed.first_row(tile); }
  int64_t first_inner(int piece) const { return transposed ? packed.first_row(piece) : packed.first_column(piece); }
  int64_t inner() const { return transposed ? packed.rows() : packed.columns(); }
  TileOf<Local> tile(int line_tile, int piece) const {
    return (transposed ? packed.tile_t(piece, line_tile) : packed.tile(line_tile, piece)).template of<Local>();
  }
};

struct InnerCut {
  std::vector<int32_t> bounds, pieces;

  template <class Local>
  explicit InnerCut(const FloatSide<Local>& side) {
    const int64_t inner = side.inner(), tiles = (inner + kLongestInner - 1) / kLongestInner;
    for (int64_t tile = 0; tile <= tiles; ++tile) bounds.push_back(static_cast<int32_t>(inner * tile / tiles));
    for (int64_t tile = 0; tile < tiles; ++tile) {
      int first = tile == 0 ? 0 : pieces[2 * tile - 2];
      while (side.first_inner(first + 1) <= bounds[tile]) ++first;
      int stop = first;
      while (stop < side.pieces() && side.first_inner(stop) < bounds[tile + 1]) ++stop;
      pieces.push_back(first), pieces.push_back(stop - first);
    }
  }
  int tiles() const { return static_cast<int>(bounds.size()) - 1; }
};

// The tiles of one tile of lines.
struct LineTile {
  std::vector<Bf16Group> groups;
  std::vector<Bf16Run> runs;
  std::vector<uint16_t> offsets;
  std::vector<int64_t> group_stop, run_stop, slot_stop;  // of every inner tile
};

template <class Local>
void build_tile(const FloatSide<Local>& side, const InnerCut& cut, int line_tile, int inner_tile, LineTile& result) {
  const int64_t lines = side.first_line(line_tile + 1) - side.first_line(line_tile);
  const int64_t begin = cut.bounds[inner_tile], end = cut.bounds[inner_tile + 1];

  // The runs of every line, and the offsets of its operands. Transposed lines are not sorted by their operands.
  std::vector<std::vector<Bf16Run>> runs(lines);
  std::vector<std::vector<uint16_t>> operands(lines);
  for (int piece = 0; piece < cut.pieces[2 * inner_tile + 1]; ++piece) {
    const int tile_at = cut.pieces[2 * inner_tile] + piece;
    const auto tile = side.tile(line_tile, tile_at);
    const int64_t base = side.first_inner(tile_at) - begin;
    int64_t at = 0;
    for (int entry = 0; entry < tile.count; ++entry) {
      const int64_t line = tile.entries[entry].line;
      bool adjacent = false;
      for (int left = tile.entries[entry].count_minus_one + 1; left > 0; --left, ++at) {
        const int64_t operand = base + tile.local[at];
        const bool inside = operand >= 0 && operand < end - begin;
        if (inside) {
          operands[line].push_back(static_cast<uint16_t>(operand * kLineBytes));
          if (adjacent)
            ++runs[line].back().count;
          else
            runs[line].push_back({static_cast<int32_t>(tile.start + at), 1, static_cast<uint16_t>(piece), 0});
        }
        adjacent = inside;
      }
    }
  }
  std::vector<int> order;
  for (int line = 0; line < lines; ++line)
    if (!operands[line].empty()) order.push_back(line);
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return operands[a].size() > operands[b].size(); });

  for (size_t first = 0; first < order.size(); first += kLinesTogether) {
    Bf16Group group{};
    group.lines = static_cast<uint16_t>(std::min<size_t>(kLinesTogether, order.size() - first));
    group.fours = static_cast<uint16_t>((operands[order[first]].size() + 3) / 4);
    const size_t slot = result.offsets.size();
    result.offsets.resize(slot + size_t{group.fours} * 4 * kLinesTogether);
    for (int at = 0; at < kLinesTogether; ++at) {
      const bool real = at < group.lines;
      const int line = order[first + (real ? at : 0)];
      group.line[at] = static_cast<uint16_t>(line);
      if (real) {
        runs[line].back().last = 1;
        result.runs.insert(result.runs.end(), runs[line].begin(), runs[line].end());
      }
      for (size_t weight = 0; weight < size_t{4} * group.fours; ++weight)
        result.offsets[slot + weight / 4 * 4 * kLinesTogether + 4 * at + weight % 4] =
            operands[line][std::min(weight, operands[line].size() - 1)];
    }
    result.groups.push_back(group);
  }
  result.group_stop.push_back(result.groups.size());
  result.run_stop.push_back(result.runs.size());
  result.slot_stop.push_back(result.offsets.size());
}

struct BuiltSide {
  InnerCut cut;
  std::vector<LineTile> tiles;
  int64_t groups = 0, runs = 0, slots = 0;

  template <class Local>
  explicit BuiltSide(const FloatSide<Local>& side) : cut(side), tiles(side.line_tiles()) {
#pragma omp parallel for schedule(dynamic, 1)
    for (int tile = 0; tile < side.line_tiles(); ++tile)
      for (int inner = 0; inner < cut.tiles(); ++inner) build_tile(side, cut, tile, inner, tiles[tile]);
    for (const LineTile& tile : tiles)
      groups += tile.groups.size(), runs += tile.runs.size(), slots += tile.offsets.size();
  }

  // Places the sections from `at` on, and returns where they end.
  int64_t lay_out(Bf16SideHeader& header, int64_t at) const {
    const int64_t inner_tiles = cut.tiles(), all = static_cast<int64_t>(tiles.size()) * inner_tiles;
    header.line_tiles = tiles.size(), header.inner_tiles = inner_tiles;
    header.groups = groups, header.runs = runs, header.slots = slots;
    const int64_t length[kBf16Sections] = {4 * (header.line_tiles + 1),
                                           4 * (inner_tiles + 1),
                                           8 * inner_tiles,
                                           4 * (all + 1),
                                           8 * (all + 1),
                                           8 * (all + 1),
                                           static_cast<int64_t>(sizeof(Bf16Group)) * (groups + kSpareGroups),
                                           static_cast<int64_t>(sizeof(Bf16Run)) * runs,
                                           2 * slots};
    for (int section = 0; section < kBf16Sections; ++section) {
      header.offset[section] = at;
      at += (length[section] + kAlignment - 1) / kAlignment * kAlignment;
    }
    return at;
  }

  template <class Local>
  void write(const FloatSide<Local>& from, const Bf16Side& side) const {
    auto* line_bounds = const_cast<int32_t*>(side.line_bounds);
    for (int tile = 0; tile <= side.line_tiles(); ++tile)
      line_bounds[tile] = static_cast<int32_t>(from.first_line(tile));
    std::copy(cut.bounds.begin(), cut.bounds.end(), const_cast<int32_t*>(side.inner_bounds));
    std::copy(cut.pieces.begin(), cut.pieces.end(), const_cast<int32_t*>(side.pieces));
    auto* group_start = const_cast<int32_t*>(side.group_start);
    auto* run_start = const_cast<int64_t*>(side.run_start);
    auto* slot_start = const_cast<int64_t*>(side.slot_start);
    int64_t group = 0, run = 0, slot = 0, at = 0;
    for (const LineTile& tile : tiles) {
      for (int inner = 0; inner < cut.tiles(); ++inner) {
        group_start[++at] = static_cast<int32_t>(group + tile.group_stop[inner]);
        run_start[at] = run + tile.run_stop[inner], slot_start[at] = slot + tile.slot_stop[inner];
      }
      std::copy(tile.groups.begin(), tile.groups.end(), const_cast<Bf16Group*>(side.groups) + group);
      std::copy(tile.runs.begin(), tile.runs.end(), const_cast<Bf16Run*>(side.runs) + run);
      std::copy(tile.offsets.begin(), tile.offsets.end(), const_cast<uint16_t*>(side.offsets) + slot);
      group += tile.groups.size(), run += tile.runs.size(), slot += tile.offsets.size();
    }
  }
};

// Calls work with both sides of an index, built, and where their sections lie.
template <class Work>
void with_built(const void* index, Work work) {
  const Packed packed(index);
  with_local(packed.large, [&](auto local) {
    const FloatSide<decltype(local)> sides[2] = {{packed, false}, {packed, true}};
    const BuiltSide rows(sides[0]), columns(sides[1]);
    Bf16Header header{};
    const int64_t after_header = (sizeof header + kAlignment - 1) / kAlignment * kAlignment;
    header.bytes = columns.lay_out(header.sides[1], rows.lay_out(header.sides[0], after_header));
    work(header, [&](char* memory) {
      rows.write(sides[0], Bf16Side(memory, false));
      columns.write(sides[1], Bf16Side(memory, true));
    });
  });
}

}  // namespace

extern "C" {

int64_t selfish_bf16_index_bytes(const void* index) {
  int64_t bytes = 0;
  with_built(index, [&](const Bf16Header& header, auto) { bytes = header.bytes; });
  return bytes;
}

void selfish_bf16_index_build(const void* index, char* memory) {
  with_built(index, [&](const Bf16Header& header, auto write) {
    std::memset(memory, 0, header.bytes);
    std::memcpy(memory, &header, sizeof header);
    write(memory);
  });
}

}  // extern "C"
}  // namespace selfish
