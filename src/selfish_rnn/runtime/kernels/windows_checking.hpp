// Whether bytes that come from anywhere are a matrix as WindowsPacking lays it out: they are read without leaving them,
// what was read is laid out anew, and both have to be the same.
#pragma once

#include "windows_packing.hpp"

namespace selfish {

struct WindowsChecking {
  const char* memory;
  WindowsHeader header;
  std::vector<int64_t> first{0};
  std::vector<uint16_t> column;
  std::vector<int8_t> value;
  std::vector<float> scale;

  // For kernels that take groups of this height, and these planes.
  bool valid(int64_t bytes, int64_t height, bool (*has_planes)(int64_t)) {
    if (bytes < static_cast<int64_t>(sizeof header)) return false;
    std::memcpy(&header, memory, sizeof header);
    if (!has_planes(header.planes) || !sizes_fit(bytes, height)) return false;
    const Windows windows(memory);
    if (!groups_fit(windows) || !rows_fit(windows)) return false;
    for (int64_t row = 0; row < header.rows; ++row)
      if (!read(windows, row)) return false;
    const Int8Weights weights{header.rows,  header.columns, first.back(), 0,
                              first.data(), column.data(),  value.data(), scale.data()};
    std::vector<char> anew(bytes + 64);
    char* begin = anew.data() + (64 - reinterpret_cast<uintptr_t>(anew.data()) % 64) % 64;
    const WindowsPacking packing(weights, header.height, header.planes);
    if (packing.header().bytes != bytes) return false;
    packing.build(begin);
    return std::memcmp(begin, memory, bytes) == 0;
  }

  // No number is larger than the bytes, so that no product of a few of them overflows.
  bool sizes_fit(int64_t bytes, int64_t height) const {
    for (int64_t number : {header.rows, header.count, header.groups, header.pairs})
      if (number < 0 || number > bytes) return false;
    if (header.rows < 1 || header.columns < 1 || header.columns > kMostColumns || header.height != height) return false;
    if (header.groups != (header.rows + height - 1) / height) return false;
    WindowsHeader expected = header;
    place_sections(expected);
    return expected.bytes == bytes && std::memcmp(&expected, &header, sizeof header) == 0;
  }

  // In bits a group has as many weights as bits.
  bool groups_fit(const Windows& windows) const {
    if (windows.first[0] != 0 || windows.first[header.groups] != header.pairs) return false;
    for (int64_t group = 0; group < header.groups; ++group) {
      if (windows.first[group] > windows.first[group + 1]) return false;
      if (header.planes != kBits) continue;
      int64_t count = 0;
      for (int64_t step = 0; step < bit_steps(header.columns); ++step)
        count += __builtin_popcountll(windows.bits(group, step));
      if (count != windows.first[group + 1] - windows.first[group]) return false;
    }
    return true;
  }

  // Every row is once in its stretch.
  bool rows_fit(const Windows& windows) const {
    std::vector<bool> found(header.rows);
    for (int64_t at = 0; at < header.height * header.groups; ++at) {
      const int64_t row = windows.row[at];
      if (at >= header.rows && row == -1) continue;
      if (at >= header.rows || row < 0 || row >= header.rows || row / kStretch != at / kStretch || found[row])
        return false;
      found[row] = true;
    }
    return true;
  }

  bool read(const Windows& windows, int64_t row) {
    const int64_t at = windows.place(row);
    int64_t last = -1;
    bool right = true;
    windows.each(at / header.height, static_cast<int>(at % header.height), [&](int64_t here, int weight) {
      right &= here > last && here < header.columns && weight != 0 && weight != -128;
      last = here;
      column.push_back(static_cast<uint16_t>(here)), value.push_back(static_cast<int8_t>(weight));
    });
    first.push_back(static_cast<int64_t>(column.size())), scale.push_back(windows.scale[at]);
    return right && scale.back() >= 0 && scale.back() <= 3.4028235e38f;
  }
};

}  // namespace selfish
