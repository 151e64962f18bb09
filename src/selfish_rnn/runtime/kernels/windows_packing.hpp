// Building the windows of a matrix, and reading its weights back.
#pragma once

#include <algorithm>
#include <numeric>
#include <vector>

#include "large_pages.hpp"
#include "windows.hpp"

namespace selfish {

// Where the sections of a matrix lie, and how many bytes it takes, given all its other numbers.
inline void place_sections(WindowsHeader& of) {
  const bool bits = of.planes == kBits;
  const int64_t lanes = of.height * of.groups, words = head_words(of.height, of.planes);
  const int64_t length[kWindowsSections] = {bits ? of.pairs : 3 * kSlots * of.height * of.pairs,
                                            4 * words * (bits ? of.groups * bit_steps(of.columns) / 2 : of.pairs),
                                            4 * (of.groups + 1),
                                            4 * lanes,
                                            4 * lanes,
                                            4 * lanes};
  of.bytes = (sizeof(WindowsHeader) + 63) / 64 * 64;
  for (int section = 0; section < kWindowsSections; ++section) {
    of.offset[section] = of.bytes;
    of.bytes += (length[section] + 63) / 64 * 64;
  }
}

struct WindowsPacking {
  const Int8Weights& weights;
  int64_t height, planes, groups;
  std::vector<int32_t> order;   // rows, sorted
  std::vector<uint32_t> first;  // groups + 1

  WindowsPacking(const Int8Weights& weights_, int64_t height_, int64_t planes_)
      : weights(weights_),
        height(height_),
        planes(planes_),
        groups((weights_.rows + height_ - 1) / height_),
        order(weights_.rows),
        first(groups + 1) {
    std::iota(order.begin(), order.end(), 0);
    if (planes == kBits) {
      for (int64_t group = 0; group < groups; ++group)
        first[group + 1] = static_cast<uint32_t>(weights.first[std::min(weights.rows, height * (group + 1))]);
      return;
    }
    const auto length = [&](int32_t row) { return weights.first[row + 1] - weights.first[row]; };
    for (int64_t row = 0; row < weights.rows; row += kStretch)
      std::stable_sort(order.begin() + row, order.begin() + std::min(weights.rows, row + kStretch),
                       [&](int32_t a, int32_t b) { return length(a) < length(b); });
    std::vector<int64_t> steps(groups);
#pragma omp parallel for schedule(dynamic, 16)
    for (int64_t group = 0; group < groups; ++group) {
      int64_t count = 0;
      walk(group, [&](int64_t step, int64_t, int, int, int64_t) { count = step + 1; });
      steps[group] = count;
    }
    for (int64_t group = 0; group < groups; ++group)
      first[group + 1] = first[group] + static_cast<uint32_t>((steps[group] + 1) / 2);
  }

  int lanes(int64_t group) const { return static_cast<int>(std::min(height, weights.rows - height * group)); }

  // Calls give(step, base, lane, slot, weight) for every weight of a group.
  template <class Give>
  void walk(int64_t group, Give give) const {
    int64_t next[kMostHeight], stop[kMostHeight];
    for (int lane = 0; lane < lanes(group); ++lane) {
      const int32_t row = order[height * group + lane];
      next[lane] = weights.first[row], stop[lane] = weights.first[row + 1];
    }
    for (int64_t step = 0;; ++step) {
      int64_t base = weights.columns;
      for (int lane = 0; lane < lanes(group); ++lane)
        if (next[lane] < stop[lane]) base = std::min<int64_t>(base, weights.column[next[lane]]);
      if (base == weights.columns) return;
      const int64_t end = base + (16 << planes);
      for (int lane = 0; lane < lanes(group); ++lane)
        for (int slot = 0; slot < kSlots && next[lane] < stop[lane] && weights.column[next[lane]] < end; ++slot)
          give(step, base, lane, slot, next[lane]++);
    }
  }

  // Calls give(step, bit, weight) for every weight of a group in bits, in the order of the bits.
  template <class Give>
  void walk_bits(int64_t group, Give give) const {
    int64_t next[kMostHeight];
    for (int lane = 0; lane < lanes(group); ++lane) next[lane] = weights.first[height * group + lane];
    for (int64_t step = 0; step < bit_steps(weights.columns); ++step)
      for (int lane = 0; lane < lanes(group); ++lane) {
        const int64_t stop = weights.first[height * group + lane + 1];
        for (; next[lane] < stop && weights.column[next[lane]] < kSlots * (step + 1); ++next[lane])
          give(step, kSlots * lane + weights.column[next[lane]] % kSlots, next[lane]);
      }
  }

  WindowsHeader header() const {
    WindowsHeader made{};
    made.rows = weights.rows, made.columns = weights.columns, made.count = weights.count;
    made.height = height, made.planes = planes, made.groups = groups, made.pairs = first[groups];
    place_sections(made);
    return made;
  }

  void build(char* memory) const {
    const WindowsHeader made = header();
    ask_large_pages(memory, made.bytes);
    std::memset(memory, 0, made.bytes);
    std::memcpy(memory, &made, sizeof made);
    std::memcpy(memory + made.offset[kFirst], first.data(), 4 * first.size());
    auto* row = reinterpret_cast<int32_t*>(memory + made.offset[kRow]);
    auto* scale = reinterpret_cast<float*>(memory + made.offset[kScale]);
    auto* correction = reinterpret_cast<int32_t*>(memory + made.offset[kCorrection]);
    const int words = head_words(height, planes), size = static_cast<int>(height / 8);
#pragma omp parallel for schedule(dynamic, 16)
    for (int64_t group = 0; group < groups; ++group) {
      for (int lane = 0; lane < height; ++lane) {
        const int64_t at = height * group + lane;
        row[at] = lane < lanes(group) ? order[at] : -1;
        if (lane < lanes(group)) scale[at] = weights.scale[order[at]];
      }
      if (planes == kBits) {
        auto* data = reinterpret_cast<uint8_t*>(memory + made.offset[kData]) + first[group];
        auto* head = reinterpret_cast<uint64_t*>(memory + made.offset[kHead]) + group * bit_steps(weights.columns);
        walk_bits(group, [&](int64_t step, int bit, int64_t weight) {
          *data++ = static_cast<uint8_t>(weights.value[weight]);
          head[step] |= uint64_t{1} << bit;
          correction[height * group + bit / kSlots] += 128 * weights.value[weight];
        });
        continue;
      }
      walk(group, [&](int64_t step, int64_t base, int lane, int slot, int64_t weight) {
        const int64_t pair = first[group] + step / 2, half = step % 2, code = weights.column[weight] - base;
        auto* data = reinterpret_cast<uint8_t*>(memory + made.offset[kData]) + pair * 3 * kSlots * height;
        auto* head = reinterpret_cast<uint32_t*>(memory + made.offset[kHead]) + pair * words;
        const int64_t at = kSlots * lane + slot;
        data[at] |= static_cast<uint8_t>((code & 15) << (4 * half));
        data[(1 + half) * kSlots * height + at] = static_cast<uint8_t>(weights.value[weight]);
        head[0] = (head[0] & ~(0xffffu << (16 * half))) | static_cast<uint32_t>(base) << (16 * half);
        const int bit = Windows::plane_bit(static_cast<int>(height), lane, slot);
        for (int plane = 0; plane < planes; ++plane)
          head[1 + (half * planes + plane) * size + bit / 32] |= static_cast<uint32_t>(code >> (4 + plane) & 1)
                                                                 << bit % 32;
        correction[height * group + lane] += 128 * weights.value[weight];
      });
    }
  }
};

inline void windows_weights(const Windows& windows, int64_t* first, uint16_t* column, int8_t* value, float* scale) {
  first[0] = 0;
  for (int64_t row = 0; row < windows.rows(); ++row) {
    const int64_t at = windows.place(row);
    int64_t count = first[row];
    windows.each(at / windows.height(), static_cast<int>(at % windows.height()), [&](int64_t found, int weight) {
      column[count] = static_cast<uint16_t>(found), value[count++] = static_cast<int8_t>(weight);
    });
    first[row + 1] = count, scale[row] = windows.scale[at];
  }
}

}  // namespace selfish
