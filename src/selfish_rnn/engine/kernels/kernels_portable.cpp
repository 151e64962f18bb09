#define SELFISH_TARGET portable
#define SELFISH_WIDEST 8
#include "kernels.hpp"
