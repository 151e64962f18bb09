#define SELFISH_TARGET avx512_bf16
#define SELFISH_WIDEST 16
#include "bf16_kernels.hpp"
