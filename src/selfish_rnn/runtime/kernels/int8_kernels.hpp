// The kernels for inference as one table of functions, compiled once for every kind of processor.
#pragma once

#include "operations.hpp"

namespace selfish {

struct Int8Kernels {
  StepKernels step;
  bool (*has_planes)(int64_t planes);
  decltype(&selfish_int8_linear) linear;
  decltype(&selfish_int8_layer) layer;
};

}  // namespace selfish
