/* Remove noise from a WAV file (16 kHz, 16 bits, one channel) frame by frame, with a network of denoiser.py.
 *
 *   selfish-rnn header --out selfish_rnn.h
 *   g++ -std=c++17 -O3 -march=native -DSRNN_IMPLEMENTATION -x c++ -c selfish_rnn.h -o selfish_rnn.o
 *   gcc -O3 denoiser.c selfish_rnn.o -lstdc++ -lm -o denoiser
 *   ./denoiser denoiser/selfish-0.67-int8.srnn denoiser/noisy.wav clean.wav
 *
 * It does what denoise() of denoiser.py does, number by number; the sound is that of Python. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "selfish_rnn.h"

enum { RATE = 16000, WINDOW = 512, HOP = 256, BINS = WINDOW / 2 + 1, BANDS = 24 };

static const double PI = 3.14159265358979323846;
static double shape[WINDOW], band_weights[BANDS][BINS];

static void fail(const char* what, const char* why) {
  fprintf(stderr, "denoiser: %s: %s\n", what, why);
  exit(1);
}

/* The window, and triangular bands equally wide on the mel scale. */
static void set_up(void) {
  double centres[BANDS];
  const double highest = 2595 * log10(1 + RATE / 2.0 / 700);
  for (int at = 0; at < WINDOW; ++at) shape[at] = sin(PI * (at + 0.5) / WINDOW);
  for (int band = 0; band < BANDS; ++band)
    centres[band] = 700 * (pow(10, highest * band / (BANDS - 1) / 2595) - 1) * WINDOW / RATE;
  for (int bin = 0; bin < BINS; ++bin) {
    int band = 0;
    while (band < BANDS - 2 && bin >= centres[band + 1]) ++band;
    double part = (bin - centres[band]) / (centres[band + 1] - centres[band]);
    if (part > 1) part = 1;
    band_weights[band][bin] = 1 - part;
    band_weights[band + 1][bin] = part;
  }
}

/* A fast Fourier transform in place; `direction` is -1, or 1 for the inverse without its factor. */
static void transform(double* real, double* imaginary, int direction) {
  for (int at = 1, to = 0; at < WINDOW; ++at) {
    int bit = WINDOW >> 1;
    for (; to & bit; bit >>= 1) to ^= bit;
    to |= bit;
    if (at < to) {
      double kept = real[at];
      real[at] = real[to], real[to] = kept;
      kept = imaginary[at];
      imaginary[at] = imaginary[to], imaginary[to] = kept;
    }
  }
  for (int size = 2; size <= WINDOW; size *= 2)
    for (int turn = 0; turn < size / 2; ++turn) {
      const double angle = direction * 2 * PI * turn / size, c = cos(angle), s = sin(angle);
      for (int even = turn; even < WINDOW; even += size) {
        const int odd = even + size / 2;
        const double x = c * real[odd] - s * imaginary[odd], y = c * imaginary[odd] + s * real[odd];
        real[odd] = real[even] - x, imaginary[odd] = imaginary[even] - y;
        real[even] += x, imaginary[even] += y;
      }
    }
}

/* One frame: `past` has its first half, `sound` the second; returns the finished half in `sound`. */
static void filter(srnn_stream* stream, double* past, double* tail, double* sound) {
  double real[WINDOW], imaginary[WINDOW] = {0}, gain[BINS] = {0};
  float bands[BANDS], gains[BANDS];
  for (int at = 0; at < HOP; ++at) {
    real[at] = past[at] * shape[at];
    real[HOP + at] = sound[at] * shape[HOP + at];
    past[at] = sound[at];
  }
  transform(real, imaginary, -1);
  for (int band = 0; band < BANDS; ++band) {
    double energy = 0;
    for (int bin = 0; bin < BINS; ++bin)
      energy += (real[bin] * real[bin] + imaginary[bin] * imaginary[bin]) * band_weights[band][bin];
    bands[band] = (float)(0.25 * log10(energy + 1e-7) + 0.4);
  }
  if (srnn_step(stream, bands, gains)) fail("step", srnn_error());
  for (int band = 0; band < BANDS; ++band)
    for (int bin = 0; bin < BINS; ++bin) gain[bin] += gains[band] * band_weights[band][bin];
  for (int bin = 0; bin < WINDOW; ++bin) {
    const double factor = gain[bin < BINS ? bin : WINDOW - bin] / WINDOW;
    real[bin] *= factor, imaginary[bin] *= factor;
  }
  transform(real, imaginary, 1);
  for (int at = 0; at < HOP; ++at) {
    sound[at] = tail[at] + real[at] * shape[at];
    tail[at] = real[HOP + at] * shape[HOP + at];
  }
}

static unsigned number(const unsigned char* bytes, int count) {
  unsigned value = 0;
  for (int at = 0; at < count; ++at) value |= (unsigned)bytes[at] << (8 * at);
  return value;
}

/* Read the samples of a WAV file; its header goes to the file that is written. */
static unsigned char* read_wave(const char* path, size_t* begin, size_t* samples) {
  FILE* file = fopen(path, "rb");
  if (!file || fseek(file, 0, SEEK_END)) fail(path, "cannot be read");
  const long size = ftell(file);
  unsigned char* bytes = malloc(size > 0 ? (size_t)size : 1);
  rewind(file);
  if (!bytes || size < 44 || fread(bytes, 1, (size_t)size, file) != (size_t)size) fail(path, "is no WAV file");
  fclose(file);
  if (memcmp(bytes, "RIFF", 4) || memcmp(bytes + 8, "WAVEfmt ", 8)) fail(path, "is no WAV file");
  if (number(bytes + 20, 2) != 1 || number(bytes + 22, 2) != 1 || number(bytes + 24, 4) != RATE ||
      number(bytes + 34, 2) != 16)
    fail(path, "must have one channel of 16 bits at 16 kHz");
  size_t at = 20 + (size_t)number(bytes + 16, 4);
  while (at + 8 <= (size_t)size && memcmp(bytes + at, "data", 4)) at += 8 + (size_t)number(bytes + at + 4, 4);
  if (at + 8 > (size_t)size) fail(path, "has no samples");
  *begin = at + 8;
  *samples = number(bytes + at + 4, 4) / 2;
  if (*begin + 2 * *samples > (size_t)size) *samples = ((size_t)size - *begin) / 2;
  return bytes;
}

int main(int count, char** words) {
  if (count != 4) fail("usage", "denoiser MODEL.srnn NOISY.wav CLEAN.wav");
  srnn_model* model = srnn_load(words[1]);
  if (!model) fail(words[1], srnn_error());
  if (srnn_input_size(model) != BANDS || srnn_output_size(model) != BANDS) fail(words[1], "is no denoiser");
  srnn_stream* stream = srnn_stream_new(model);
  if (!stream) fail(words[1], srnn_error());
  set_up();

  size_t begin, samples;
  unsigned char* bytes = read_wave(words[2], &begin, &samples);
  double past[HOP] = {0}, tail[HOP] = {0}, sound[HOP];
  const clock_t start = clock();
  /* The output of a frame is the hop before it, so one more frame than hops ends the sound. */
  for (size_t frame = 0; frame <= (samples + HOP - 1) / HOP; ++frame) {
    for (size_t at = 0; at < HOP; ++at) {
      const size_t place = frame * HOP + at;
      sound[at] = place < samples ? (short)number(bytes + begin + 2 * place, 2) / 32768.0 : 0;
    }
    filter(stream, past, tail, sound);
    for (size_t at = 0; frame > 0 && at < HOP; ++at) {
      const size_t place = (frame - 1) * HOP + at;
      const double limited = sound[at] < -1 ? -1 : sound[at] > 1 ? 1 : sound[at];
      const int value = (int)floor(limited * 32767 + 0.5);
      if (place < samples) {
        bytes[begin + 2 * place] = (unsigned char)(value & 255);
        bytes[begin + 2 * place + 1] = (unsigned char)(value >> 8 & 255);
      }
    }
  }
  const double seconds = (double)(clock() - start) / CLOCKS_PER_SEC;
  printf("%.1f s of sound in %.3f s\n", (double)samples / RATE, seconds);

  FILE* file = fopen(words[3], "wb");
  if (!file || fwrite(bytes, 1, begin + 2 * samples, file) != begin + 2 * samples || fclose(file))
    fail(words[3], "cannot be written");
  free(bytes);
  srnn_stream_free(stream);
  srnn_free(model);
  return 0;
}
