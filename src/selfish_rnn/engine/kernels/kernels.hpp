// The kernels as one table of functions, compiled once for every kind of processor.
#pragma once

#include "abi.hpp"

namespace selfish {

// Each has the signature of the function of the library that calls it.
struct Kernels {
  decltype(&selfish_panel_width) panel_width;
  decltype(&selfish_panel_floats) panel_floats;
  decltype(&selfish_step_floats) step_floats;
  decltype(&selfish_cross_entropy_floats) cross_entropy_floats;
  decltype(&selfish_linear) linear;
  decltype(&selfish_linear_backward) linear_backward;
  decltype(&selfish_cross_entropy) cross_entropy;
  decltype(&selfish_lookup) lookup;
  decltype(&selfish_lookup_backward) lookup_backward;
  decltype(&selfish_layer_forward) layer_forward;
  decltype(&selfish_layer_backward) layer_backward;
  decltype(&selfish_highway_forward) highway_forward;
  decltype(&selfish_highway_backward) highway_backward;
  decltype(&selfish_ordered_forward) ordered_forward;
  decltype(&selfish_ordered_backward) ordered_backward;
};

}  // namespace selfish

#ifdef SELFISH_TARGET
#include "highway.hpp"
#include "lookup.hpp"
#include "loss.hpp"
#include "ordered_neurons.hpp"
#include "recurrent.hpp"

namespace selfish {
namespace SELFISH_TARGET {

inline void layer_forward(const LayerForward* layer) {
  switch (layer->shape.kind) {
    case kLstm: return forward<LSTM>(*layer);
    case kGru: return forward<GRU>(*layer);
    case kRnnTanh: return forward<Elman<false>>(*layer);
    default: return forward<Elman<true>>(*layer);
  }
}

inline void layer_backward(const LayerBackward* layer) {
  switch (layer->shape.kind) {
    case kLstm: return backward<LSTM>(*layer);
    case kGru: return backward<GRU>(*layer);
    case kRnnTanh: return backward<Elman<false>>(*layer);
    default: return backward<Elman<true>>(*layer);
  }
}

extern const Kernels kernels;
const Kernels kernels = {
    [](int64_t columns) { return static_cast<int64_t>(Panels(columns).width); },
    [](int64_t columns, int64_t features) { return Panels(columns).floats(features); },
    [](int64_t batch, int64_t features) { return StepPanels(batch).floats(features); },
    cross_entropy_floats,
    [](const void* index, const float* values, const float* bias, const float* x, int64_t n, float* y, float* work) {
      linear(Packed(index), values, bias, x, n, y, work);
    },
    [](const void* index, const float* values, const float* x, const float* d, int64_t n, float* x_gradient,
       float* gradients, float* bias_gradient, float* values_t, float* work) {
      linear_backward(Packed(index), values, x, d, n, x_gradient, gradients, bias_gradient, values_t, work);
    },
    [](const void* index, const float* values, const float* bias, const float* x, const int64_t* targets, int64_t n,
       float* x_gradient, float* gradients, float* bias_gradient, float* values_t, float* work) {
      return cross_entropy(Packed(index), values, bias, x, targets, n, x_gradient, gradients, bias_gradient, values_t,
                           work);
    },
    [](const void* index, const float* values, const int64_t* tokens, int64_t n, float* y) {
      lookup(Packed(index), values, tokens, n, y);
    },
    [](const void* index, const int64_t* tokens, const float* d, int64_t n, float* gradients) {
      lookup_backward(Packed(index), tokens, d, n, gradients);
    },
    layer_forward,
    layer_backward,
    [](const HighwayForward* layer) { highway_forward(*layer); },
    [](const HighwayBackward* layer) { highway_backward(*layer); },
    [](const OrderedForward* layer) { ordered_forward(*layer); },
    [](const OrderedBackward* layer) { ordered_backward(*layer); },
};

}  // namespace SELFISH_TARGET
}  // namespace selfish
#endif
