// A model and its streams behind the C functions of api.h.
//
// A stream is one block: this header, its vectors (states among them), the master gates and the rounded activations of
// every thread.
#pragma once

#include <cstdio>
#include <fstream>
#include <iterator>
#include <new>

#include "api.h"
#include "loading.hpp"

#ifdef _OPENMP
#include <omp.h>
#endif

namespace selfish {

// Below this, threads would wait longer for each other than they compute.
constexpr int64_t kBytesWorthThreads = 1 << 20;
constexpr int64_t kMostThreads = 64;

inline thread_local char last_error[512] = "";
inline thread_local int last_code = SRNN_OK;

inline int fail(int code, const char* what, const char* more = "") {
  std::snprintf(last_error, sizeof last_error, "%s%s", what, more);
  return last_code = code;
}

}  // namespace selfish

struct srnn_model {
  selfish::StepKernels kernels;
  selfish::LoadedProgram program;
  int64_t threads = 1;
  size_t input_size = 0, output_size = 0, state_size = 0;

  srnn_model(const char* data, size_t size) : kernels(selfish::step_kernels()) {
    const selfish::SavedFile file(data, size);
    program = selfish::ProgramReader(file, kernels.rules).read();
    for (const auto& piece : program.inputs) input_size += static_cast<size_t>(piece.size);
    for (const auto& piece : program.outputs) output_size += static_cast<size_t>(piece.size);
    for (const auto& piece : program.states) state_size += static_cast<size_t>(piece.size);
#ifdef _OPENMP
    if (program.matrix_bytes >= selfish::kBytesWorthThreads)
      threads = std::min<int64_t>(selfish::kMostThreads, omp_get_max_threads());
#endif
  }
};

struct srnn_stream {
  const srnn_model* model;
  void* memory;  // of srnn_stream_new, or null
  selfish::Step step;

  static size_t header_bytes() { return (sizeof(srnn_stream) + 63) / 64 * 64; }
  static size_t bytes(const srnn_model& model) {
    const auto& program = model.program;
    const int64_t floats = program.floats + model.threads * program.master_floats;
    return 64 + header_bytes() + static_cast<size_t>(4 * floats + model.threads * program.activation_bytes);
  }

  // In memory of bytes(); the stream begins at its first cache line.
  static srnn_stream* make(const srnn_model& model, void* memory) {
    auto* begin = reinterpret_cast<char*>((reinterpret_cast<uintptr_t>(memory) + 63) / 64 * 64);
    std::memset(begin, 0, bytes(model) - 64);
    auto* stream = new (begin) srnn_stream;
    const auto& program = model.program;
    stream->model = &model, stream->memory = nullptr;
    selfish::Step& step = stream->step;
    step.operations = program.operations.data(), step.count = static_cast<int64_t>(program.operations.size());
    step.threads = model.threads, step.tokens = nullptr;
    step.memory = reinterpret_cast<float*>(begin + header_bytes());
    step.masters = step.memory + program.floats, step.master_floats = program.master_floats;
    step.activations = reinterpret_cast<uint8_t*>(step.masters + model.threads * program.master_floats);
    step.activation_bytes = program.activation_bytes;
    for (const auto& constant : program.constants)
      std::memcpy(step.memory + constant.place, constant.values.data(), 4 * constant.values.size());
    stream->reset();
    return stream;
  }

  void reset() const {
    for (const auto& state : model->program.states) {
      float* to = step.memory + state.place;
      if (state.initial.empty())
        std::memset(to, 0, sizeof(float) * state.size);
      else
        std::memcpy(to, state.initial.data(), sizeof(float) * state.size);
    }
  }

  int run(const int32_t* tokens, const float* in, float* out) {
    const auto& program = model->program;
    for (size_t at = 0; at < program.token_counts.size(); ++at)
      if (tokens[at] < 0 || tokens[at] >= program.token_counts[at])
        return selfish::fail(SRNN_BAD_ARGUMENT, "a token is out of range");
    for (const auto& piece : program.inputs) {
      std::memcpy(step.memory + piece.place, in, sizeof(float) * piece.size);
      in += piece.size;
    }
    step.tokens = tokens;
    model->kernels.run(step);
    for (const auto& piece : program.outputs) {
      std::memcpy(out, step.memory + piece.place, sizeof(float) * piece.size);
      out += piece.size;
    }
    for (const auto& state : program.states)
      if (state.next != state.place)
        std::memcpy(step.memory + state.place, step.memory + state.next, sizeof(float) * state.size);
    return SRNN_OK;
  }
};
