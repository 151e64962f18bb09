#define SELFISH_TARGET int8_avx_vnni
#include "int8_target.hpp"
