// A recurrent highway layer over a window: all input products first, then micro-step by micro-step the product with
// the matrix of its depth, and
//
//   s' = s + t (h - s),   h = tanh(a), t = sigmoid(b)
#pragma once

#include <vector>

#include "window.hpp"

namespace selfish {
namespace SELFISH_TARGET {

// Where the lines of every micro-step lie. Micro-steps are numbered through the whole window.
struct HighwayLayout : StepLayout {
  int64_t depth, lines;
  bool keep;
  Panels wide;

  HighwayLayout(const LayerShape& shape, int64_t depth_, bool keep_)
      : StepLayout(shape), depth(depth_), lines(2 * hidden), keep(keep_), wide(steps * batch) {}

  template <class Float>
  Float* gates(Float* first, Float* later, int64_t micro, int part) const {
    const int64_t step = micro / depth, level = micro % depth;
    if (level == 0) return at(first, step, part, lines);
    return at(later, keep ? step * (depth - 1) + level - 1 : 0, part, lines);
  }
  template <class Float>
  Float* state(Float* states, int64_t micro, int part) const {
    return at(states, keep ? micro : micro & 1, part, hidden);
  }
};

inline std::vector<Packed> all_packed(const void* const* indices, int64_t count) {
  return std::vector<Packed>(indices, indices + count);
}

// The units of one micro-step from their sums on; `masked` gets what the next matrix sees, where there is a mask.
inline void highway_units(float* gates, const float* before, float* after, const float* mask, float* masked,
                          int64_t spacing, int64_t first, int64_t stop) {
  for (int64_t at = first; at < stop; at += kLanes<Widest>) {
    const int64_t n = stop - at;
    const Widest nonlinear = tanh(load_some<Widest>(gates + at, n));
    const Widest transform = sigmoid(load_some<Widest>(gates + spacing + at, n));
    const Widest state = load_some<Widest>(before + at, n);
    const Widest result = state + transform * (nonlinear - state);
    store_some(gates + at, nonlinear, n);
    store_some(gates + spacing + at, transform, n);
    store_some(after + at, result, n);
    if (mask != nullptr) store_some(masked + at, result * load_some<Widest>(mask + at, n), n);
  }
}

// The backward pass of highway_units: turns d_state after the micro-step into d_state before it, without what comes
// through the matrix.
inline void highway_units_backward(const float* gates, const float* before, float* d_state, float* d_gates,
                                   int64_t spacing, int64_t first, int64_t stop) {
  for (int64_t at = first; at < stop; at += kLanes<Widest>) {
    const int64_t n = stop - at;
    const Widest nonlinear = load_some<Widest>(gates + at, n), transform = load_some<Widest>(gates + spacing + at, n);
    const Widest d = load_some<Widest>(d_state + at, n), carried = d * (1.f - transform);
    store_some(d_gates + at, d * transform * (1.f - nonlinear * nonlinear), n);
    store_some(d_gates + spacing + at, (nonlinear - load_some<Widest>(before + at, n)) * transform * carried, n);
    store_some(d_state + at, carried, n);
  }
}

inline void highway_forward(const HighwayForward& layer) {
  const HighwayLayout layout(layer.shape, layer.depth, layer.keep != 0);
  const Panels& wide = layout.wide;
  const int64_t hidden = layout.hidden, depth = layout.depth, micros = layout.steps * depth;
  const int64_t one_state = layout.line_floats(hidden);
  const std::vector<Packed> recurrences = all_packed(layer.recurrent_index, depth);
  std::vector<StepMatrix<false>> matrices;
  for (int64_t level = 0; level < depth; ++level)
    matrices.emplace_back(recurrences[level], layer.recurrent_values[level], layout);
  const bool has_mask = layer.mask != nullptr;

  project_inputs(Packed(layer.input_index), layer.input_values, layer.biases[0], layer.x, layer.x_panels, wide, layout,
                 [&](int64_t step, int part) { return layout.at(layer.gates, step, part, layout.lines); });
  state_from_rows(layer.h_first, layout, layer.states);
  if (has_mask) {
    state_from_rows(layer.mask, layout, layer.mask_panels);
    for (int64_t at = 0; at < one_state; ++at) layer.masked[at] = layer.states[at] * layer.mask_panels[at];
  }
  // What the matrix of a micro-step sees.
  const auto seen = [&](int64_t micro, int part) {
    return has_mask ? layout.at(layer.masked, micro & 1, part, hidden) : layout.state(layer.states, micro, part);
  };
  const auto keep_seen = [&](int64_t micro, int part, int64_t unit, int64_t stop) {
    if (layout.keep && micro < micros)
      widen(seen(micro, part), layout, micro / depth, part, unit, stop,
            layer.h_panels + micro % depth * wide.floats(hidden), wide, hidden);
  };
  for (int part = 0; part < layout.parts; ++part) keep_seen(0, part, 0, hidden);
#pragma omp parallel
  for (int64_t micro = 0; micro < micros; ++micro) {
    const int64_t level = micro % depth;
    const Packed& recurrence = recurrences[level];
    // As many tiles for either gate, each thread taking the same units of both.
    const int chunks = recurrence.row_tiles() / 2;
    const Share share(chunks);
    for (int chunk = share.begin; chunk < share.end; ++chunk) {
      const int64_t unit = recurrence.first_row(chunk), stop = recurrence.first_row(chunk + 1);
      for (int part = 0; level > 0 && part < layout.parts; ++part) {
        const int width = layout.part(part).width;
        float* gates = layout.gates(layer.gates, layer.later_gates, micro, part);
        for (int64_t line = unit; line < layout.lines; line += hidden)
          fill_lines(gates + line * width, width, stop - unit, layer.biases[level] + line);
      }
      for (int row_tile : {chunk, chunks + chunk})
        matrices[level].add_products(row_tile, seen(micro, 0), layout.gates(layer.gates, layer.later_gates, micro, 0));
      for (int part = 0; part < layout.parts; ++part) {
        const int width = layout.part(part).width;
        float* after = layout.state(layer.states, micro + 1, part);
        highway_units(layout.gates(layer.gates, layer.later_gates, micro, part),
                      layout.state(layer.states, micro, part), after,
                      has_mask ? layout.at(layer.mask_panels, 0, part, hidden) : nullptr, seen(micro + 1, part),
                      hidden * width, unit * width, stop * width);
        if (level == depth - 1) write_rows(after, layout, micro / depth, part, unit, stop, layer.y);
        keep_seen(micro + 1, part, unit, stop);
      }
    }
#pragma omp barrier
  }
  for (int64_t level = 0; level < depth && layout.keep; ++level)
    clear_tail(layer.h_panels + level * wide.floats(hidden), wide, hidden);
}

inline void highway_backward(const HighwayBackward& layer) {
  const HighwayLayout layout(layer.shape, layer.depth, true);
  const Panels& wide = layout.wide;
  const int64_t hidden = layout.hidden, lines = layout.lines, depth = layout.depth;
  const std::vector<Packed> recurrences = all_packed(layer.recurrent_index, depth);
  std::vector<StepMatrix<true>> matrices;
  float* values_t = layer.values_t;
  for (int64_t level = 0; level < depth; ++level) {
    transpose_values(recurrences[level], layer.recurrent_values[level], values_t);
    matrices.emplace_back(recurrences[level], values_t, layout);
    values_t += recurrences[level].header->count;
    clear_tail(layer.d_panels + level * wide.floats(lines), wide, lines);
  }
  if (layer.mask != nullptr) state_from_rows(layer.mask, layout, layer.mask_panels);
#pragma omp parallel
  {
    const int64_t last = layout.steps * depth - 1;
    // Micro-step -1 is the state before the window: it gets a gradient but has no cell.
    for (int64_t micro = last; micro >= (layer.dh_first != nullptr ? -1 : 0); --micro) {
      const int64_t level = micro % depth, later = (micro + 1) % depth;
      const Packed& recurrence = recurrences[later];
      const Share share(recurrence.column_tiles());
      for (int tile = share.begin; tile < share.end; ++tile) {
        const int64_t unit = recurrence.first_column(tile), stop = recurrence.first_column(tile + 1);
        const float* d_later = layout.at(layer.d_gates, (micro + 1) & 1, 0, lines);
        // What comes through the matrix is added to the gradient of the state, or masked first.
        float* through = layer.mask == nullptr ? layer.d_state : layer.d_through;
        for (int part = 0; part < layout.parts; ++part) {
          const int width = layout.part(part).width;
          float* fresh = layout.at(micro == last ? layer.d_state : through, 0, part, hidden);
          if (micro == last || layer.mask != nullptr) std::fill(fresh + unit * width, fresh + stop * width, 0.f);
        }
        if (micro < last) matrices[later].add_products(tile, d_later, through);
        for (int part = 0; part < layout.parts; ++part) {
          const int width = layout.part(part).width;
          float* d_state = layout.at(layer.d_state, 0, part, hidden);
          if (micro < last && layer.mask != nullptr) {
            const float* mask = layout.at(layer.mask_panels, 0, part, hidden);
            const float* masked_ = layout.at(through, 0, part, hidden);
            for (int64_t at = unit * width; at < stop * width; ++at) d_state[at] += mask[at] * masked_[at];
          }
          if (micro < 0) continue;
          if (level == depth - 1) add_rows(d_state, layer.dy, layout, micro / depth, part, unit, stop);
          float* d_gates = layout.at(layer.d_gates, micro & 1, part, lines);
          highway_units_backward(layout.gates(layer.gates, layer.later_gates, micro, part),
                                 layout.state(layer.states, micro, part), d_state, d_gates, hidden * width,
                                 unit * width, stop * width);
          for (int64_t line = 0; line < lines; line += hidden)
            widen(d_gates, layout, micro / depth, part, line + unit, line + stop,
                  layer.d_panels + level * wide.floats(lines), wide, lines);
        }
      }
#pragma omp barrier
    }
  }
  if (layer.dh_first != nullptr) state_to_rows(layer.d_state, layout, layer.dh_first);
  for (int64_t level = 0; level < depth; ++level) {
    const float* d_panels = layer.d_panels + level * wide.floats(lines);
    if (layer.recurrent_gradients[level] != nullptr)
      sddmm_panels(recurrences[level], layer.recurrent_gradients[level], layer.h_panels + level * wide.floats(hidden),
                   d_panels, wide, true);
    if (layer.bias_gradients[level] != nullptr) sum_lines(d_panels, wide, lines, layer.bias_gradients[level]);
  }
  inputs_backward(Packed(layer.input_index), layer.input_values, layer.x, layer.d_panels, wide, layer.dx,
                  layer.input_gradients, layer.values_t, layer.x_panels);
}

}  // namespace SELFISH_TARGET
}  // namespace selfish
