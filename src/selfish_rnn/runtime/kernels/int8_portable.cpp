#define SELFISH_TARGET int8_portable
#include "int8_target.hpp"
