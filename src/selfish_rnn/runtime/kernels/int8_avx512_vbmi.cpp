#define SELFISH_TARGET int8_avx512_vbmi
#include "int8_target.hpp"
