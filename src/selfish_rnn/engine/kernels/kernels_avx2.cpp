#define SELFISH_TARGET avx2
#define SELFISH_WIDEST 8
#include "kernels.hpp"
