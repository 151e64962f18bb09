// The int8 kernels as one table of functions, compiled once for every kind of processor.
#pragma once

#include "abi.hpp"

namespace selfish {

struct Int8Kernels {
  int64_t height;
  int (*planes_for)(const Int8Weights& weights);
  bool (*has_planes)(int64_t planes);
  decltype(&selfish_int8_linear) linear;
  decltype(&selfish_int8_layer) layer;
  decltype(&selfish_int8_step) step;
  decltype(&selfish_choose) choose;
};

}  // namespace selfish

#ifdef SELFISH_TARGET
#include "../../engine/kernels/abi.hpp"
#include "int8_layers.hpp"
#include "sampling.hpp"

namespace selfish {
namespace SELFISH_TARGET {

extern const Int8Kernels kernels;
const Int8Kernels kernels = {
    kHeight,
    planes_for,
    has_planes,
    int8_linear,
    [](const Int8Layer* of) {
      switch (of->kind) {
        case kLstm: return layer(*of, lstm_cell);
        case kGru: return layer(*of, gru_cell);
        case kRnnTanh: return layer(*of, elman_cell<false>);
        default: return layer(*of, elman_cell<true>);
      }
    },
    [](const Program* program) { run_program<Int8Matrices>(*program); },
    choose,
};

}  // namespace SELFISH_TARGET
}  // namespace selfish
#endif
