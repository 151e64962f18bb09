// What a program is made of once it is checked: operations on places in the memory of a stream.
#pragma once

#include "matrices.hpp"

namespace selfish {

enum OperationKind : int64_t {
  kLinear,
  kEmbedding,
  kCopy,
  kFrames,
  kLstmCell,
  kGruCell,
  kRnnTanhCell,
  kRnnReluCell,
  kHighwayCell,
  kOrderedCell,
  kAdd,
  kSubtract,
  kMultiply,
  kDivide,
  kMaximum,
  kMinimum,
  kAbs,
  kSqrt,
  kExp,
  kLog,
  kSquare,
  kTanh,
  kSigmoid,
  kRelu,
  kGelu,
  kGeluTanh,
  kSilu,
  kSoftsign,
  kHardsigmoid,
  kHardswish,
  kLogSigmoid,
  kAffine,
  kClamp,
  kLeakyRelu,
  kElu,
  kSoftplus,
  kSoftmax,
  kLogSoftmax,
  kSum,
  kMean,
  kMixture,
  kLayerNorm,
  kRmsNorm
};

// Places are floats from the beginning of the memory; -1 is nowhere.
struct Operation {
  int64_t kind;
  int64_t phase;  // operations of one phase do not depend on each other
  int64_t size;   // numbers of the first result
  int64_t input[3];
  int64_t output[2];
  int64_t input_size[2];
  int64_t count;  // vectors, parts, frames or units of a chunk
  int64_t extra;  // the token of an embedding; the dilation of frames; whether activations are int8
  float a, b;     // constants
  const Matrix* matrix;
  const float* bias;
};

// Everything a step needs; one for each stream. Activations have room for every thread.
struct Step {
  const Operation* operations;
  int64_t count;
  int64_t threads;
  float* memory;
  const int32_t* tokens;
  uint8_t* activations;
  int64_t activation_bytes;  // of each thread
  float* masters;            // the master gates of ordered cells
  int64_t master_floats;     // of each thread
};

// What a processor's kernels offer.
struct StepKernels {
  const char* name;
  MatrixRules rules;
  void (*run)(const Step& step);
  int64_t (*choose)(const float* scores, int64_t words, double temperature, int64_t top, int64_t forbidden,
                    double number);
};

const StepKernels& step_kernels();  // those in use

}  // namespace selfish
