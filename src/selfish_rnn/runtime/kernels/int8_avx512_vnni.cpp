#define SELFISH_TARGET int8_avx512_vnni
#include "int8_target.hpp"
