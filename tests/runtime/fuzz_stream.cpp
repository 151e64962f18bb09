// Damages a stream file in many ways and loads it: each is refused with an error, or runs without leaving its memory.
// Past the checksum, which would refuse nearly all of them:
//
//   selfish-rnn header
//   g++ -std=c++17 -O1 -g -march=native -fsanitize=address,undefined -fno-sanitize-recover=undefined
//       -DSRNN_ANY_CHECKSUM -I. tests/runtime/fuzz_stream.cpp -o fuzz
//   ./fuzz model.srnn 10000
#define SRNN_IMPLEMENTATION
#include "selfish_rnn.h"

#include <cstdio>
#include <fstream>
#include <random>

int main(int count, char** arguments) {
  if (count < 3) return 2;
  std::ifstream file(arguments[1], std::ios::binary);
  const std::string content((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  std::mt19937 random(count > 3 ? std::stoi(arguments[3]) : 1);
  const auto below = [&](size_t limit) { return static_cast<size_t>(random()) % limit; };
  size_t header = 8;
  for (int at = 0; at < 8; ++at) header += static_cast<size_t>(static_cast<uint8_t>(content[at])) << 8 * at;
  int refused = 0, ran = 0;
  for (int turn = 0; turn < std::stoi(arguments[2]); ++turn) {
    std::string damaged = content;
    for (size_t times = 1 + below(3); times > 0 && !damaged.empty(); --times) {
      // Most of what can be wrong is in the description.
      const size_t at = below(below(4) == 0 ? damaged.size() : std::min(header, damaged.size()));
      const size_t length = std::min(damaged.size() - at, size_t{1} << below(8));
      switch (below(7)) {
        case 0: damaged[at] = static_cast<char>(damaged[at] ^ 1 << below(8)); break;
        case 1:
          for (size_t i = 0; i < length; ++i) damaged[at + i] = static_cast<char>(random());
          break;
        case 2: damaged.erase(at, length); break;
        case 3: damaged.insert(at, damaged.substr(at, length)); break;
        case 4:
        case 5: {  // another digit where there is one
          const size_t digit = damaged.find_first_of("0123456789", at);
          if (digit != std::string::npos) damaged[digit] = static_cast<char>('0' + below(10));
          break;
        }
        default:
          if (below(8) == 0) damaged.resize(at + 1);
      }
    }
    srnn_model* model = srnn_load_memory(damaged.data(), damaged.size());
    if (model == nullptr) {
      if (*srnn_error() == '\0') return std::printf("refused without a reason\n"), 1;
      ++refused;
      continue;
    }
    srnn_stream* stream = srnn_stream_new(model);
    std::vector<float> in(srnn_input_size(model) + 1, 0.5f), out(srnn_output_size(model) + 1);
    std::vector<float> state(srnn_state_size(model) + 1, 1e9f);
    const std::vector<int32_t> tokens(srnn_token_count(model) + 1, 0);
    for (int step = 0; stream != nullptr && step < 3; ++step) {
      srnn_step_tokens(stream, tokens.data(), in.data(), out.data());
      if (step == 0) srnn_set_state(stream, state.data());
    }
    srnn_stream_free(stream);
    srnn_free(model);
    ++ran;
  }
  std::printf("%d refused, %d ran\n", refused, ran);
}
