// One recurrent layer over a window: all input products first, then step by step the recurrent product and the cell.
#pragma once

#include "window.hpp"

namespace selfish {
namespace SELFISH_TARGET {

// A vector of values of one gate, of one unit or several, as a cell sees them; at the end of a row `count` may be less
// than its lanes. `gates` are spaced by `spacing`.
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
  Widest d_after;      // of h after this step
  float* d_cell;       // in: of c after this step; out: before it
  float* d_input;      // of the sums of inputs
  float* d_recurrent;  // of the recurrent sums, where the cell keeps them apart
  float* d_direct;     // of h before this step, other than through the recurrent matrix
  int64_t count;
};

struct LSTM {
  static constexpr int kGates = 4;  // input, forget, candidate, output
  static constexpr bool kApart = false, kCell = true, kDirect = false, kStates = false;

  static SELFISH_INLINE void forward(const ForwardSite& site) {
    const int64_t n = site.count, s = site.spacing;
    const Widest in = sigmoid(load_some<Widest>(site.gates, n)), forget = sigmoid(load_some<Widest>(site.gates + s, n));
    const Widest candidate = tanh(load_some<Widest>(site.gates + 2 * s, n));
    const Widest out = sigmoid(load_some<Widest>(site.gates + 3 * s, n));
    const Widest cell = forget * load_some<Widest>(site.cell_before, n) + in * candidate;
    store_some(site.gates, in, n);
    store_some(site.gates + s, forget, n);
    store_some(site.gates + 2 * s, candidate, n);
    store_some(site.gates + 3 * s, out, n);
    store_some(site.cell_after, cell, n);
    store_some(site.after, out * tanh(cell), n);
  }

  static SELFISH_INLINE void backward(const BackwardSite& site) {
    const int64_t n = site.count, s = site.spacing;
    const Widest in = load_some<Widest>(site.gates, n), forget = load_some<Widest>(site.gates + s, n);
    const Widest candidate = load_some<Widest>(site.gates + 2 * s, n), out = load_some<Widest>(site.gates + 3 * s, n);
    const Widest squashed = tanh(load_some<Widest>(site.cell_after, n));
    const Widest d_cell = site.d_after * out * (1.f - squashed * squashed) + load_some<Widest>(site.d_cell, n);
    store_some(site.d_input, d_cell * candidate * in * (1.f - in), n);
    store_some(site.d_input + s, d_cell * load_some<Widest>(site.cell_before, n) * forget * (1.f - forget), n);
    store_some(site.d_input + 2 * s, d_cell * in * (1.f - candidate * candidate), n);
    store_some(site.d_input + 3 * s, site.d_after * squashed * out * (1.f - out), n);
    store_some(site.d_cell, d_cell * forget, n);
  }
};

struct GRU {
  static constexpr int kGates = 3;  // reset, update, candidate
  static constexpr bool kApart = true, kCell = false, kDirect = true, kStates = true;

  static SELFISH_INLINE void forward(const ForwardSite& site) {
    const int64_t n = site.count, s = site.spacing;
    const Widest reset = sigmoid(load_some<Widest>(site.gates, n) + load_some<Widest>(site.recurrent, n));
    const Widest update = sigmoid(load_some<Widest>(site.gates + s, n) + load_some<Widest>(site.recurrent + s, n));
    const Widest recalled = load_some<Widest>(site.recurrent + 2 * s, n);
    const Widest candidate = tanh(load_some<Widest>(site.gates + 2 * s, n) + reset * recalled);
    store_some(site.gates, reset, n);
    store_some(site.gates + s, update, n);
    store_some(site.gates + 2 * s, candidate, n);
    store_some(site.extra, recalled, n);
    store_some(site.after, candidate + update * (load_some<Widest>(site.before, n) - candidate), n);
  }

  static SELFISH_INLINE void backward(const BackwardSite& site) {
    const int64_t n = site.count, s = site.spacing;
    const Widest reset = load_some<Widest>(site.gates, n), update = load_some<Widest>(site.gates + s, n);
    const Widest candidate = load_some<Widest>(site.gates + 2 * s, n);
    const Widest d_candidate = site.d_after * (1.f - update) * (1.f - candidate * candidate);
    const Widest d_update = site.d_after * (load_some<Widest>(site.before, n) - candidate) * update * (1.f - update);
    const Widest d_reset = d_candidate * load_some<Widest>(site.extra, n) * reset * (1.f - reset);
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
  static constexpr bool kApart = false, kCell = false, kDirect = false, kStates = false;

  static SELFISH_INLINE void forward(const ForwardSite& site) {
    const Widest sum = load_some<Widest>(site.gates, site.count);
    const Widest after = Rectified ? (sum > 0.f ? sum : Widest{}) : tanh(sum);
    store_some(site.gates, after, site.count);
    store_some(site.after, after, site.count);
  }

  static SELFISH_INLINE void backward(const BackwardSite& site) {
    const Widest after = load_some<Widest>(site.gates, site.count);
    const Widest slope = Rectified ? (after > 0.f ? broadcast<Widest>(1.f) : Widest{}) : 1.f - after * after;
    store_some(site.d_input, site.d_after * slope, site.count);
  }
};

template <class Cell>
void forward(const LayerForward& layer) {
  const Packed inputs(layer.weights.input_index), recurrence(layer.weights.recurrent_index);
  const StepLayout layout(layer.shape);
  const int64_t hidden = layout.hidden, lines = Cell::kGates * hidden;
  const Panels wide(layout.steps * layout.batch);
  // The states of all steps, for a cell whose backward pass asks for them, or two in turn.
  const auto state = [&](int64_t step) { return layout.at(layer.states, Cell::kStates ? step : step & 1, 0, hidden); };

  project_inputs(inputs, layer.weights.input_values, layer.bias, layer.x, layer.x_panels, wide, layout,
                 [&](int64_t step, int part) { return layout.at(layer.gates, step, part, lines); });
  const StepMatrix<false> matrix(recurrence, layer.weights.recurrent_values, layout);
  state_from_rows(layer.h_first, layout, state(0));
  if (Cell::kCell) state_from_rows(layer.c_first, layout, layer.cells);
  if (layer.h_panels != nullptr) {
    for (int part = 0; part < layout.parts; ++part)
      widen(layout.at(state(0), 0, part, hidden), layout, 0, part, 0, hidden, layer.h_panels, wide, hidden);
    clear_tail(layer.h_panels, wide, hidden);
  }
  // Rows of the recurrent matrix: as many tiles for every gate, each thread taking the same units of all gates.
  const int chunks = recurrence.row_tiles() / Cell::kGates;
#pragma omp parallel
  {
    const Share share(chunks);
    for (int64_t step = 0; step < layout.steps; ++step) {
      for (int chunk = share.begin; chunk < share.end; ++chunk) {
        const int64_t unit = recurrence.first_row(chunk), stop = recurrence.first_row(chunk + 1);
        float* step_gates = layout.at(layer.gates, step, 0, lines);
        float* step_sums = Cell::kApart ? layer.apart : step_gates;
        for (int part = 0; Cell::kApart && part < layout.parts; ++part)
          for (int gate = 0; gate < Cell::kGates; ++gate) {
            const int width = layout.part(part).width;
            const int64_t line = gate * hidden + unit;
            fill_lines(layout.at(step_sums, 0, part, lines) + line * width, width, stop - unit,
                       layer.recurrent_bias == nullptr ? nullptr : layer.recurrent_bias + line);
          }
        for (int panel = 0; panel < layout.panels.count; ++panel)
          for (int column_tile = 0; column_tile < recurrence.column_tiles(); ++column_tile)
            for (int gate = 0; gate < Cell::kGates; ++gate) {
              // Products reach the sums of inputs in the order of the lines' lengths, which no processor foresees. They
              // come from the outer caches, a share of the next chunk's for each tile of this one.
              const bool more = chunk + 1 < share.end;
              const int after = more ? chunk + 1 : share.begin;
              if (more || step + 1 < layout.steps) {
                const float* sums = layout.at(layer.gates, step + !more, 0, lines);
                const int64_t first = gate * hidden + recurrence.first_row(after);
                const int64_t count = recurrence.first_row(after + 1) - recurrence.first_row(after);
                for (int part = 0; part < layout.parts; ++part) {
                  const int width = layout.part(part).width;
                  fetch_share(layout.at(sums, 0, part, lines) + first * width, count * width, column_tile,
                              recurrence.column_tiles());
                }
              }
              matrix.add_product(gate * chunks + chunk, column_tile, panel, state(step), step_sums);
            }
        for (int part = 0; part < layout.parts; ++part) {
          const int width = layout.part(part).width;
          float* after = layout.at(state(step + 1), 0, part, hidden);
          each_vector(unit, stop, width, [&](int64_t at, int64_t left) {
            ForwardSite site{};
            site.gates = layout.at(step_gates, 0, part, lines) + at;
            site.recurrent = layout.at(step_sums, 0, part, lines) + at;
            site.spacing = hidden * width, site.count = left;
            site.before = layout.at(state(step), 0, part, hidden) + at, site.after = after + at;
            if (Cell::kCell) {
              site.cell_before = layout.at(layer.cells, step, part, hidden) + at;
              site.cell_after = layout.at(layer.cells, step + 1, part, hidden) + at;
            }
            if (Cell::kApart) site.extra = layout.at(layer.extra, step, part, hidden) + at;
            Cell::forward(site);
          });
          write_rows(after, layout, step, part, unit, stop, layer.y);
          if (layer.h_panels != nullptr && step + 1 < layout.steps)
            widen(after, layout, step + 1, part, unit, stop, layer.h_panels, wide, hidden);
        }
      }
#pragma omp barrier
    }
  }
  state_to_rows(state(layout.steps), layout, layer.h_last);
  if (Cell::kCell) state_to_rows(layout.at(layer.cells, layout.steps, 0, hidden), layout, layer.c_last);
}

template <class Cell>
void backward(const LayerBackward& layer) {
  const Packed inputs(layer.weights.input_index), recurrence(layer.weights.recurrent_index);
  const StepLayout layout(layer.shape);
  const int64_t hidden = layout.hidden, lines = Cell::kGates * hidden;
  const Panels wide(layout.steps * layout.batch);
  float* d_recurrent_panels = Cell::kApart ? layer.d_recurrent_panels : layer.d_input_panels;

  transpose_values(recurrence, layer.weights.recurrent_values, layer.values_t);
  const StepMatrix<true> matrix(recurrence, layer.values_t, layout);
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
      const bool last = step == layout.steps - 1;
      for (int tile = share.begin; tile < share.end; ++tile) {
        const int64_t unit = recurrence.first_column(tile), stop = recurrence.first_column(tile + 1);
        for (int part = 0; part < layout.parts; ++part) {
          const int width = layout.part(part).width;
          float* d_after = layout.at(layer.d_state, 0, part, hidden);
          if (last ? layer.dh_last == nullptr : !Cell::kDirect)
            std::fill(d_after + unit * width, d_after + stop * width, 0.f);
        }
        if (!last) matrix.add_products(tile, d_later, layer.d_state);
        for (int part = 0; step >= 0 && part < layout.parts; ++part) {
          const int width = layout.part(part).width;
          float* d_after = layout.at(layer.d_state, 0, part, hidden);
          add_rows(d_after, layer.dy, layout, step, part, unit, stop);
          float* input_here = layout.at(d_input, 0, part, lines);
          float* recurrent_here = layout.at(d_recurrent, 0, part, lines);
          each_vector(unit, stop, width, [&](int64_t at, int64_t left) {
            BackwardSite site{};
            site.gates = layout.at(layer.gates, step, part, lines) + at;
            site.spacing = hidden * width, site.count = left;
            if (Cell::kStates) site.before = layout.at(layer.states, step, part, hidden) + at;
            if (Cell::kCell) {
              site.cell_before = layout.at(layer.cells, step, part, hidden) + at;
              site.cell_after = layout.at(layer.cells, step + 1, part, hidden) + at;
              site.d_cell = layout.at(layer.d_cell, 0, part, hidden) + at;
            }
            if (Cell::kApart) site.extra = layout.at(layer.extra, step, part, hidden) + at;
            site.d_after = load_some<Widest>(d_after + at, left);
            site.d_input = input_here + at, site.d_recurrent = recurrent_here + at, site.d_direct = d_after + at;
            Cell::backward(site);
          });
          for (int64_t gate = 0; gate < lines; gate += hidden) {
            widen(input_here, layout, step, part, gate + unit, gate + stop, layer.d_input_panels, wide, lines);
            if (Cell::kApart)
              widen(recurrent_here, layout, step, part, gate + unit, gate + stop, d_recurrent_panels, wide, lines);
          }
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
