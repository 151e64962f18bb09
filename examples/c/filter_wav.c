/* Filters a WAV file frame by frame: a model takes as many samples as it returns, from -1 to 1.
 *
 *   selfish-rnn header                                            # writes selfish_rnn.h
 *   g++ -std=c++17 -O3 -march=native filter_wav.c -o filter_wav
 *   ./filter_wav model.srnn noisy.wav clean.wav
 *
 * The file must have 16 bits and one channel. The last frame is filled up with zeros.
 */
#ifdef __cplusplus
#define SRNN_IMPLEMENTATION
#endif
#include "selfish_rnn.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static void fail(const char* what) {
  fprintf(stderr, "error: %s\n", what);
  exit(1);
}

static uint32_t number(const unsigned char* from, int bytes) {
  uint32_t value = 0;
  for (int at = 0; at < bytes; ++at) value |= (uint32_t)from[at] << (8 * at);
  return value;
}

static void write_number(FILE* file, uint32_t value, int bytes) {
  for (int at = 0; at < bytes; ++at) fputc((int)(value >> (8 * at) & 255), file);
}

/* Reads the chunks of a WAV file up to its samples; returns how many there are. */
static uint32_t read_header(FILE* file, uint32_t* rate) {
  unsigned char chunk[16];
  int fits = 0;
  if (fread(chunk, 1, 12, file) != 12 || memcmp(chunk, "RIFF", 4) != 0 || memcmp(chunk + 8, "WAVE", 4) != 0)
    fail("this is not a WAV file");
  while (fread(chunk, 1, 8, file) == 8) {
    uint32_t bytes = number(chunk + 4, 4);
    if (memcmp(chunk, "data", 4) == 0) {
      if (!fits) fail("the file must have 16 bits and one channel");
      return bytes / 2;
    }
    if (memcmp(chunk, "fmt ", 4) == 0) {
      if (bytes < 16 || fread(chunk, 1, 16, file) != 16) fail("the file is damaged");
      fits = number(chunk, 2) == 1 && number(chunk + 2, 2) == 1 && number(chunk + 14, 2) == 16;
      *rate = number(chunk + 4, 4);
      bytes -= 16;
    }
    if (fseek(file, (long)(bytes + bytes % 2), SEEK_CUR) != 0) break;
  }
  fail("the file has no samples");
  return 0;
}

int main(int count, char** arguments) {
  if (count != 4) {
    fprintf(stderr, "usage: filter_wav MODEL IN.wav OUT.wav\n");
    return 2;
  }
  srnn_model* model = srnn_load(arguments[1]);
  if (model == NULL) fail(srnn_error());
  const size_t frame = srnn_input_size(model);
  if (frame == 0 || srnn_output_size(model) != frame || srnn_token_count(model) != 0)
    fail("this model does not return as many samples as it takes");
  srnn_stream* stream = srnn_stream_new(model);
  FILE* from = fopen(arguments[2], "rb");
  if (stream == NULL || from == NULL) fail("the sound cannot be opened");
  if (strcmp(arguments[2], arguments[3]) == 0) fail("the output must be another file than the input");

  uint32_t rate = 0;
  const uint32_t samples = read_header(from, &rate);
  FILE* to = fopen(arguments[3], "wb");  // only now: a sound that cannot be read leaves an older output as it was
  if (to == NULL) fail("the output cannot be opened");
  fwrite("RIFF", 1, 4, to), write_number(to, 36 + 2 * samples, 4), fwrite("WAVEfmt ", 1, 8, to);
  write_number(to, 16, 4), write_number(to, 1, 2), write_number(to, 1, 2), write_number(to, rate, 4);
  write_number(to, 2 * rate, 4), write_number(to, 2, 2), write_number(to, 16, 2);
  fwrite("data", 1, 4, to), write_number(to, 2 * samples, 4);

  float* in = (float*)malloc(frame * sizeof(float));
  float* out = (float*)malloc(frame * sizeof(float));
  unsigned char* bytes = (unsigned char*)malloc(2 * frame);
  if (in == NULL || out == NULL || bytes == NULL) fail("there is not enough memory");
  clock_t busy = 0;
  uint32_t frames = 0;
  for (uint32_t at = 0; at < samples; at += (uint32_t)frame, ++frames) {
    const size_t here = samples - at < frame ? samples - at : frame;
    memset(bytes, 0, 2 * frame);
    if (fread(bytes, 2, here, from) != here) fail("the file ends early");
    for (size_t sample = 0; sample < frame; ++sample)
      in[sample] = (float)(int16_t)number(bytes + 2 * sample, 2) / 32768.f;
    const clock_t start = clock();
    if (srnn_step(stream, in, out) != SRNN_OK) fail(srnn_error());
    busy += clock() - start;
    for (size_t sample = 0; sample < here; ++sample) {
      const float x = out[sample] * 32768.f;
      const int rounded = x >= 32767.f ? 32767 : x <= -32768.f ? -32768 : x == x ? (int)(x < 0 ? x - .5f : x + .5f) : 0;
      write_number(to, (uint32_t)rounded & 65535, 2);
    }
  }
  fprintf(stderr, "%u frames of %u samples, %.2f microseconds a frame, %s kernels\n", (unsigned)frames, (unsigned)frame,
          1e6 * (double)busy / CLOCKS_PER_SEC / (frames > 0 ? frames : 1), srnn_kernels());
  free(in), free(out), free(bytes);
  fclose(from);
  if (fclose(to) != 0) fail("the result cannot be written");
  srnn_stream_free(stream);
  srnn_free(model);
  return 0;
}
