// What a recurrent layer is given, as plain data; see recurrent.hpp for what it does with it. The same for every
// processor, and mirrored field by field in native.py. Rows are tokens x features; null where nothing is wanted.
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

}  // namespace selfish
