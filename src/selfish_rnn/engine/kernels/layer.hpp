// What a recurrent layer is given, as plain data; see recurrent.hpp for what it does with it. The same for every
// processor, and mirrored field by field in library.py. Rows are tokens x features; null where nothing is wanted.
#pragma once

#include <cstdint>

namespace selfish {

enum CellKind : int64_t { kLSTM, kGRU, kTanh, kRelu };

struct LayerShape {
  int64_t cell, steps, batch, hidden;
};

struct LayerForward {
  LayerShape shape;
  const void* input_index;
  const float* input_values;
  const void* recurrent_index;
  const float* recurrent_values;
  const float* bias;            // added to the input sums
  const float* recurrent_bias;  // added to the recurrent sums, by a cell that keeps them apart
  const float* x;
  const float* h_first;
  const float* c_first;
  float* y;
  float* h_last;
  float* c_last;
  float* gates;     // kept for the way back
  float* states;    // kept: h before every step and after the last
  float* memories;  // kept: c likewise
  float* extra;     // kept, by a cell that needs more
  float* h_panels;  // kept: h before every token; null if there is no way back
  float* x_panels;  // work
  float* apart;     // work: recurrent sums of one step
};

struct LayerBackward {
  LayerShape shape;
  const void* input_index;
  const float* input_values;
  const void* recurrent_index;
  const float* recurrent_values;
  const float* x;
  const float* gates;
  const float* states;
  const float* memories;
  const float* extra;
  const float* h_panels;
  const float* dy;
  const float* dh_last;
  const float* dc_last;
  float* dx;
  float* dh_first;
  float* dc_first;
  float* input_gradients;
  float* recurrent_gradients;
  float* bias_gradient;
  float* recurrent_bias_gradient;
  float* values_t;            // work: as many as the larger matrix has values
  float* x_panels;            // work
  float* d_input_panels;      // work
  float* d_recurrent_panels;  // work, for a cell that keeps recurrent sums apart
  float* d_input;             // work: two steps
  float* d_recurrent;         // work: two steps, for a cell that keeps recurrent sums apart
  float* d_state;             // work: one step
  float* d_memory;            // work: one step
};

// A recurrent highway layer: at every step the state passes `depth` micro-steps, each with a matrix of its own. Arrays
// have one member for each depth. See highway.hpp.
struct HighwayForward {
  LayerShape shape;
  int64_t depth, keep;  // keep: there is a way back
  const void* input_index;
  const float* input_values;
  const void* const* recurrent_index;
  const float* const* recurrent_values;
  const float* const* biases;  // the first is added to the input sums
  const float* x;
  const float* h_first;
  const float* mask;  // batch x hidden: what the recurrent matrices see of the state; or null
  float* y;
  float* gates;         // kept: of the first micro-step of every step
  float* later_gates;   // kept: of the others; without a way back only those of one
  float* states;        // kept: before every micro-step and after the last; without a way back only two
  float* h_panels;      // kept: for each depth, what its matrix saw at every token
  float* x_panels;      // work
  float* mask_panels;   // work: one step
  float* masked;        // work: two steps
};

struct HighwayBackward {
  LayerShape shape;
  int64_t depth;
  const void* input_index;
  const float* input_values;
  const void* const* recurrent_index;
  const float* const* recurrent_values;
  const float* x;
  const float* mask;
  const float* gates;
  const float* later_gates;
  const float* states;
  const float* h_panels;
  const float* dy;
  float* dx;
  float* dh_first;
  float* input_gradients;
  float* const* recurrent_gradients;
  float* const* bias_gradients;
  float* values_t;        // work: as many as the larger of the input matrix and all others together has values
  float* x_panels;        // work
  float* d_panels;        // work: for each depth
  float* d_gates;         // work: two steps
  float* d_state;         // work: one step
  float* d_through;       // work: one step
  float* mask_panels;     // work: one step
};

// A layer of the ordered-neurons LSTM; the master gates have one row for every `chunk` units. See ordered_neurons.hpp.
struct OrderedForward {
  LayerShape shape;
  int64_t chunk;
  const void* input_index;
  const float* input_values;
  const void* recurrent_index;
  const float* recurrent_values;
  const float* bias;
  const float* x;
  const float* h_first;
  const float* c_first;
  float* y;
  float* c_last;
  float* input_distance;   // steps x batch: the mean of the master input gate
  float* forget_distance;  // one minus that of the master forget gate
  float* gates;            // kept; of the master gates what their cumulated sums are of
  float* masters;          // kept: the master gates
  float* states;           // kept: h before every step and after the last
  float* memories;         // kept: c likewise
  float* h_panels;         // kept: h before every token; null if there is no way back
  float* x_panels;         // work
};

struct OrderedBackward {
  LayerShape shape;
  int64_t chunk;
  const void* input_index;
  const float* input_values;
  const void* recurrent_index;
  const float* recurrent_values;
  const float* x;
  const float* gates;
  const float* masters;
  const float* memories;
  const float* h_panels;
  const float* dy;
  const float* dc_last;
  float* dx;
  float* dh_first;
  float* dc_first;
  float* input_gradients;
  float* recurrent_gradients;
  float* bias_gradient;
  float* values_t;   // work: as many as the larger matrix has values
  float* x_panels;   // work
  float* d_panels;   // work
  float* d_gates;    // work: one step
  float* d_masters;  // work: one step, what every unit gives its two master gates
  float* d_state;    // work: one step
  float* d_memory;   // work: one step
};

}  // namespace selfish
