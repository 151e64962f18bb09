#define SELFISH_TARGET portable_bf16
#define SELFISH_WIDEST 8
#include "bf16_kernels.hpp"
