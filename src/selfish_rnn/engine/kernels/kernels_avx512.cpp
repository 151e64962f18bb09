#define SELFISH_TARGET avx512
#define SELFISH_WIDEST 16
#include "kernels.hpp"
