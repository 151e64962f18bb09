// The loops of the bfloat16 kernels over one tile: the product with a wide panel of 64 tokens, that with a narrow panel
// of up to 32 tokens (one step of a recurrence), and the gradient of the tile's weights from wide panels.
//
// An operand's line is one chunk of tokens (narrow) or two (wide); results are float32. Four lines are stored together
// (bf16_index.hpp). Wide loops take two of them at a time, so one load brings eight weights; the narrow loop takes all
// four, since the latency of additions binds it.
#pragma once

#include "bf16_index.hpp"
#include "bf16_vectors.hpp"

namespace selfish {
namespace SELFISH_TARGET {

constexpr int kWide = 2 * kChunk;
constexpr int kSlotsOfFour = 4 * kLinesTogether;
static_assert(kWide * sizeof(uint16_t) == kLineBytes, "offsets are for wide lines");

// Two lines of a group, beginning with the one called First.
SELFISH_INLINE void multiply_wide(int fours, const uint16_t* offset, const uint16_t* value, const char* x,
                                  float* const* rows) {
  ChunkSums<16, 16> sums[2][2][2];  // line, set, chunk: two sets hide the latency of additions
  SELFISH_UNROLL for (int line = 0; line < 2; ++line)
    SELFISH_UNROLL for (int chunk = 0; chunk < 2; ++chunk) {
      sums[line][0][chunk] = {load<V16>(rows[line] + kChunk * chunk), load<V16>(rows[line] + kChunk * chunk + 16)};
      sums[line][1][chunk] = {V16{}, V16{}};
    }
  for (; fours > 0; --fours, offset += kSlotsOfFour, value += kSlotsOfFour) {
    const EightWeights weights = load_weights(value);
    const uint64_t first = four_offsets(offset), second = four_offsets(offset + 4);
    SELFISH_UNROLL for (int chunk = 0; chunk < 2; ++chunk) {
      const char* from = x + kChunkBytes * chunk;
      add_pair<0>(sums[0][0][chunk], weights, from + offset_of<0>(first), from + offset_of<1>(first));
      add_pair<1>(sums[0][1][chunk], weights, from + offset_of<2>(first), from + offset_of<3>(first));
      add_pair<2>(sums[1][0][chunk], weights, from + offset_of<0>(second), from + offset_of<1>(second));
      add_pair<3>(sums[1][1][chunk], weights, from + offset_of<2>(second), from + offset_of<3>(second));
    }
  }
  SELFISH_UNROLL for (int line = 0; line < 2; ++line)
    SELFISH_UNROLL for (int chunk = 0; chunk < 2; ++chunk) {
      store<V16>(rows[line] + kChunk * chunk, sums[line][0][chunk].low + sums[line][1][chunk].low);
      store<V16>(rows[line] + kChunk * chunk + 16, sums[line][0][chunk].high + sums[line][1][chunk].high);
    }
}

SELFISH_INLINE void fetch_lines(const float* first, const float* second) {
  SELFISH_UNROLL for (int at = 0; at < kWide; at += 16) {
    __builtin_prefetch(first + at, 1);
    __builtin_prefetch(second + at, 1);
  }
}

// y += W x for one tile and a wide panel; x and y point to the tile's first operand and first line.
inline void spmm_wide(const Bf16Tile& tile, const uint16_t* values, const char* x, float* y) {
  alignas(64) float unused[kWide] = {};  // for lines that a group lacks
  const uint16_t *offset = tile.offsets, *value = values + tile.first_slot;
  for (const Bf16Group* group = tile.groups; group != tile.end; ++group) {
    for (int first = 0; first < group->lines; first += 2) {
      float* rows[2] = {y + group->line[first] * kWide,
                        first + 1 < group->lines ? y + group->line[first + 1] * kWide : unused};
      const uint16_t* next = first == 0 ? group->line + 2 : group[1].line;
      fetch_lines(y + next[0] * kWide, y + next[1] * kWide);
      multiply_wide(group->fours, offset + 4 * first, value + 4 * first, x, rows);
    }
    offset += kSlotsOfFour * group->fours, value += kSlotsOfFour * group->fours;
  }
}

// The narrow product. `low` has the results' first Low columns, line after line, `high` the next High ones.
template <int Low, int High>
inline void spmm_narrow_of(const Bf16Tile& tile, const uint16_t* values, const char* x, float* low, float* high) {
  alignas(64) float unused[kChunk] = {};
  using VLow = decltype(ChunkSums<Low, High>::low);
  using VHigh = decltype(ChunkSums<Low, High>::high);
  const uint16_t *offset = tile.offsets, *value = values + tile.first_slot;
  for (const Bf16Group* group = tile.groups; group != tile.end; ++group) {
    ChunkSums<Low, High> sums[kLinesTogether][2] = {};
    float *low_row[kLinesTogether], *high_row[kLinesTogether];
    SELFISH_UNROLL for (int line = 0; line < kLinesTogether; ++line) {
      const bool real = line < group->lines;
      low_row[line] = real ? low + group->line[line] * Low : unused;
      __builtin_prefetch(low + group[2].line[line] * Low, 1);
      if constexpr (High > 0) __builtin_prefetch(high + group[2].line[line] * High, 1);
      sums[line][0].low = load<VLow>(low_row[line]);
      if constexpr (High > 0) {
        high_row[line] = real ? high + group->line[line] * High : unused + Low;
        sums[line][0].high = load<VHigh>(high_row[line]);
      }
    }
    for (int fours = group->fours; fours > 0; --fours, offset += kSlotsOfFour, value += kSlotsOfFour) {
      __builtin_prefetch(offset + 512);
      __builtin_prefetch(value + 512);
      SELFISH_UNROLL for (int line = 0; line < kLinesTogether; line += 2) {
        const EightWeights weights = load_weights(value + 4 * line);
        // Narrow lines take half the bytes that offsets are for. No bit crosses into another offset: all are even.
        const uint64_t first = four_offsets(offset + 4 * line) >> 1, second = four_offsets(offset + 4 * line + 4) >> 1;
        add_pair<0>(sums[line][0], weights, x + offset_of<0>(first), x + offset_of<1>(first));
        add_pair<1>(sums[line][1], weights, x + offset_of<2>(first), x + offset_of<3>(first));
        add_pair<2>(sums[line + 1][0], weights, x + offset_of<0>(second), x + offset_of<1>(second));
        add_pair<3>(sums[line + 1][1], weights, x + offset_of<2>(second), x + offset_of<3>(second));
      }
    }
    SELFISH_UNROLL for (int line = 0; line < kLinesTogether; ++line) {
      store<VLow>(low_row[line], sums[line][0].low + sums[line][1].low);
      if constexpr (High > 0) store<VHigh>(high_row[line], sums[line][0].high + sums[line][1].high);
    }
  }
}

inline void spmm_narrow(int low_width, int high_width, const Bf16Tile& tile, const uint16_t* values, const char* x,
                        float* low, float* high) {
  switch (low_width + high_width) {
    case 4: return spmm_narrow_of<4, 0>(tile, values, x, low, high);
    case 8: return spmm_narrow_of<8, 0>(tile, values, x, low, high);
    case 16: return spmm_narrow_of<16, 0>(tile, values, x, low, high);
    case 20: return spmm_narrow_of<16, 4>(tile, values, x, low, high);
    case 24: return spmm_narrow_of<16, 8>(tile, values, x, low, high);
    default: return spmm_narrow_of<16, 16>(tile, values, x, low, high);
  }
}

// The gradients of one tile's slots, over as many panels as Panels at once: each panel's x and d point to the tile's first
// operand and first line. Written to `found`, or added to what it has.
template <int Panels>
inline void sddmm_wide(const Bf16Tile& tile, float* found, const char* const* x, const char* const* d, bool afresh) {
  const uint16_t* offset = tile.offsets;
  for (const Bf16Group* group = tile.groups; group != tile.end; ++group) {
    for (int first = 0; first < group->lines; first += 2) {
      // Lines come in the order of their lengths, which no hardware prefetcher follows.
      const uint16_t* ahead = first == 0 ? group[1].line + 2 : group[2].line;
      Chunk lines[2][Panels][2];
      SELFISH_UNROLL for (int line = 0; line < 2; ++line)
        SELFISH_UNROLL for (int panel = 0; panel < Panels; ++panel)
          SELFISH_UNROLL for (int chunk = 0; chunk < 2; ++chunk) {
            lines[line][panel][chunk] =
                load_chunk(d[panel] + group->line[first + line] * kLineBytes + kChunkBytes * chunk);
            __builtin_prefetch(d[panel] + ahead[line] * kLineBytes + kChunkBytes * chunk);
          }
      const uint16_t* here = offset + 4 * first;
      float* to = found + 4 * first;
      for (int fours = group->fours; fours > 0; --fours, here += kSlotsOfFour, to += kSlotsOfFour) {
        const uint64_t offsets[2] = {four_offsets(here), four_offsets(here + 4)};
        V16 sum[8];
        SELFISH_UNROLL for (int line = 0; line < 2; ++line) {
          const size_t at[4] = {offset_of<0>(offsets[line]), offset_of<1>(offsets[line]), offset_of<2>(offsets[line]),
                                offset_of<3>(offsets[line])};
          SELFISH_UNROLL for (int weight = 0; weight < 4; ++weight) {
            V16 total{};
            SELFISH_UNROLL for (int panel = 0; panel < Panels; ++panel)
              SELFISH_UNROLL for (int chunk = 0; chunk < 2; ++chunk)
                total = add_inner(total, lines[line][panel][chunk], x[panel] + at[weight] + kChunkBytes * chunk);
            sum[4 * line + weight] = total;
          }
        }
        const V8 eight = sums_of_eight(sum);
        store<V8>(to, afresh ? eight : load<V8>(to) + eight);
      }
    }
    offset += kSlotsOfFour * group->fours, found += kSlotsOfFour * group->fours;
  }
}

}  // namespace SELFISH_TARGET
}  // namespace selfish
