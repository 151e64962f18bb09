// A layer of the ordered-neurons LSTM over a window. Its rows are the master gates m and k (input and forget, one row
// for each chunk of units), then the gates o, g, i and f:
//
//   k = cumsum softmax, m = 1 - cumsum softmax, w = k m
//   c' = (f w + k - w) c + (i w + m - w) g,   h' = o tanh(c')
//
// The softmax needs all rows of a master gate, so every step has three parts with a barrier after each: the products,
// the master gates (each thread some columns), the units.
#pragma once

#include "window.hpp"

namespace selfish {
namespace SELFISH_TARGET {

struct OrderedLayout : StepLayout {
  int64_t chunk, chunks, lines, master_lines;
  int master_tiles, unit_tiles;  // of each master gate, of each other gate
  Panels wide;

  OrderedLayout(const LayerShape& shape, int64_t chunk_, const Packed& recurrence)
      : StepLayout(shape),
        chunk(chunk_),
        chunks(hidden / chunk),
        lines(4 * hidden + 2 * chunks),
        master_lines(2 * chunks),
        master_tiles(0),
        wide(steps * batch) {
    while (recurrence.first_row(master_tiles) < chunks) ++master_tiles;
    unit_tiles = (recurrence.row_tiles() - 2 * master_tiles) / 4;
  }

  // Calls visit(vector type, first column, how many columns) for the vectors of a line of a part.
  template <class Visit>
  static SELFISH_INLINE void each_column(const StepPart& part, Visit visit) {
    if (part.width <= 4) return visit(V4{}, 0, part.width);
    if (part.width == 8) return visit(V8{}, 0, 8);
    for (int column = 0; column < part.width; column += kLanes<Widest>) visit(Widest{}, column, kLanes<Widest>);
  }
  // Calls visit(vector type, gate, part, first column, how many columns) for this thread's share of both master gates.
  template <class Visit>
  void each_master(Visit visit) const {
    int tasks = 0, task = 0;
    for (int number = 0; number < parts; ++number) each_column(part(number), [&](auto, int, int) { tasks += 2; });
    const Share share(tasks);
    for (int gate = 0; gate < 2; ++gate)
      for (int number = 0; number < parts; ++number)
        each_column(part(number), [&](auto vector, int column, int n) {
          if (task >= share.begin && task < share.end) visit(vector, gate, number, column, n);
          ++task;
        });
  }
  // Calls visit(vector type, offset of the columns of a unit, offset of its chunk's, how many columns).
  template <class Visit>
  void each_unit(const StepPart& part_, int64_t first, int64_t stop, Visit visit) const {
    each_column(part_, [&](auto vector, int column, int n) {
      for (int64_t unit = first; unit < stop; ++unit)
        visit(vector, unit * part_.width + column, unit / chunk * part_.width + column, n);
    });
  }
};

// The softmax of some columns over `count` lines in place, and its cumulated sum (or one minus that); returns the mean
// of the latter.
template <class V>
inline V cumulated_softmax(float* lines, float* master, int64_t count, int64_t width, bool complement, int64_t n) {
  V highest = load_some<V>(lines, n), total{};
  for (int64_t line = 1; line < count; ++line) highest = max(highest, load_some<V>(lines + line * width, n));
  for (int64_t line = 0; line < count; ++line) {
    const V power = exp(load_some<V>(lines + line * width, n) - highest);
    total += power;
    store_some(lines + line * width, power, n);
  }
  const V scale = 1.f / total;
  V cumulated{}, sum_of_all{};
  for (int64_t line = 0; line < count; ++line) {
    const V chance = load_some<V>(lines + line * width, n) * scale;
    cumulated += chance;
    const V gate = complement ? 1.f - cumulated : cumulated;
    store_some(lines + line * width, chance, n);
    store_some(master + line * width, gate, n);
    sum_of_all += gate;
  }
  return sum_of_all * (1.f / static_cast<float>(count));
}

// The backward pass of cumulated_softmax: d_units is the part that every unit has in the gradient of the cumulated sum,
// d_lines becomes the gradient of the softmax's argument.
template <class V>
inline void cumulated_softmax_backward(const float* chances, const float* d_units, float* d_lines, int64_t count,
                                       int64_t chunk, int64_t width, int64_t n) {
  V cumulated{}, expected{};
  for (int64_t line = count - 1; line >= 0; --line) {
    for (int64_t unit = line * chunk; unit < (line + 1) * chunk; ++unit)
      cumulated += load_some<V>(d_units + unit * width, n);
    expected += cumulated * load_some<V>(chances + line * width, n);
    store_some(d_lines + line * width, cumulated, n);
  }
  for (int64_t line = 0; line < count; ++line)
    store_some(d_lines + line * width,
               (load_some<V>(d_lines + line * width, n) - expected) * load_some<V>(chances + line * width, n), n);
}

inline void ordered_forward(const OrderedForward& layer) {
  const Packed inputs(layer.weights.input_index), recurrence(layer.weights.recurrent_index);
  const OrderedLayout layout(layer.shape, layer.chunk, recurrence);
  const Panels& wide = layout.wide;
  const int64_t hidden = layout.hidden, lines = layout.lines, masters = layout.master_lines;

  project_inputs(inputs, layer.weights.input_values, layer.bias, layer.x, layer.x_panels, wide, layout,
                 [&](int64_t step, int part) { return layout.at(layer.gates, step, part, lines); });
  const StepMatrix<false> matrix(recurrence, layer.weights.recurrent_values, layout);
  state_from_rows(layer.h_first, layout, layer.states);
  state_from_rows(layer.c_first, layout, layer.cells);
  const auto keep = [&](int64_t step, int part, int64_t unit, int64_t stop) {
    if (layer.h_panels != nullptr && step < layout.steps)
      widen(layout.at(layer.states, step, part, hidden), layout, step, part, unit, stop, layer.h_panels, wide, hidden);
  };
  for (int part = 0; part < layout.parts; ++part) keep(0, part, 0, hidden);
#pragma omp parallel
  {
    const Share master_share(2 * layout.master_tiles), unit_share(layout.unit_tiles);
    for (int64_t step = 0; step < layout.steps; ++step) {
      const float* before = layout.at(layer.states, step, 0, hidden);
      float* step_gates = layout.at(layer.gates, step, 0, lines);
      for (int panel = 0; panel < layout.panels.count; ++panel)
        for (int column_tile = 0; column_tile < recurrence.column_tiles(); ++column_tile) {
          const auto product = [&](int row_tile) {
            matrix.add_product(row_tile, column_tile, panel, before, step_gates);
          };
          for (int tile = master_share.begin; tile < master_share.end; ++tile) product(tile);
          for (int gate = 0; gate < 4; ++gate)
            for (int tile = unit_share.begin; tile < unit_share.end; ++tile)
              product(2 * layout.master_tiles + gate * layout.unit_tiles + tile);
        }
#pragma omp barrier
      layout.each_master([&](auto vector, int gate, int part, int column, int n) {
        using V = decltype(vector);
        const StepPart here = layout.part(part);
        const int64_t width = here.width, at = gate * layout.chunks * width + column;
        const V mean = cumulated_softmax<V>(layout.at(layer.gates, step, part, lines) + at,
                                            layout.at(layer.masters, step, part, masters) + at, layout.chunks, width,
                                            gate == 0, n);
        const int filled = std::min(n, here.filled - column);
        const int64_t token = step * layout.batch + here.first + column;
        if (filled <= 0) return;
        if (gate == 0)
          store_some(layer.input_distance + token, mean, filled);
        else
          store_some(layer.forget_distance + token, 1.f - mean, filled);
      });
#pragma omp barrier
      for (int tile = unit_share.begin; tile < unit_share.end; ++tile)
        for (int part = 0; part < layout.parts; ++part) {
          const int first_tile = 2 * layout.master_tiles;
          const int64_t unit = recurrence.first_row(first_tile + tile) - masters;
          const int64_t stop = recurrence.first_row(first_tile + tile + 1) - masters;
          const StepPart here = layout.part(part);
          const int64_t width = here.width, spacing = hidden * width;
          float* gates = layout.at(layer.gates, step, part, lines) + masters * width;
          const float* input = layout.at(layer.masters, step, part, masters);
          const float* forget = input + layout.chunks * width;
          const float* cell_before = layout.at(layer.cells, step, part, hidden);
          float* cell_after = layout.at(layer.cells, step + 1, part, hidden);
          float* after = layout.at(layer.states, step + 1, part, hidden);
          layout.each_unit(here, unit, stop, [&](auto vector, int64_t at, int64_t chunk_at, int n) {
            using V = decltype(vector);
            const V m = load_some<V>(input + chunk_at, n), k = load_some<V>(forget + chunk_at, n), w = m * k;
            const V o = sigmoid(load_some<V>(gates + at, n)), g = tanh(load_some<V>(gates + spacing + at, n));
            const V i = sigmoid(load_some<V>(gates + 2 * spacing + at, n));
            const V f = sigmoid(load_some<V>(gates + 3 * spacing + at, n));
            const V c = (f * w + (k - w)) * load_some<V>(cell_before + at, n) + (i * w + (m - w)) * g;
            store_some(gates + at, o, n);
            store_some(gates + spacing + at, g, n);
            store_some(gates + 2 * spacing + at, i, n);
            store_some(gates + 3 * spacing + at, f, n);
            store_some(cell_after + at, c, n);
            store_some(after + at, o * tanh(c), n);
          });
          write_rows(after, layout, step, part, unit, stop, layer.y);
          keep(step + 1, part, unit, stop);
        }
#pragma omp barrier
    }
  }
  if (layer.h_panels != nullptr) clear_tail(layer.h_panels, wide, hidden);
  state_to_rows(layout.at(layer.cells, layout.steps, 0, hidden), layout, layer.c_last);
}

inline void ordered_backward(const OrderedBackward& layer) {
  const Packed inputs(layer.weights.input_index), recurrence(layer.weights.recurrent_index);
  const OrderedLayout layout(layer.shape, layer.chunk, recurrence);
  const Panels& wide = layout.wide;
  const int64_t hidden = layout.hidden, lines = layout.lines, masters = layout.master_lines;

  transpose_values(recurrence, layer.weights.recurrent_values, layer.values_t);
  const StepMatrix<true> matrix(recurrence, layer.values_t, layout);
  clear_tail(layer.d_panels, wide, lines);
  if (layer.dc_last != nullptr)
    state_from_rows(layer.dc_last, layout, layer.d_cell);
  else
    std::fill(layer.d_cell, layer.d_cell + layout.line_floats(hidden), 0.f);
#pragma omp parallel
  {
    const Share share(recurrence.column_tiles());
    // Step -1 is the state before the window: it gets a gradient but has no cell.
    for (int64_t step = layout.steps - 1; step >= (layer.gradients.dh_first != nullptr ? -1 : 0); --step) {
      for (int tile = share.begin; tile < share.end; ++tile) {
        const int64_t unit = recurrence.first_column(tile), stop = recurrence.first_column(tile + 1);
        for (int part = 0; part < layout.parts; ++part) {
          const int width = layout.part(part).width;
          float* d_state = layout.at(layer.d_state, 0, part, hidden);
          std::fill(d_state + unit * width, d_state + stop * width, 0.f);
        }
        if (step < layout.steps - 1) matrix.add_products(tile, layer.d_gates, layer.d_state);
        for (int part = 0; step >= 0 && part < layout.parts; ++part)
          add_rows(layout.at(layer.d_state, 0, part, hidden), layer.dy, layout, step, part, unit, stop);
      }
      if (step < 0) continue;
#pragma omp barrier
      for (int tile = share.begin; tile < share.end; ++tile)
        for (int part = 0; part < layout.parts; ++part) {
          const int64_t unit = recurrence.first_column(tile), stop = recurrence.first_column(tile + 1);
          const float* d_state = layout.at(layer.d_state, 0, part, hidden);
          const StepPart here = layout.part(part);
          const int64_t width = here.width, spacing = hidden * width;
          const float* gates = layout.at(layer.gates, step, part, lines) + masters * width;
          const float* input = layout.at(layer.masters, step, part, masters);
          const float* forget = input + layout.chunks * width;
          const float* cell_before = layout.at(layer.cells, step, part, hidden);
          const float* cell_after = layout.at(layer.cells, step + 1, part, hidden);
          float* d_cell = layout.at(layer.d_cell, 0, part, hidden);
          float* d_gates = layout.at(layer.d_gates, 0, part, lines) + masters * width;
          float* d_masters = layout.at(layer.d_masters, 0, part, 2 * hidden);
          layout.each_unit(here, unit, stop, [&](auto vector, int64_t at, int64_t chunk_at, int n) {
            using V = decltype(vector);
            const V m = load_some<V>(input + chunk_at, n), k = load_some<V>(forget + chunk_at, n), w = m * k;
            const V o = load_some<V>(gates + at, n), g = load_some<V>(gates + spacing + at, n);
            const V i = load_some<V>(gates + 2 * spacing + at, n), f = load_some<V>(gates + 3 * spacing + at, n);
            const V c = load_some<V>(cell_before + at, n), squashed = tanh(load_some<V>(cell_after + at, n));
            const V dh = load_some<V>(d_state + at, n);
            const V dc = dh * o * (1.f - squashed * squashed) + load_some<V>(d_cell + at, n);
            const V of_overlap = c * (f - 1.f) + g * (i - 1.f);
            store_some(d_gates + at, dh * squashed * o * (1.f - o), n);
            store_some(d_gates + spacing + at, dc * (i * w + (m - w)) * (1.f - g * g), n);
            store_some(d_gates + 2 * spacing + at, dc * g * w * i * (1.f - i), n);
            store_some(d_gates + 3 * spacing + at, dc * c * w * f * (1.f - f), n);
            store_some(d_masters + at, -dc * (g + k * of_overlap), n);
            store_some(d_masters + spacing + at, dc * (c + m * of_overlap), n);
            store_some(d_cell + at, dc * (f * w + (k - w)), n);
          });
          for (int64_t line = masters; line < lines; line += hidden)
            widen(layout.at(layer.d_gates, 0, part, lines), layout, step, part, line + unit, line + stop,
                  layer.d_panels, wide, lines);
        }
#pragma omp barrier
      layout.each_master([&](auto vector, int gate, int part, int column, int n) {
        const int64_t width = layout.part(part).width, at = gate * layout.chunks * width + column;
        cumulated_softmax_backward<decltype(vector)>(
            layout.at(layer.gates, step, part, lines) + at,
            layout.at(layer.d_masters, 0, part, 2 * hidden) + gate * hidden * width + column,
            layout.at(layer.d_gates, 0, part, lines) + at, layout.chunks, layout.chunk, width, n);
      });
#pragma omp barrier
      const Share rows(static_cast<int>(masters));
      for (int part = 0; part < layout.parts; ++part)
        widen(layout.at(layer.d_gates, 0, part, lines), layout, step, part, rows.begin, rows.end, layer.d_panels, wide,
              lines);
    }
  }
  if (layer.gradients.dh_first != nullptr) {
    state_to_rows(layer.d_state, layout, layer.gradients.dh_first);
    state_to_rows(layer.d_cell, layout, layer.gradients.dc_first);
  }
  if (layer.gradients.recurrent_gradients != nullptr)
    sddmm_panels(recurrence, layer.gradients.recurrent_gradients, layer.h_panels, layer.d_panels, wide, true);
  if (layer.gradients.bias_gradient != nullptr) sum_lines(layer.d_panels, wide, lines, layer.gradients.bias_gradient);
  inputs_backward(inputs, layer.weights.input_values, layer.x, layer.d_panels, wide, layer.gradients.dx,
                  layer.gradients.input_gradients, layer.values_t, layer.x_panels);
}

}  // namespace SELFISH_TARGET
}  // namespace selfish
