// One recurrent layer over a window in bfloat16. As in recurrent.hpp all input products come first, then step by step
// the recurrent product and the cell, whose results are rounded to operands at once.
#pragma once

#include "bf16_abi.hpp"
#include "bf16_window.hpp"
#include "recurrent.hpp"

namespace selfish {
namespace SELFISH_TARGET {

template <class Cell>
int64_t bf16_forward(const Bf16LayerForward& layer) {
  const Bf16Weights& weights = layer.weights;
  const Bf16Matrix inputs(weights.input_index, weights.input_bf16_index, weights.input_values);
  const Bf16Matrix recurrence(weights.recurrent_index, weights.recurrent_bf16_index, weights.recurrent_values);
  const StepBlocks layout(layer.shape);
  const Panels wide = wide_panels(layout.steps * layout.batch);
  const int64_t hidden = layout.hidden, lines = Cell::kGates * hidden;
  const bool keep_states = layer.keep && Cell::kStates, keep = layer.keep != 0;

  WorkMemory memory(layer.work);
  uint16_t* x_operands = memory.take<uint16_t>(operand_numbers(wide, inputs.rows.inner()));
  uint16_t* values = memory.take<uint16_t>(std::max(inputs.rows.value_slots(), recurrence.rows.value_slots()));
  uint16_t* operands = memory.take<uint16_t>(2 * layout.operands(hidden));
  float* apart = memory.take<float>(Cell::kApart ? layout.floats(lines) : 0);
  float* two_states = memory.take<float>(keep_states ? 0 : 2 * layout.floats(hidden));
  float* two_cells = memory.take<float>(!keep && Cell::kCell ? 2 * layout.floats(hidden) : 0);
  float* all_gates = memory.take<float>(keep ? 0 : layout.steps * layout.floats(lines));
  float* extra = memory.take<float>(!keep && Cell::kApart ? layout.floats(hidden) : 0);
  if (memory.counting()) return memory.floats();

  if (keep) all_gates = layer.gates;
  // A step of what is kept, or of two that take turns.
  const auto state_of = [&](int64_t step) {
    return keep_states ? layer.states + step * layout.floats(hidden) : two_states + (step & 1) * layout.floats(hidden);
  };
  const auto cell_of = [&](int64_t step) {
    return keep ? layer.cells + step * layout.floats(hidden) : two_cells + (step & 1) * layout.floats(hidden);
  };
  const auto operands_of = [&](int64_t step) { return operands + (step & 1) * layout.operands(hidden); };

  bf16_project_inputs(inputs, layer.bias, layer.x, x_operands, values, wide, layout, all_gates);
  round_values<false>(recurrence, values);
  step_from_rows(layout, layer.h_first, state_of(0));
  if (Cell::kCell) step_from_rows(layout, layer.c_first, cell_of(0));
  step_operands(layout, state_of(0), operands_of(0));
  if (keep) {
    clear_last_panel(layer.h_panels, wide, hidden);
    for (int panel = 0; panel < layout.panels; ++panel)
      Widening(layout, wide, 0, panel, hidden)
          .copy(operands_of(0) + panel * hidden * kChunk, 0, hidden, layer.h_panels);
  }
  // Rows of the recurrent matrix: as many tiles for every gate, each thread taking the same units of all gates.
  const Bf16Side& rows = recurrence.rows;
  const int chunks = rows.line_tiles() / Cell::kGates;
#pragma omp parallel
  {
    const Share share(chunks);
    for (int64_t step = 0; step < layout.steps; ++step) {
      float* gates = all_gates + step * layout.floats(lines);
      float* sums = Cell::kApart ? apart : gates;
      const float* before = state_of(step);
      float* after = state_of(step + 1);
      for (int panel = 0; panel < layout.panels; ++panel) {
        const Widening widening(layout, wide, std::min(step + 1, layout.steps - 1), panel, hidden);
        const bool widens = keep && step + 1 < layout.steps;
        for (int chunk = share.begin; chunk < share.end; ++chunk) {
          const int64_t unit = rows.first_line(chunk), stop = rows.first_line(chunk + 1);
          if (Cell::kApart)
            layout.each_block(panel, [&](const Block& block) {
              for (int gate = 0; gate < Cell::kGates; ++gate)
                fill_lines(layout.at(sums, 0, block, lines) + (gate * hidden + unit) * block.width, block.width,
                           stop - unit,
                           layer.recurrent_bias == nullptr ? nullptr : layer.recurrent_bias + gate * hidden + unit);
            });
          for (int inner = 0; inner < rows.inner_tiles(); ++inner)
            for (int gate = 0; gate < Cell::kGates; ++gate)
              layout.add_product(rows, gate * chunks + chunk, inner, values, operands_of(step), panel, sums, lines);
          layout.each_block(panel, [&](const Block& block) {
            each_vector(unit, stop, block.width, [&](int64_t at, int64_t count) {
              ForwardSite site{};
              site.gates = layout.at(gates, 0, block, lines) + at, site.spacing = hidden * block.width;
              site.recurrent = layout.at(sums, 0, block, lines) + at;
              site.before = layout.at(before, 0, block, hidden) + at;
              site.after = layout.at(after, 0, block, hidden) + at;
              site.count = count;
              if (Cell::kCell) {
                site.cell_before = layout.at(cell_of(step), 0, block, hidden) + at;
                site.cell_after = layout.at(cell_of(step + 1), 0, block, hidden) + at;
              }
              if (Cell::kApart) site.extra = layout.at(keep ? layer.extra : extra, keep ? step : 0, block, hidden) + at;
              Cell::forward(site);
            });
            block_to_rows(layout, block, after, hidden, unit, stop, layer.y + step * layout.batch * hidden);
          });
          keep_operands(layout, panel, after, hidden, unit, stop, operands_of(step + 1), widens ? &widening : nullptr,
                        layer.h_panels);
        }
      }
#pragma omp barrier
    }
  }
  step_to_rows(layout, state_of(layout.steps), layer.h_last);
  if (Cell::kCell) step_to_rows(layout, cell_of(layout.steps), layer.c_last);
  return 0;
}

template <class Cell>
int64_t bf16_backward(const Bf16LayerBackward& layer) {
  const Bf16Weights& weights = layer.weights;
  const Bf16Matrix inputs(weights.input_index, weights.input_bf16_index, weights.input_values);
  const Bf16Matrix recurrence(weights.recurrent_index, weights.recurrent_bf16_index, weights.recurrent_values);
  const StepBlocks layout(layer.shape);
  const Panels wide = wide_panels(layout.steps * layout.batch);
  const int64_t hidden = layout.hidden, lines = Cell::kGates * hidden;

  WorkMemory memory(layer.work);
  uint16_t* x_operands = memory.take<uint16_t>(operand_numbers(wide, inputs.rows.inner()));
  uint16_t* values = memory.take<uint16_t>(std::max(inputs.columns.value_slots(), recurrence.columns.value_slots()));
  uint16_t* operands = memory.take<uint16_t>(2 * layout.operands(lines));
  uint16_t* input_operands = memory.take<uint16_t>(Cell::kApart ? layout.operands(lines) : 0);
  float* d_input = memory.take<float>(layout.floats(lines));
  float* d_recurrent = memory.take<float>(Cell::kApart ? layout.floats(lines) : 0);
  float* d_state = memory.take<float>(layout.floats(hidden));
  float* d_cell = memory.take<float>(Cell::kCell ? layout.floats(hidden) : 0);
  if (memory.counting()) return memory.floats();

  const LayerGradients& gradients = layer.gradients;
  uint16_t* d_recurrent_wide = Cell::kApart ? layer.d_recurrent_panels : layer.d_input_panels;
  const auto operands_of = [&](int64_t step) { return operands + (step & 1) * layout.operands(lines); };
  round_values<true>(recurrence, values);
  clear_last_panel(layer.d_input_panels, wide, lines);
  if (Cell::kApart) clear_last_panel(d_recurrent_wide, wide, lines);
  if (Cell::kCell) {
    if (layer.dc_last != nullptr)
      step_from_rows(layout, layer.dc_last, d_cell);
    else
      std::fill_n(d_cell, layout.floats(hidden), 0.f);
  }
  if (layer.dh_last != nullptr)
    step_from_rows(layout, layer.dh_last, d_state);
  else
    std::fill_n(d_state, layout.floats(hidden), 0.f);

  const Bf16Side& columns = recurrence.columns;
#pragma omp parallel
  {
    const Share share(columns.line_tiles());
    // Step -1 is the state before the window: it gets a gradient but has no cell.
    for (int64_t step = layout.steps - 1; step >= (gradients.dh_first != nullptr ? -1 : 0); --step) {
      const bool last = step == layout.steps - 1;
      for (int panel = 0; panel < layout.panels; ++panel) {
        const Widening widening(layout, wide, std::max<int64_t>(step, 0), panel, lines);
        for (int tile = share.begin; tile < share.end; ++tile) {
          const int64_t unit = columns.first_line(tile), stop = columns.first_line(tile + 1);
          layout.each_block(panel, [&](const Block& block) {
            float* after = layout.at(d_state, 0, block, hidden);
            if (!last && !Cell::kDirect) std::fill(after + unit * block.width, after + stop * block.width, 0.f);
            if (step >= 0)
              block_from_rows<true>(layout, block, layer.dy + step * layout.batch * hidden, hidden, unit, stop,
                                    d_state);
          });
          if (!last) add_through_recurrence(layout, columns, tile, values, operands_of(step + 1), panel, d_state);
          if (step < 0) continue;
          layout.each_block(panel, [&](const Block& block) {
            float* after = layout.at(d_state, 0, block, hidden);
            each_vector(unit, stop, block.width, [&](int64_t at, int64_t count) {
              BackwardSite site{};
              site.gates = layout.at(layer.gates, step, block, lines) + at, site.spacing = hidden * block.width;
              if (Cell::kStates) site.before = layout.at(layer.states, step, block, hidden) + at;
              if (Cell::kCell) {
                site.cell_before = layout.at(layer.cells, step, block, hidden) + at;
                site.cell_after = layout.at(layer.cells, step + 1, block, hidden) + at;
                site.d_cell = layout.at(d_cell, 0, block, hidden) + at;
              }
              if (Cell::kApart) {
                site.extra = layout.at(layer.extra, step, block, hidden) + at;
                site.d_recurrent = layout.at(d_recurrent, 0, block, lines) + at;
              }
              site.count = count;
              site.d_after = load_some<Widest>(after + at, count);
              site.d_input = layout.at(d_input, 0, block, lines) + at, site.d_direct = after + at;
              Cell::backward(site);
            });
          });
          for (int64_t gate = 0; gate < lines; gate += hidden) {
            keep_operands(layout, panel, Cell::kApart ? d_recurrent : d_input, lines, gate + unit, gate + stop,
                          operands_of(step), &widening, d_recurrent_wide);
            if (Cell::kApart)
              keep_operands(layout, panel, d_input, lines, gate + unit, gate + stop, input_operands, &widening,
                            layer.d_input_panels);
          }
        }
      }
#pragma omp barrier
    }
  }
  if (gradients.dh_first != nullptr) {
    step_to_rows(layout, d_state, gradients.dh_first);
    if (Cell::kCell) step_to_rows(layout, d_cell, gradients.dc_first);
  }
  if (gradients.recurrent_gradients != nullptr)
    bf16_sddmm(recurrence.rows, gradients.recurrent_gradients, layer.h_panels, d_recurrent_wide, wide, true);
  bf16_inputs_backward(inputs, layer.x, layer.d_input_panels, wide, gradients.dx, gradients.input_gradients, values,
                       x_operands);
  if (gradients.bias_gradient != nullptr) bf16_sum_lines(layer.d_input_panels, wide, lines, gradients.bias_gradient);
  if (gradients.recurrent_bias_gradient != nullptr)
    bf16_sum_lines(d_recurrent_wide, wide, lines, gradients.recurrent_bias_gradient);
  return 0;
}

inline int64_t bf16_layer_forward(const Bf16LayerForward* layer) {
  switch (layer->shape.kind) {
    case kLstm: return bf16_forward<LSTM>(*layer);
    case kGru: return bf16_forward<GRU>(*layer);
    case kRnnTanh: return bf16_forward<Elman<false>>(*layer);
    default: return bf16_forward<Elman<true>>(*layer);
  }
}

inline int64_t bf16_layer_backward(const Bf16LayerBackward* layer) {
  switch (layer->shape.kind) {
    case kLstm: return bf16_backward<LSTM>(*layer);
    case kGru: return bf16_backward<GRU>(*layer);
    case kRnnTanh: return bf16_backward<Elman<false>>(*layer);
    default: return bf16_backward<Elman<true>>(*layer);
  }
}

}  // namespace SELFISH_TARGET
}  // namespace selfish
