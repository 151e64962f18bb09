// The table of int8_kernels.hpp for the processor that is compiled for. Only kernels are in it: what is compiled for
// many processors may not use the standard library's containers, of which the linker keeps any one of the copies.
#pragma once

#include "../../engine/kernels/abi.hpp"
#include "execution.hpp"
#include "int8_kernels.hpp"
#include "int8_layers.hpp"
#include "sampling.hpp"

namespace selfish {
namespace SELFISH_TARGET {

extern const Int8Kernels kernels;
const Int8Kernels kernels = {
    {kName, matrix_rules(), run_step, choose},
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
};

}  // namespace SELFISH_TARGET
}  // namespace selfish
