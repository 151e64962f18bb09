// The index of the bfloat16 kernels, derived from that of the float32 kernels (packed.hpp) for one topology.
//
// A matrix has two sides: its rows, for W x and for the gradient of its weights, and its columns, for W^T x. Each side
// is cut into tiles: the lines of one of the float32 index's tiles, times at most kLongestInner lines of the operand,
// which stay in the innermost cache. Inside a tile the lines that have weights are sorted by length and stored four
// together: four weights of line 0, of line 1, of line 2, of line 3, the next four of line 0, and so on. All four are
// filled up to the longest. A filling has the weight zero and the operand of the line's last weight, so a NaN stays in
// its column.
//
// Of every slot the index holds the offset of its operand in bytes, for lines of two chunks of tokens. The float32
// values of a line lie in runs, in the order of the float32 index; values in bfloat16 are copied from there once a
// window.
#pragma once

#include "packed.hpp"

namespace selfish {

constexpr int kLongestInner = 325;
constexpr int kLineBytes = 128;  // of the operand's lines that offsets are for
constexpr int kLinesTogether = 4;
constexpr int kSpareGroups = 2;  // kernels look ahead
static_assert(kLongestInner * kLineBytes <= 65536, "an offset takes 16 bits");

struct Bf16Group {
  uint16_t line[kLinesTogether];  // in the tile; repeats the first where there are fewer lines
  uint16_t lines;
  uint16_t fours;  // of slots, for each line
};

// Values of a line that follow each other in the float32 index; a transposed line's in its transposed order.
struct Bf16Run {
  int32_t start;
  uint16_t count;
  uint16_t piece : 15;  // the tile of the float32 index it lies in, counted from the first that this tile meets
  uint16_t last : 1;    // of its line
};

enum Bf16Section : int {
  kLineBounds,
  kInnerBounds,
  kPieces,
  kGroupStart,
  kRunStart,
  kSlotStart,
  kGroups,
  kRuns,
  kSlots
};
constexpr int kBf16Sections = 9;

struct Bf16SideHeader {
  int64_t line_tiles, inner_tiles;
  int64_t groups, runs, slots;
  int64_t offset[kBf16Sections];  // of every section, from the start of the index
};

struct Bf16Header {
  int64_t bytes;
  Bf16SideHeader sides[2];  // rows, columns
};

// One tile, as the kernels take it.
struct Bf16Tile {
  const Bf16Group* groups;
  const Bf16Group* end;
  const Bf16Run* runs;  // of each line of each group
  int first_piece, pieces;
  const uint16_t* offsets;
  int64_t first_slot, slots;
};

// A side of a matrix.
struct Bf16Side {
  const Bf16SideHeader* header;
  const int32_t* line_bounds;
  const int32_t* inner_bounds;
  const int32_t* pieces;  // for each inner tile the first of the float32 index's tiles that it meets, and how many
  const int32_t* group_start;
  const int64_t* run_start;
  const int64_t* slot_start;
  const Bf16Group* groups;
  const Bf16Run* runs;
  const uint16_t* offsets;

  Bf16Side(const void* memory, bool transposed) {
    const char* base = static_cast<const char*>(memory);
    header = &reinterpret_cast<const Bf16Header*>(base)->sides[transposed];
    const int64_t* at = header->offset;
    line_bounds = reinterpret_cast<const int32_t*>(base + at[kLineBounds]);
    inner_bounds = reinterpret_cast<const int32_t*>(base + at[kInnerBounds]);
    pieces = reinterpret_cast<const int32_t*>(base + at[kPieces]);
    group_start = reinterpret_cast<const int32_t*>(base + at[kGroupStart]);
    run_start = reinterpret_cast<const int64_t*>(base + at[kRunStart]);
    slot_start = reinterpret_cast<const int64_t*>(base + at[kSlotStart]);
    groups = reinterpret_cast<const Bf16Group*>(base + at[kGroups]);
    runs = reinterpret_cast<const Bf16Run*>(base + at[kRuns]);
    offsets = reinterpret_cast<const uint16_t*>(base + at[kSlots]);
  }

  int line_tiles() const { return static_cast<int>(header->line_tiles); }
  int inner_tiles() const { return static_cast<int>(header->inner_tiles); }
  int64_t first_line(int tile) const { return line_bounds[tile]; }
  int64_t first_inner(int tile) const { return inner_bounds[tile]; }
  int64_t lines() const { return line_bounds[line_tiles()]; }
  int64_t inner() const { return inner_bounds[inner_tiles()]; }
  // Numbers that a copy of the values takes.
  int64_t value_slots() const { return header->slots; }
  Bf16Tile tile(int line_tile, int inner_tile) const {
    const int64_t at = static_cast<int64_t>(line_tile) * inner_tiles() + inner_tile;
    return {groups + group_start[at], groups + group_start[at + 1],       runs + run_start[at],
            pieces[2 * inner_tile],   pieces[2 * inner_tile + 1],         offsets + slot_start[at],
            slot_start[at],           slot_start[at + 1] - slot_start[at]};
  }
};

// A matrix for the bfloat16 kernels: the float32 index, the one derived from it, and the float32 values.
struct Bf16Matrix {
  Packed packed;
  Bf16Side rows, columns;
  const float* values;
  Bf16Matrix(const void* index, const void* bf16_index, const float* values_)
      : packed(index), rows(bf16_index, false), columns(bf16_index, true), values(values_) {}
  template <bool Transposed>
  const Bf16Side& side() const {
    return Transposed ? columns : rows;
  }
};

}  // namespace selfish
