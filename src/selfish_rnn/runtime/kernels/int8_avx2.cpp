#define SELFISH_TARGET int8_avx2
#include "int8_target.hpp"
