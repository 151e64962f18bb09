// Included before anything else, this makes the code for processors with AVX-VNNI run on any with AVX2: the instruction
// that they lack is written out as its description defines it. At the end a line says that it was called.
#pragma once

#include <immintrin.h>

#include <cstdint>
#include <cstdio>
#include <cstring>

struct EmulatedAvxVnni {
  int64_t calls = 0;
  ~EmulatedAvxVnni() { std::printf("AVX-VNNI emulated: %s\n", calls > 0 ? "yes" : "no"); }
  __m256i dpbusd(__m256i sum, __m256i without_sign, __m256i with_sign) {
    int32_t total[8];
    uint8_t a[32];
    int8_t b[32];
    std::memcpy(total, &sum, 32), std::memcpy(a, &without_sign, 32), std::memcpy(b, &with_sign, 32);
    for (int at = 0; at < 32; ++at) total[at / 4] += int32_t{a[at]} * b[at];
    std::memcpy(&sum, total, 32);
    ++calls;
    return sum;
  }
};
inline EmulatedAvxVnni emulated_avx_vnni;

#define __AVXVNNI__ 1
#define _mm256_dpbusd_avx_epi32 emulated_avx_vnni.dpbusd
