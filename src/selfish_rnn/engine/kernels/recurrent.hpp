// One recurrent layer over a window: all input products first, then step by step the recurrent product and the cell.
#pragma once

#include "window.hpp"

namespace selfish {
namespace SELFISH_TARGET {

// Eight values of one unit (or of eight, for a single column) as a cell sees them. `gates` are spaced by `spacing`.
struct ForwardSite {
  float* gates;            // in: sums of inputs (and recurrence, unless the cell keeps that apart); out: activations
  const float* recurrent;  // the recurrence apart, spaced alike
  int64_t spacing;
  const float* before;       // h
  const float* cell_before;  // c, of an LSTM
  float* after;
  float* cell_after;
  float* extra;  // what else the cell needs for the backward pass
  int64_t count;
};

struct BackwardSite {
  const float* gates;
  int64_t spacing;
  const float* cell_before;
  const float* cell_after;
  const float* before;
  const float* extra;
  V8 d_after;          // of h after this step
  float* d_cell;       // in: of c after this step; out: before it
  float* d_input;      // of the sums of inputs
  float* d_recurrent;  // of the recurrent sums, where the cell keeps them apart
  float* d_direct;     // of h before this step, other than through the recurrent matrix
  int64_t count;
};

struct LSTM {
  static constexpr int kGates = 4;  // input, forget, candidate, output
  static constexpr bool kApart = false, kCell = true, kDirect = false;

  static SELFISH_INLINE void forward(const ForwardSite& site) {
    const int64_t n = site.count, s = site.spacing;
    const V8 in = sigmoid(load_some(site.gates, n)), forget = sigmoid(load_some(site.gates + s, n));
    const V8 candidate = tanh(load_some(site.gates + 2 * s, n));
    const V8 out = sigmoid(load_some(site.gates + 3 * s, n));
    const V8 cell = forget * load_some(site.cell_before, n) + in * candidate;
    store_some(site.gates, in, n);
    store_some(site.gates + s, forget, n);
    store_some(site.gates + 2 * s, candidate, n);
    store_some(site.gates + 3 * s, out, n);
    store_some(site.cell_after, cell, n);
    store_some(site.after, out * tanh(cell), n);
  }

  static SELFISH_INLINE void backward(const BackwardSite& site) {
    const int64_t n = site.count, s = site.spacing;
    const V8 in = load_some(site.gates, n), forget = load_some(site.gates + s, n);
    const V8 candidate = load_some(site.gates + 2 * s, n), out = load_some(site.gates + 3 * s, n);
    const V8 squashed = tanh(load_some(site.cell_after, n));
    const V8 d_cell = site.d_after * out * (1.f - squashed * squashed) + load_some(site.d_cell, n);
    store_some(site.d_input, d_cell * candidate * in * (1.f - in), n);
    store_some(site.d_input + s, d_cell * load_some(site.cell_before, n) * forget * (1.f - forget), n);
    store_some(site.d_input + 2 * s, d_cell * in * (1.f - candidate * candidate), n);
    store_some(site.d_input + 3 * s, site.d_after * squashed * out * (1.f - out), n);
    store_some(site.d_cell, d_cell * forget, n);
  }
};

struct GRU {
  static constexpr int kGates = 3;  // reset, update, candidate
  static constexpr bool kApart = true, kCell = false, kDirect = true;

  static SELFISH_INLINE void forward(const ForwardSite& site) {
    const int64_t n = site.count, s = site.spacing;
    const V8 reset = sigmoid(load_some(site.gates, n) + load_some(site.recurrent, n));
    const V8 update = sigmoid(load_some(site.gates + s, n) + load_some(site.recurrent + s, n));
    const V8 recalled = load_some(site.recurrent + 2 * s, n);
    const V8 candidate = tanh(load_some(site.gates + 2 * s, n) + reset * recalled);
    store_some(site.gates, reset, n);
    store_some(site.gates + s, update, n);
    store_some(site.gates + 2 * s, candidate, n);
    store_some(site.extra, recalled, n);
    store_some(site.after, candidate + update * (load_some(site.before, n) - candidate), n);
  }

  static SELFISH_INLINE void backward(const BackwardSite& site) {
    const int64_t n = site.count, s = site.spacing;
    const V8 reset = load_some(site.gates, n), update = load_some(site.gates + s, n);
    const V8 candidate = load_some(site.gates + 2 * s, n);
    const V8 d_candidate = site.d_after * (1.f - update) * (1.f - candidate * candidate);
    const V8 d_update = site.d_after * (load_some(site.before, n) - candidate) * update * (1.f - update);
    const V8 d_reset = d_candidate * load_some(site.extra, n) * reset * (1.f - reset);
    store_some(site.d_input, d_reset, n);
    store_some(site.d_input + s, d_update, n);
    store_some(site.d_input + 2 * s, d_candidate, n);
    store_some(site.d_recurrent, d_reset, n);
    store_some(site.d_recurrent + s, d_update, n);
    store_some(site.d_recurrent + 2 * s, d_candidate * reset, n);
    store_some(site.d_direct, site.d_after * update, n);
  }
};

template <bool Rectified>
struct Elman {
  static constexpr int kGates = 1;
  static constexpr bool kApart = false, kCell = false, kDirect = false;

  static SELFISH_INLINE void forward(const ForwardSite& site) {
    const V8 sum = load_some(site.gates, site.count);
    const V8 after = Rectified ? (sum > 0.f ? sum : V8{}) : tanh(sum);
    store_some(site.gates, after, site.count);
    store_some(site.after, after, site.count);
  }

  static SELFISH_INLINE void backward(const BackwardSite& site) {
    const V8 after = load_some(site.gates, site.count);
    const V8 slope = Rectified ? (after > 0.f ? broadcast<V8>(1.f) : V8{}) : 1.f - after * after;
    store_some(site.d_input, site.d_after * slope, site.count);
  }
};

template <class Cell>
void forward(const LayerForward& layer) {
  const Packed inputs(layer.weights.input_index), recurrence(layer.weights.recurrent_index);
  const StepLayout layout(layer.shape);
  const Panels& narrow = layout.panels;
  const int64_t hidden = layout.hidden, lines = Cell::kGates * hidden, width = narrow.width;
  const Panels wide(layout.steps * layout.batch);

  project_inputs(inputs, layer.weights.input_values, layer.bias, layer.x, layer.x_panels, wide, layout,
                 [&](int64_t step, int part) { return layout.at(layer.gates, step, part, lines); });
  state_from_rows(layer.h_first, layout, layer.states);
  if (Cell::kCell) state_from_rows(layer.c_first, layout, layer.cells);
  // Rows of the recurrent matrix: as many tiles for every gate, each thread taking the same units of all gates.
  const int chunks = recurrence.row_tiles() / Cell::kGates;
#pragma omp parallel
  {
    const Share share(chunks);
    for (int64_t step = 0; step < layout.steps; ++step) {
      for (int chunk = share.begin; chunk < share.end; ++chunk)
        for (int part = 0; part < narrow.count; ++part) {
          const int64_t unit = recurrence.first_row(chunk), stop = recurrence.first_row(chunk + 1);
          const float* before = layout.at(layer.states, step, part, hidden);
          float* after = layout.at(layer.states, step + 1, part, hidden);
          float* gates = layout.at(layer.gates, step, part, lines);
          float* sums = Cell::kApart ? layout.at(layer.apart, 0, part, lines) : gates;
          if (Cell::kApart)
            for (int gate = 0; gate < Cell::kGates; ++gate)
              fill_lines(sums + (gate * hidden + unit) * width, narrow.width, stop - unit,
                         layer.recurrent_bias == nullptr ? nullptr : layer.recurrent_bias + gate * hidden + unit);
          for (int column_tile = 0; column_tile < recurrence.column_tiles(); ++column_tile)
            for (int gate = 0; gate < Cell::kGates; ++gate) {
              const int row_tile = gate * chunks + chunk;
              spmm(narrow.width, recurrence.tile(row_tile, column_tile), layer.weights.recurrent_values,
                   before + recurrence.first_column(column_tile) * width,
                   sums + recurrence.first_row(row_tile) * width);
            }
          for (int64_t at = unit * width; at < stop * width; at += 8) {
            ForwardSite site{};
            site.gates = gates + at, site.recurrent = sums + at, site.spacing = hidden * width;
            site.before = before + at, site.after = after + at, site.count = stop * width - at;
            if (Cell::kCell) {
              site.cell_before = layout.at(layer.cells, step, part, hidden) + at;
              site.cell_after = layout.at(layer.cells, step + 1, part, hidden) + at;
            }
            if (Cell::kApart) site.extra = layout.at(layer.extra, step, part, hidden) + at;
            Cell::forward(site);
          }
          float* rows = layer.y + (step * layout.batch + narrow.first(part)) * hidden + unit;
          to_rows(after + unit * width, narrow.width, narrow.filled(part), stop - unit, rows, hidden);
          if (layer.h_panels != nullptr && step + 1 < layout.steps)
            widen(after, layout, step + 1, part, unit, stop, layer.h_panels, wide, hidden);
        }
#pragma omp barrier
    }
  }
  if (layer.h_panels != nullptr) {
    // The state before the first step, and zeros behind the last token.
    for (int part = 0; part < narrow.count; ++part)
      widen(layout.at(layer.states, 0, part, hidden), layout, 0, part, 0, hidden, layer.h_panels, wide, hidden);
    clear_tail(layer.h_panels, wide, hidden);
  }
  state_to_rows(layout.at(layer.states, layout.steps, 0, hidden), layout, layer.h_last);
  if (Cell::kCell) state_to_rows(layout.at(layer.cells, layout.steps, 0, hidden), layout, layer.c_last);
}

template <class Cell>
void backward(const LayerBackward& layer) {
  const Packed inputs(layer.weights.input_index), recurrence(layer.weights.recurrent_index);
  const StepLayout layout(layer.shape);
  const Panels& narrow = layout.panels;
  const int64_t hidden = layout.hidden, lines = Cell::kGates * hidden, width = narrow.width;
  const Panels wide(layout.steps * layout.batch);
  float* d_recurrent_panels = Cell::kApart ? layer.d_recurrent_panels : layer.d_input_panels;

  transpose_values(recurrence, layer.weights.recurrent_values, layer.values_t);
  if (Cell::kCell) {
    if (layer.dc_last != nullptr)
      state_from_rows(layer.dc_last, layout, layer.d_cell);
    else
      std::fill(layer.d_cell, layer.d_cell + layout.line_floats(hidden), 0.f);
  }
  if (layer.dh_last != nullptr) state_from_rows(layer.dh_last, layout, layer.d_state);
  clear_tail(layer.d_input_panels, wide, lines);
  if (Cell::kApart) clear_tail(d_recurrent_panels, wide, lines);
#pragma omp parallel
  {
    const Share share(recurrence.column_tiles());
    // Two of each, used in turn: while one step's gradients are read by all threads the next one's are written.
    const int64_t turn = layout.line_floats(lines);
    // Step -1 is the state before the window: it gets a gradient but has no cell.
    for (int64_t step = layout.steps - 1; step >= (layer.gradients.dh_first != nullptr ? -1 : 0); --step) {
      float* d_input = layer.d_input + (step & 1) * turn;
      float* d_recurrent = Cell::kApart ? layer.d_recurrent + (step & 1) * turn : d_input;
      float* d_later = (Cell::kApart ? layer.d_recurrent : layer.d_input) + ((step + 1) & 1) * turn;
      for (int tile = share.begin; tile < share.end; ++tile)
        for (int part = 0; part < narrow.count; ++part) {
          const int64_t unit = recurrence.first_column(tile), stop = recurrence.first_column(tile + 1);
          float* d_after = layout.at(layer.d_state, 0, part, hidden);
          const bool last = step == layout.steps - 1;
          if (last && layer.dh_last == nullptr) std::fill(d_after + unit * width, d_after + stop * width, 0.f);
          if (!last && !Cell::kDirect) std::fill(d_after + unit * width, d_after + stop * width, 0.f);
          if (!last)
            through_recurrence(recurrence, tile, layer.values_t, layout.at(d_later, 0, part, lines), narrow.width,
                               d_after);
          if (step < 0) continue;
          add_rows(d_after, layer.dy, layout, step, part, unit, stop);
          float* input_here = layout.at(d_input, 0, part, lines);
          float* recurrent_here = layout.at(d_recurrent, 0, part, lines);
          for (int64_t at = unit * width; at < stop * width; at += 8) {
            BackwardSite site{};
            site.gates = layout.at(layer.gates, step, part, lines) + at, site.spacing = hidden * width;
            site.before = layout.at(layer.states, step, part, hidden) + at;
            if (Cell::kCell) {
              site.cell_before = layout.at(layer.cells, step, part, hidden) + at;
              site.cell_after = layout.at(layer.cells, step + 1, part, hidden) + at;
              site.d_cell = layout.at(layer.d_cell, 0, part, hidden) + at;
            }
            if (Cell::kApart) site.extra = layout.at(layer.extra, step, part, hidden) + at;
            site.count = stop * width - at;
            site.d_after = load_some(d_after + at, site.count);
            site.d_input = input_here + at, site.d_recurrent = recurrent_here + at, site.d_direct = d_after + at;
            Cell::backward(site);
          }
          for (int64_t gate = 0; gate < lines; gate += hidden) {
            widen(input_here, layout, step, part, gate + unit, gate + stop, layer.d_input_panels, wide, lines);
            if (Cell::kApart)
              widen(recurrent_here, layout, step, part, gate + unit, gate + stop, d_recurrent_panels, wide, lines);
          }
        }
#pragma omp barrier
    }
  }
  if (layer.gradients.dh_first != nullptr) {
    state_to_rows(layer.d_state, layout, layer.gradients.dh_first);
    if (Cell::kCell) state_to_rows(layer.d_cell, layout, layer.gradients.dc_first);
  }
  if (layer.gradients.recurrent_gradients != nullptr)
    sddmm_panels(recurrence, layer.gradients.recurrent_gradients, layer.h_panels, d_recurrent_panels, wide, true);
  inputs_backward(inputs, layer.weights.input_values, layer.x, layer.d_input_panels, wide, layer.gradients.dx,
                  layer.gradients.input_gradients, layer.values_t, layer.x_panels);
  if (layer.gradients.bias_gradient != nullptr)
    sum_lines(layer.d_input_panels, wide, lines, layer.gradients.bias_gradient);
  if (layer.gradients.recurrent_bias_gradient != nullptr) {
    if (Cell::kApart || layer.gradients.bias_gradient == nullptr)
      sum_lines(d_recurrent_panels, wide, lines, layer.gradients.recurrent_bias_gradient);
    else
      std::copy(layer.gradients.bias_gradient, layer.gradients.bias_gradient + lines,
                layer.gradients.recurrent_bias_gradient);
  }
}

}  // namespace SELFISH_TARGET
}  // namespace selfish
