// The kernels as one table of functions, compiled once for every kind of processor.
#pragma once

#include "layer.hpp"

namespace selfish {

struct Kernels {
  void (*linear)(const void* index, const float* values, const float* bias, const float* x, int64_t n, float* y,
                 float* work);
  void (*linear_backward)(const void* index, const float* values, const float* x, const float* d, int64_t n,
                          float* x_gradient, float* gradients, float* bias_gradient, float* values_t, float* work);
  double (*cross_entropy)(const void* index, const float* values, const float* bias, const float* x,
                          const int64_t* targets, int64_t n, float* x_gradient, float* gradients, float* bias_gradient,
                          float* values_t, float* work);
  void (*lookup)(const void* index, const float* values, const int64_t* tokens, int64_t n, float* y);
  void (*lookup_backward)(const void* index, const int64_t* tokens, const float* d, int64_t n, float* gradients);
  void (*layer_forward)(const LayerForward* layer);
  void (*layer_backward)(const LayerBackward* layer);
  void (*highway_forward)(const HighwayForward* layer);
  void (*highway_backward)(const HighwayBackward* layer);
  void (*ordered_forward)(const OrderedForward* layer);
  void (*ordered_backward)(const OrderedBackward* layer);
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
  switch (layer->shape.cell) {
    case kLSTM: return forward<LSTM>(*layer);
    case kGRU: return forward<GRU>(*layer);
    case kTanh: return forward<Elman<false>>(*layer);
    default: return forward<Elman<true>>(*layer);
  }
}

inline void layer_backward(const LayerBackward* layer) {
  switch (layer->shape.cell) {
    case kLSTM: return backward<LSTM>(*layer);
    case kGRU: return backward<GRU>(*layer);
    case kTanh: return backward<Elman<false>>(*layer);
    default: return backward<Elman<true>>(*layer);
  }
}

extern const Kernels kernels;
const Kernels kernels = {
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
