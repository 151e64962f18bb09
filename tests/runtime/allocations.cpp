// Counts allocations during steps: every allocation of the process goes through these functions.
#include <cstdio>
#include <cstdlib>
#include <new>

static long allocations = 0;

extern "C" void* __libc_malloc(size_t);
extern "C" void* __libc_calloc(size_t, size_t);
extern "C" void* __libc_realloc(void*, size_t);
extern "C" void* malloc(size_t bytes) { return ++allocations, __libc_malloc(bytes); }
extern "C" void* calloc(size_t count, size_t bytes) { return ++allocations, __libc_calloc(count, bytes); }
extern "C" void* realloc(void* memory, size_t bytes) { return ++allocations, __libc_realloc(memory, bytes); }

#define SRNN_IMPLEMENTATION
#include "selfish_rnn.h"

int main(int, char** arguments) {
  srnn_model* model = srnn_load(arguments[1]);
  if (model == nullptr) return std::fprintf(stderr, "%s\n", srnn_error()), 1;
  srnn_stream* stream = srnn_stream_new(model);
  std::vector<float> in(srnn_input_size(model), 0.1f), out(srnn_output_size(model)), state(srnn_state_size(model));
  const int steps = std::atoi(arguments[2]);
  const long before = allocations;
  for (int step = 0; step < steps; ++step) {
    in[0] = static_cast<float>(step % 7);
    if (srnn_step(stream, in.data(), out.data()) != SRNN_OK) return 1;
    if (step % 1000 == 0) srnn_get_state(stream, state.data()), srnn_set_state(stream, state.data());
    if (step % 1500 == 0) srnn_reset(stream);
  }
  std::printf("%ld allocations in %d steps\n", allocations - before, steps);
}
