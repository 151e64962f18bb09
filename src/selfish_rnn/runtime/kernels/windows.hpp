// The int8 form of a sparse matrix: sliding windows, so that activations are looked up in registers.
//
// Rows are sorted by how many weights they have, within stretches of 256, and taken in groups of `height` (8 or 16,
// what the processor's registers hold). A step of a group has 4 slots for each of its rows: a weight and a code, the
// weight's column less the step's base. The base is any column, and the same for all rows of the group; the columns of
// a step lie in a window of 16 << planes columns from the base on. The base is the least column that any row still has
// to give, and every row gives its next columns that lie in the window, at most 4. What a row does not give is padding:
// weight 0, code 0. That rows may drift apart within the window is what keeps padding small.
//
// Steps come in twos, with an empty one where the number is odd:
//   data   4 height bytes three times: the low 4 bits of the codes of both steps (the first step's in the low half of
//   the
//          byte), the weights of the first, the weights of the second; in each the slots of a row next to each other
//   head   words of 32 bits: the two bases (16 bits each), then for each step its planes, the other bits of the codes:
//          plane p has bit 4 + p of every code, in the order that the registers of that height want
//   first  for each group, and the end: its first two steps
//   row    for each lane of a group: the row, -1 for none; scale and 128 times the sum of its weights lie alike
//
// Where many weights exist and too many to stay in a cache, the bytes that are read count for more than the
// instructions. Kernels that can spread bytes by a mask then take bits instead of windows (planes: kBits): a step is
// the next 4 columns, for 16 rows in their own order, and steps come in twos for as many columns as there are:
//   data   one byte for every weight, group by group and step by step, row by row and in a row by column
//   head   64 bits for each step: which of its positions exist, in that order
//   first  for each group, and the end: its first weight
#pragma once

#include <cstring>

#include "abi.hpp"

namespace selfish {

constexpr int kSlots = 4, kStretch = 256, kMostHeight = 16;
constexpr int kBits = -1;                  // for planes
constexpr int64_t kMostColumns = 65535;    // a base has 16 bits, and 255 * 127 times that fits 31
constexpr int64_t kActivationSlack = 256;  // bytes behind the last activation that may be read

enum WindowsSection : int { kData, kHead, kFirst, kRow, kScale, kCorrection, kWindowsSections };
static_assert(sizeof(WindowsHeader::offset) == kWindowsSections * sizeof(int64_t), "an offset for every section");

// Words of the head: for two steps of windows, and in bits for two steps of a group.
inline int head_words(int64_t height, int64_t planes) {
  return planes == kBits ? 4 : static_cast<int>(1 + 2 * planes * height / 8);
}
inline int64_t bit_steps(int64_t columns) { return (columns + 2 * kSlots - 1) / (2 * kSlots) * 2; }

struct Windows {
  const WindowsHeader* header;
  const uint8_t* data;
  const uint32_t* head;
  const uint32_t* first;
  const int32_t* row;
  const float* scale;
  const int32_t* correction;

  explicit Windows(const void* memory) : header(static_cast<const WindowsHeader*>(memory)) {
    const char* base = static_cast<const char*>(memory);
    const int64_t* at = header->offset;
    data = reinterpret_cast<const uint8_t*>(base + at[kData]);
    head = reinterpret_cast<const uint32_t*>(base + at[kHead]);
    first = reinterpret_cast<const uint32_t*>(base + at[kFirst]);
    row = reinterpret_cast<const int32_t*>(base + at[kRow]);
    scale = reinterpret_cast<const float*>(base + at[kScale]);
    correction = reinterpret_cast<const int32_t*>(base + at[kCorrection]);
  }

  int64_t rows() const { return header->rows; }
  int64_t columns() const { return header->columns; }
  int height() const { return static_cast<int>(header->height); }
  int planes() const { return static_cast<int>(header->planes); }
  int64_t groups() const { return header->groups; }
  int words() const { return head_words(header->height, header->planes); }
  int64_t pair_bytes() const { return 3 * kSlots * header->height; }

  // Where the bit of a slot lies in a plane. Eight rows: shifted left by 7 - lane, a word has the bits of its lane on
  // top of four bytes. Sixteen: the plane is a mask for 64 bytes.
  static int plane_bit(int height, int lane, int slot) { return height == 8 ? 8 * slot + lane : kSlots * lane + slot; }

  int weight(int64_t pair, int step, int lane, int slot) const {
    const int at = (1 + step) * kSlots * height() + kSlots * lane + slot;
    return static_cast<int8_t>(data[pair * pair_bytes() + at]);
  }

  int64_t column(int64_t pair, int step, int lane, int slot) const {
    const uint32_t* words_here = head + pair * words();
    const int base = step ? words_here[0] >> 16 : words_here[0] & 0xffff;
    int code = data[pair * pair_bytes() + kSlots * lane + slot] >> (4 * step) & 15;
    const int bit = plane_bit(height(), lane, slot), size = height() / 8;
    for (int plane = 0; plane < planes(); ++plane)
      code |= static_cast<int>(words_here[1 + (step * planes() + plane) * size + bit / 32] >> bit % 32 & 1)
              << (4 + plane);
    return base + code;
  }

  uint64_t bits(int64_t group, int64_t step) const {
    uint64_t found;
    std::memcpy(&found, head + 2 * (group * bit_steps(columns()) + step), sizeof found);
    return found;
  }

  template <class Take>
  void each_bit(int64_t group, int lane, Take take) const {
    const uint8_t* at = data + first[group];
    for (int64_t step = 0; step < bit_steps(columns()); ++step) {
      const uint64_t here = bits(group, step), before = here & ((uint64_t{1} << kSlots * lane) - 1);
      const uint8_t* found = at + __builtin_popcountll(before);
      for (int slot = 0; slot < kSlots; ++slot)
        if (here >> (kSlots * lane + slot) & 1) take(kSlots * step + slot, static_cast<int8_t>(*found++));
      at += __builtin_popcountll(here);
    }
  }

  // Calls take(column, weight) for every weight of a lane.
  template <class Take>
  void each(int64_t group, int lane, Take take) const {
    if (planes() == kBits) return each_bit(group, lane, take);
    for (int64_t pair = first[group]; pair < first[group + 1]; ++pair)
      for (int step = 0; step < 2; ++step)
        for (int slot = 0; slot < kSlots; ++slot)
          if (const int found = weight(pair, step, lane, slot)) take(column(pair, step, lane, slot), found);
  }

  // Where in row[] a row is: somewhere in its stretch.
  int64_t place(int64_t wanted) const {
    int64_t at = wanted / kStretch * kStretch;
    while (row[at] != wanted) ++at;
    return at;
  }

  void lookup(int64_t wanted, float* y) const {
    std::memset(y, 0, sizeof(float) * columns());
    const int64_t at = place(wanted);
    each(at / height(), static_cast<int>(at % height()),
         [&](int64_t column, int found) { y[column] = static_cast<float>(found) * scale[at]; });
  }
};

}  // namespace selfish
