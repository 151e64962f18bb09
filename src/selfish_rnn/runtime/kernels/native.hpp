// Everything for one processor, that which is compiled for: the implementation of api.h in one piece.
#pragma once

#include "api_functions.hpp"
#include "execution.hpp"
#include "sampling.hpp"

namespace selfish {

const StepKernels& step_kernels() {
  static constexpr StepKernels kKernels = {SELFISH_TARGET::kName, SELFISH_TARGET::matrix_rules(),
                                           SELFISH_TARGET::run_step, SELFISH_TARGET::choose};
  return kKernels;
}

}  // namespace selfish
