// The boundary between library.py and the kernels, as plain data: the structures a recurrent layer is given and the
// functions of the library. This is its only description: SELFISH_ABI compiles the text and keeps it, the library
// offers the text to library.py, and library.py makes its structures and signatures from it.
//
// So the text has one form: fields and arguments are int64_t (fields also arrays of a written length), structures named
// before, or pointers, and enumerators count from zero. Rows are tokens x features; a pointer is null where nothing is
// wanted.
#pragma once

#include <cstdint>

#include "platform.hpp"

#define SELFISH_ABI(...) \
  __VA_ARGS__            \
  constexpr char kDescription[] = #__VA_ARGS__;

namespace selfish {

// clang-format off
SELFISH_ABI(

enum CellKind : int64_t { kLstm, kGru, kRnnTanh, kRnnRelu };

// What the index of a packed matrix begins with; see packed.hpp.
struct IndexHeader {
  int64_t format, bytes;
  int64_t rows, columns, count;
  int64_t row_tiles, column_tiles, tile_columns;
  int64_t entries, entries_t;
  int64_t offset[9];  // of every section
};

struct LayerShape {
  int64_t kind, steps, batch, hidden;  // kind: a CellKind, for the layers of recurrent.hpp
};

struct LayerWeights {
  const void* input_index;
  const float* input_values;
  const void* recurrent_index;
  const float* recurrent_values;
};

struct LayerGradients {
  float* dx;
  float* dh_first;
  float* dc_first;
  float* input_gradients;
  float* recurrent_gradients;
  float* bias_gradient;
  float* recurrent_bias_gradient;  // of a layer that has two biases
};

struct LayerForward {
  LayerShape shape;
  LayerWeights weights;
  const float* bias;            // added to the input sums
  const float* recurrent_bias;  // added to the recurrent sums, by a cell that keeps them apart
  const float* x;
  const float* h_first;
  const float* c_first;
  float* y;
  float* h_last;
  float* c_last;
  float* gates;     // kept for the backward pass
  float* states;    // h before every step and after the last, kept, of a GRU; of other cells work: two steps
  float* cells;     // kept: c likewise
  float* extra;     // kept, by a cell that needs more
  float* h_panels;  // kept: h before every token; null if no backward pass follows
  float* x_panels;  // work
  float* apart;     // work: recurrent sums of one step
};

struct LayerBackward {
  LayerShape shape;
  LayerWeights weights;
  const float* x;
  const float* gates;
  const float* states;
  const float* cells;
  const float* extra;
  const float* h_panels;
  const float* dy;
  const float* dh_last;
  const float* dc_last;
  LayerGradients gradients;
  float* values_t;            // work: as many as the larger matrix has values
  float* x_panels;            // work
  float* d_input_panels;      // work
  float* d_recurrent_panels;  // work, for a cell that keeps recurrent sums apart
  float* d_input;             // work: two steps
  float* d_recurrent;         // work: two steps, for a cell that keeps recurrent sums apart
  float* d_state;             // work: one step
  float* d_cell;              // work: one step
};

// A recurrent highway layer: at every step the state passes `depth` micro-steps, each with a matrix of its own. Arrays
// have one member for each depth. See highway.hpp.
struct HighwayForward {
  LayerShape shape;
  int64_t depth, keep;  // keep: a backward pass follows
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
  float* later_gates;   // kept: of the others; without a backward pass only those of one micro-step
  float* states;        // kept: before every micro-step and after the last; without a backward pass only two
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
  LayerWeights weights;
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
  float* cells;            // kept: c likewise
  float* h_panels;         // kept: h before every token; null if no backward pass follows
  float* x_panels;         // work
};

struct OrderedBackward {
  LayerShape shape;
  int64_t chunk;
  LayerWeights weights;
  const float* x;
  const float* gates;
  const float* masters;
  const float* cells;
  const float* h_panels;
  const float* dy;
  const float* dc_last;
  LayerGradients gradients;
  float* values_t;   // work: as many as the larger matrix has values
  float* x_panels;   // work
  float* d_panels;   // work
  float* d_gates;    // work: one step
  float* d_masters;  // work: one step, what every unit gives its two master gates
  float* d_state;    // work: one step
  float* d_cell;     // work: one step
};

extern "C" {

// How many bytes the index of a matrix with these sorted positions takes.
int64_t selfish_index_bytes(int64_t rows, int64_t columns, int64_t count, const int64_t* positions, int64_t row_tiles,
                            const int32_t* row_bounds, int64_t column_tiles, int64_t tile_columns);
// Writes that index to memory, and to order for each value the rank of its position.
void selfish_index_build(int64_t rows, int64_t columns, int64_t count, const int64_t* positions, int64_t row_tiles,
                         const int32_t* row_bounds, int64_t column_tiles, int64_t tile_columns, char* memory,
                         int32_t* order);
// Whether memory holds an index that no kernel can be led astray by: 1 if so.
int64_t selfish_index_valid(const char* memory, int64_t bytes);
// The existing positions, sorted, and where the value of each lies.
void selfish_index_sorted(const char* memory, int64_t* positions, int32_t* places);
// For each value 1, or 0 if the number that the keys give its position (drop_factors in functional.py) is below
// the limit.
void selfish_index_kept(const char* memory, int64_t row_key, int64_t column_key, int64_t limit, float* kept);

// How wide a panel of so many columns (tokens) is, and how many floats all panels of so many features take.
int64_t selfish_panel_width(int64_t columns);
int64_t selfish_panel_floats(int64_t columns, int64_t features);
// How many floats so many features of one step of a recurrent layer take, for a batch of so many sequences.
int64_t selfish_step_floats(int64_t batch, int64_t features);
// How many floats of work selfish_cross_entropy needs for n tokens.
int64_t selfish_cross_entropy_floats(int64_t n, int64_t rows, int64_t columns);

// y = x W^T + bias; work: the panels of n columns and as many features as W has columns, none for n = 1.
void selfish_linear(const void* index, const float* values, const float* bias, const float* x, int64_t n, float* y,
                    float* work);
// work: the panels of n columns and as many features as W has rows and columns.
void selfish_linear_backward(const void* index, const float* values, const float* x, const float* d, int64_t n,
                             float* x_gradient, float* gradients, float* bias_gradient, float* values_t, float* work);
double selfish_cross_entropy(const void* index, const float* values, const float* bias, const float* x,
                             const int64_t* targets, int64_t n, float* x_gradient, float* gradients,
                             float* bias_gradient, float* values_t, float* work);
void selfish_lookup(const void* index, const float* values, const int64_t* tokens, int64_t n, float* y);
void selfish_lookup_backward(const void* index, const int64_t* tokens, const float* d, int64_t n, float* gradients);

void selfish_layer_forward(const LayerForward* layer);
void selfish_layer_backward(const LayerBackward* layer);
void selfish_highway_forward(const HighwayForward* layer);
void selfish_highway_backward(const HighwayBackward* layer);
void selfish_ordered_forward(const OrderedForward* layer);
void selfish_ordered_backward(const OrderedBackward* layer);

// Which kernels are in use and which are the best this processor runs: 0 portable, 1 AVX2, 2 AVX-512.
int64_t selfish_target();
int64_t selfish_best_target();
int64_t selfish_target_runs(int64_t wanted);
void selfish_use_target(int64_t wanted);
// Whether the kernels take several threads: 1 if they were compiled with OpenMP.
int64_t selfish_threaded();

}

)  // SELFISH_ABI
// clang-format on

// The two that are called before the text is known: the text, and the size of every structure in its order, ending in
// 0.
extern "C" {
const char* selfish_description();
const int64_t* selfish_structure_sizes();
}

}  // namespace selfish
