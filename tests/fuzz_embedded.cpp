// Damages an exported file in many ways and reads it with the C++ header: each is to be refused with an exception, or
// to run without a step beyond its memory. Past the checksum, which would refuse nearly all of them:
//
//   selfish-rnn header
//   g++ -std=c++17 -O1 -g -march=native -fsanitize=address,undefined -fno-sanitize-recover=undefined
//       -DSELFISH_ANY_CHECKSUM -I. tests/fuzz_embedded.cpp -o fuzz
//   ./fuzz model.safetensors 10000
#include "selfish_rnn.hpp"

#include <cstdio>
#include <random>

int main(int count, char** arguments) {
  if (count < 3) return 2;
  std::ifstream stream(arguments[1], std::ios::binary);
  const std::string content((std::istreambuf_iterator<char>(stream)), std::istreambuf_iterator<char>());
  std::mt19937 random(1);
  const auto below = [&](size_t limit) { return static_cast<size_t>(random()) % limit; };
  const std::string path = std::string(arguments[1]) + ".damaged";
  int refused = 0, ran = 0;
  for (int turn = 0; turn < std::stoi(arguments[2]); ++turn) {
    std::string damaged = content;
    for (size_t times = 1 + below(3); times > 0; --times) {
      const size_t at = below(damaged.size()), length = std::min(damaged.size() - at, size_t{1} << below(8));
      switch (below(6)) {
        case 0: damaged[at] = static_cast<char>(damaged[at] ^ 1 << below(8)); break;
        case 1:
          for (size_t i = 0; i < length; ++i) damaged[at + i] = static_cast<char>(random());
          break;
        case 2: damaged.erase(at, length); break;
        case 3: damaged.insert(at, damaged.substr(at, length)); break;
        case 4: damaged[at] = static_cast<char>('0' + below(10)); break;  // most of the description is digits
        default:
          if (below(8) == 0) damaged.resize(at + 1);
      }
    }
    std::ofstream(path, std::ios::binary) << damaged;
    try {
      selfish::Model model(path);
      for (int64_t word = 0; word < 3 && word < static_cast<int64_t>(model.words().size()); ++word) model.step(word);
      if (!model.words().empty()) model.choose(0.8, 5, 0.5);
      ++ran;
    } catch (const std::exception&) {
      ++refused;
    }
  }
  std::remove(path.c_str());
  std::printf("%d refused, %d ran\n", refused, ran);
}
