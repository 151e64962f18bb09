/* selfish-rnn: run a recurrent network one step at a time.
 *
 *   srnn_model* model = srnn_load("model.srnn");
 *   srnn_stream* stream = srnn_stream_new(model);
 *   while (...) srnn_step(stream, in, out);      // allocates nothing, takes no lock
 *   srnn_stream_free(stream);
 *   srnn_free(model);
 *
 * A model is read-only: any number of streams, in any threads, share one. A stream belongs to one thread at a time.
 * Functions that return a pointer return NULL on failure, functions that return an int a code; srnn_error() says why.
 */
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct srnn_model srnn_model;
typedef struct srnn_stream srnn_stream;

enum { SRNN_OK = 0, SRNN_BAD_ARGUMENT = 1, SRNN_BAD_FILE = 2, SRNN_NO_MEMORY = 3 };

/* Read a model from a file or from memory, which may be freed afterwards. Everything in it is checked. */
srnn_model* srnn_load(const char* path);
srnn_model* srnn_load_memory(const void* data, size_t bytes);
/* Free a model, after all its streams. */
void srnn_free(srnn_model* model);
/* The reason for the last failure in this thread. */
const char* srnn_error(void);
/* The code of the last failure in this thread. */
int srnn_error_code(void);

/* Numbers that a step takes and returns: all inputs, and all outputs, one after the other. */
size_t srnn_input_size(const srnn_model* model);
size_t srnn_output_size(const srnn_model* model);
/* Token ids that a step takes. */
size_t srnn_token_count(const srnn_model* model);
/* Text that was stored in the file under a name, or NULL. */
const char* srnn_text(const srnn_model* model, const char* name);
/* The words of a language model, and the number of one: that of <unk> for an unknown word, or -1. */
size_t srnn_word_count(const srnn_model* model);
const char* srnn_word(const srnn_model* model, size_t index);
int64_t srnn_word_index(const srnn_model* model, const char* word);

/* A stream in new memory, or in the caller's, which must have srnn_stream_size bytes. Both begin at the initial state.
 */
srnn_stream* srnn_stream_new(const srnn_model* model);
size_t srnn_stream_size(const srnn_model* model);
srnn_stream* srnn_stream_new_in(const srnn_model* model, void* memory, size_t bytes);
/* Free a stream from srnn_stream_new; for one in the caller's memory this does nothing. */
void srnn_stream_free(srnn_stream* stream);

/* One step. NaN passes through to what depends on it. After a failure the state is that before the step. */
int srnn_step(srnn_stream* stream, const float* in, float* out);
/* The same for models that take token ids. */
int srnn_step_tokens(srnn_stream* stream, const int32_t* tokens, const float* in, float* out);

/* Return to the initial state. */
void srnn_reset(srnn_stream* stream);
/* The state as srnn_state_size numbers, to continue from later. */
size_t srnn_state_size(const srnn_model* model);
void srnn_get_state(const srnn_stream* stream, float* state);
void srnn_set_state(srnn_stream* stream, const float* state);

/* A word drawn with probability softmax(scores / temperature); temperature 0 takes the likeliest. Only the `top`
 * likeliest words count (0: all), never `forbidden` (-1: none). `number` is uniform in [0, 1). Allocates memory. */
int64_t srnn_choose(const float* scores, int64_t words, double temperature, int64_t top, int64_t forbidden,
                    double number);

/* The processor that the kernels in use were compiled for. */
const char* srnn_kernels(void);

#ifdef __cplusplus
}
#endif
