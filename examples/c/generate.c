/* Continues a text with a language model. No Python, no library:
 *
 *   selfish-rnn export runs/mine --precision int8 --out model.srnn
 *   selfish-rnn header                                         # writes selfish_rnn.h
 *   g++ -std=c++17 -O3 -march=native generate.c -o generate    # add -fopenmp for large models
 *   ./generate model.srnn 40 0.8 1 the cat                     # words to write, temperature, seed, the text so far
 *
 * The file is C and C++ at once, so that one command compiles it with the implementation in the header.
 */
#ifdef __cplusplus
#define SRNN_IMPLEMENTATION
#endif
#include "selfish_rnn.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* xorshift64*, uniform in [0, 1). */
static double uniform(uint64_t* state) {
  *state ^= *state >> 12, *state ^= *state << 25, *state ^= *state >> 27;
  return (double)((*state * UINT64_C(2685821657736338717)) >> 11) / 9007199254740992.0;
}

static void write_word(const srnn_model* model, int64_t word) {
  const char* text = srnn_word(model, (size_t)word);
  printf("%s%s", strcmp(text, "<eos>") == 0 ? "" : text, strcmp(text, "<eos>") == 0 ? "\n" : " ");
}

static void fail(const char* what) {
  fprintf(stderr, "error: %s\n", what);
  exit(1);
}

int main(int count, char** arguments) {
  if (count < 5) {
    fprintf(stderr, "usage: generate FILE WORDS TEMPERATURE SEED [WORD ...]\n");
    return 2;
  }
  srnn_model* model = srnn_load(arguments[1]);
  if (model == NULL) fail(srnn_error());
  const size_t words = srnn_word_count(model);
  if (words == 0 || srnn_token_count(model) != 1 || srnn_input_size(model) != 0 || srnn_output_size(model) != words)
    fail("this model does not take a word and return scores of words");
  srnn_stream* stream = srnn_stream_new(model);
  float* scores = (float*)malloc(words * sizeof(float));
  if (stream == NULL || scores == NULL) fail("there is not enough memory");
  const int wanted = atoi(arguments[2]);
  const double temperature = atof(arguments[3]);
  uint64_t random = UINT64_C(88172645463325252) ^ (strtoull(arguments[4], NULL, 10) * UINT64_C(0x9E3779B97F4A7C15));
  if (random == 0) random = 1;

  const int64_t unknown = srnn_word_index(model, "<unk>");
  int32_t word = (int32_t)srnn_word_index(model, "<eos>"); /* every sentence begins after the end of another */
  for (int at = 5; at <= count; ++at) {
    if (word < 0 || srnn_step_tokens(stream, &word, NULL, scores) != SRNN_OK) fail("an unknown word");
    if (at == count) break;
    word = (int32_t)srnn_word_index(model, arguments[at]);
    if (word >= 0) write_word(model, word);
  }
  const clock_t start = clock();
  for (int at = 0; at < wanted; ++at) {
    word = (int32_t)srnn_choose(scores, (int64_t)words, temperature, 0, unknown, uniform(&random));
    write_word(model, word);
    srnn_step_tokens(stream, &word, NULL, scores);
  }
  const double seconds = (double)(clock() - start) / CLOCKS_PER_SEC;
  printf("\n");
  fprintf(stderr, "%.0f words per second, %s kernels\n", wanted / (seconds > 0 ? seconds : 1e-9), srnn_kernels());
  free(scores);
  srnn_stream_free(stream);
  srnn_free(model);
  return 0;
}
