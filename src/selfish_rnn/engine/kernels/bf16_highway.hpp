// A recurrent highway layer over a window in bfloat16; see highway.hpp.
#pragma once

#include "bf16_abi.hpp"
#include "bf16_window.hpp"
#include "highway.hpp"

namespace selfish {
namespace SELFISH_TARGET {

// The recurrent matrices of all depths.
inline std::vector<Bf16Matrix> depth_matrices(const void* const* indices, const void* const* bf16_indices,
                                              const float* const* values, int64_t depth) {
  std::vector<Bf16Matrix> matrices;
  for (int64_t level = 0; level < depth; ++level)
    matrices.emplace_back(indices[level], bf16_indices[level], values[level]);
  return matrices;
}

// Memory for the rounded values of every depth.
template <bool Transposed>
inline std::vector<uint16_t*> depth_values(const std::vector<Bf16Matrix>& matrices, WorkMemory& memory) {
  std::vector<uint16_t*> values;
  for (const Bf16Matrix& matrix : matrices)
    values.push_back(memory.take<uint16_t>(matrix.side<Transposed>().value_slots()));
  return values;
}

inline int64_t bf16_highway_forward(const Bf16HighwayForward& layer) {
  const StepBlocks layout(layer.shape);
  const Panels wide = wide_panels(layout.steps * layout.batch);
  const int64_t hidden = layout.hidden, lines = 2 * hidden, depth = layer.depth, micros = layout.steps * depth;
  const int64_t one_state = layout.floats(hidden), one_gates = layout.floats(lines);
  const Bf16Matrix inputs(layer.input_index, layer.input_bf16_index, layer.input_values);
  const std::vector<Bf16Matrix> matrices =
      depth_matrices(layer.recurrent_index, layer.recurrent_bf16_index, layer.recurrent_values, depth);
  const bool has_mask = layer.mask != nullptr, keep = layer.keep != 0;

  WorkMemory memory(layer.work);
  uint16_t* x_operands = memory.take<uint16_t>(operand_numbers(wide, inputs.rows.inner()));
  uint16_t* input_values = memory.take<uint16_t>(inputs.rows.value_slots());
  const std::vector<uint16_t*> values = depth_values<false>(matrices, memory);
  uint16_t* operands = memory.take<uint16_t>(2 * layout.operands(hidden));
  float* mask = memory.take<float>(has_mask ? one_state : 0);
  float* masked = memory.take<float>(has_mask ? one_state : 0);
  if (memory.counting()) return memory.floats();

  const auto gates_of = [&](int64_t micro) {
    const int64_t step = micro / depth, level = micro % depth;
    if (level == 0) return layer.gates + step * one_gates;
    return layer.later_gates + (keep ? step * (depth - 1) + level - 1 : 0) * one_gates;
  };
  const auto state_of = [&](int64_t micro) { return layer.states + (keep ? micro : micro & 1) * one_state; };
  const auto operands_of = [&](int64_t micro) { return operands + (micro & 1) * layout.operands(hidden); };
  const auto panels_of = [&](int64_t micro) { return layer.h_panels + micro % depth * wide.floats(hidden); };

  bf16_project_inputs(inputs, layer.biases[0], layer.x, x_operands, input_values, wide, layout, layer.gates);
  for (int64_t level = 0; level < depth; ++level) {
    round_values<false>(matrices[level], values[level]);
    if (keep) clear_last_panel(panels_of(level), wide, hidden);
  }
  step_from_rows(layout, layer.h_first, state_of(0));
  if (has_mask) {
    step_from_rows(layout, layer.mask, mask);
    for (int64_t at = 0; at < one_state; ++at) masked[at] = layer.states[at] * mask[at];
  }
  for (int panel = 0; panel < layout.panels; ++panel) {
    const Widening widening(layout, wide, 0, panel, hidden);
    keep_operands(layout, panel, has_mask ? masked : state_of(0), hidden, 0, hidden, operands_of(0),
                  keep ? &widening : nullptr, layer.h_panels);
  }
#pragma omp parallel
  for (int64_t micro = 0; micro < micros; ++micro) {
    const int64_t level = micro % depth, step = micro / depth;
    const Bf16Side& rows = matrices[level].rows;
    // As many tiles for either gate, each thread taking the same units of both.
    const int chunks = rows.line_tiles() / 2;
    const Share share(chunks);
    float *gates = gates_of(micro), *before = state_of(micro), *after = state_of(micro + 1);
    for (int panel = 0; panel < layout.panels; ++panel) {
      const bool widens = keep && micro + 1 < micros;
      const Widening widening(layout, wide, widens ? (micro + 1) / depth : 0, panel, hidden);
      for (int chunk = share.begin; chunk < share.end; ++chunk) {
        const int64_t unit = rows.first_line(chunk), stop = rows.first_line(chunk + 1);
        if (level > 0)
          layout.each_block(panel, [&](const Block& block) {
            for (int64_t line = unit; line < lines; line += hidden)
              fill_lines(layout.at(gates, 0, block, lines) + line * block.width, block.width, stop - unit,
                         layer.biases[level] + line);
          });
        for (int inner = 0; inner < rows.inner_tiles(); ++inner)
          for (int tile : {chunk, chunks + chunk})
            layout.add_product(rows, tile, inner, values[level], operands_of(micro), panel, gates, lines);
        layout.each_block(panel, [&](const Block& block) {
          highway_units(layout.at(gates, 0, block, lines), layout.at(before, 0, block, hidden),
                        layout.at(after, 0, block, hidden), has_mask ? layout.at(mask, 0, block, hidden) : nullptr,
                        has_mask ? layout.at(masked, 0, block, hidden) : nullptr, hidden * block.width,
                        unit * block.width, stop * block.width);
          if (level == depth - 1)
            block_to_rows(layout, block, after, hidden, unit, stop, layer.y + step * layout.batch * hidden);
        });
        keep_operands(layout, panel, has_mask ? masked : after, hidden, unit, stop, operands_of(micro + 1),
                      widens ? &widening : nullptr, keep ? panels_of(micro + 1) : nullptr);
      }
    }
#pragma omp barrier
  }
  return 0;
}

inline int64_t bf16_highway_backward(const Bf16HighwayBackward& layer) {
  const StepBlocks layout(layer.shape);
  const Panels wide = wide_panels(layout.steps * layout.batch);
  const int64_t hidden = layout.hidden, lines = 2 * hidden, depth = layer.depth;
  const int64_t one_state = layout.floats(hidden), one_gates = layout.floats(lines);
  const Bf16Matrix inputs(layer.input_index, layer.input_bf16_index, layer.input_values);
  const std::vector<Bf16Matrix> matrices =
      depth_matrices(layer.recurrent_index, layer.recurrent_bf16_index, layer.recurrent_values, depth);
  const bool has_mask = layer.mask != nullptr;

  WorkMemory memory(layer.work);
  uint16_t* x_operands = memory.take<uint16_t>(operand_numbers(wide, inputs.rows.inner()));
  uint16_t* input_values = memory.take<uint16_t>(inputs.columns.value_slots());
  const std::vector<uint16_t*> values = depth_values<true>(matrices, memory);
  uint16_t* operands = memory.take<uint16_t>(2 * layout.operands(lines));
  float* d_gates = memory.take<float>(one_gates);
  float* d_state = memory.take<float>(one_state);
  float* d_through = memory.take<float>(has_mask ? one_state : 0);
  float* mask = memory.take<float>(has_mask ? one_state : 0);
  if (memory.counting()) return memory.floats();

  const auto gates_of = [&](int64_t micro) {
    const int64_t step = micro / depth, level = micro % depth;
    return level == 0 ? layer.gates + step * one_gates
                      : layer.later_gates + (step * (depth - 1) + level - 1) * one_gates;
  };
  const auto operands_of = [&](int64_t micro) { return operands + (micro & 1) * layout.operands(lines); };
  const auto panels_of = [&](int64_t level) { return layer.d_panels + level * wide.floats(lines); };
  for (int64_t level = 0; level < depth; ++level) {
    round_values<true>(matrices[level], values[level]);
    clear_last_panel(panels_of(level), wide, lines);
  }
  if (has_mask) step_from_rows(layout, layer.mask, mask);
#pragma omp parallel
  {
    const int64_t last = layout.steps * depth - 1;
    // Micro-step -1 is the state before the window: it gets a gradient but has no cell.
    for (int64_t micro = last; micro >= (layer.dh_first != nullptr ? -1 : 0); --micro) {
      const int64_t level = micro % depth, later = (micro + 1) % depth, step = std::max<int64_t>(micro, 0) / depth;
      const Bf16Side& columns = matrices[later].columns;
      const Share share(columns.line_tiles());
      // What comes through the matrix is added to the gradient of the state, or masked first.
      float* through = has_mask ? d_through : d_state;
      for (int panel = 0; panel < layout.panels; ++panel) {
        const Widening widening(layout, wide, step, panel, lines);
        for (int tile = share.begin; tile < share.end; ++tile) {
          const int64_t unit = columns.first_line(tile), stop = columns.first_line(tile + 1);
          layout.each_block(panel, [&](const Block& block) {
            float* fresh = layout.at(micro == last ? d_state : through, 0, block, hidden);
            if (micro == last || has_mask) std::fill(fresh + unit * block.width, fresh + stop * block.width, 0.f);
          });
          if (micro < last)
            add_through_recurrence(layout, columns, tile, values[later], operands_of(micro + 1), panel, through);
          layout.each_block(panel, [&](const Block& block) {
            float* of_state = layout.at(d_state, 0, block, hidden);
            if (micro < last && has_mask) {
              const float *factor = layout.at(mask, 0, block, hidden), *from = layout.at(through, 0, block, hidden);
              for (int64_t at = unit * block.width; at < stop * block.width; ++at)
                of_state[at] += factor[at] * from[at];
            }
            if (micro < 0) return;
            if (level == depth - 1)
              block_from_rows<true>(layout, block, layer.dy + step * layout.batch * hidden, hidden, unit, stop,
                                    d_state);
            highway_units_backward(
                layout.at(gates_of(micro), 0, block, lines), layout.at(layer.states, micro, block, hidden), of_state,
                layout.at(d_gates, 0, block, lines), hidden * block.width, unit * block.width, stop * block.width);
          });
          for (int64_t line = 0; micro >= 0 && line < lines; line += hidden)
            keep_operands(layout, panel, d_gates, lines, line + unit, line + stop, operands_of(micro), &widening,
                          panels_of(level));
        }
      }
#pragma omp barrier
    }
  }
  if (layer.dh_first != nullptr) step_to_rows(layout, d_state, layer.dh_first);
  for (int64_t level = 0; level < depth; ++level) {
    if (layer.recurrent_gradients[level] != nullptr)
      bf16_sddmm(matrices[level].rows, layer.recurrent_gradients[level], layer.h_panels + level * wide.floats(hidden),
                 panels_of(level), wide, true);
    if (layer.bias_gradients[level] != nullptr)
      bf16_sum_lines(panels_of(level), wide, lines, layer.bias_gradients[level]);
  }
  bf16_inputs_backward(inputs, layer.x, layer.d_panels, wide, layer.dx, layer.input_gradients, input_values,
                       x_operands);
  return 0;
}

}  // namespace SELFISH_TARGET
}  // namespace selfish
