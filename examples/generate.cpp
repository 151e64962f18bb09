// Continues a text with a model that `selfish-rnn export RUN --precision int8` wrote. No Python, no library:
//
//   selfish-rnn header                                        # writes selfish_rnn.hpp
//   g++ -std=c++17 -O3 -march=native -fopenmp generate.cpp -o generate
//   ./generate model.safetensors 40 0.8 1 the cat             # words to write, temperature, seed, the text so far
#include "selfish_rnn.hpp"

#include <chrono>
#include <cstdio>
#include <random>

int main(int count, char** arguments) try {
  if (count < 5) {
    std::fprintf(stderr, "usage: generate FILE WORDS TEMPERATURE SEED [WORD ...]\n");
    return 2;
  }
  selfish::Model model(arguments[1]);
  const int words = std::stoi(arguments[2]);
  const double temperature = std::stod(arguments[3]);
  std::mt19937_64 random(std::stoull(arguments[4]));
  std::uniform_real_distribution<double> uniform(0.0, 1.0);

  const auto write = [&](int64_t word) {
    const std::string& text = model.words()[word];
    std::printf("%s", text == "<eos>" ? "\n" : (text + " ").c_str());
  };
  model.step(model.word("<eos>"));  // every sentence begins after the end of another
  for (int at = 5; at < count; ++at) {
    const int64_t word = model.word(arguments[at]);
    model.step(word);
    write(word);
  }
  const auto start = std::chrono::steady_clock::now();
  for (int at = 0; at < words; ++at) {
    const int64_t word = model.choose(temperature, 0, uniform(random));
    write(word);
    model.step(word);
  }
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  std::printf("\n");
  std::fprintf(stderr, "%.0f words per second, %s kernels\n", words / seconds.count(), selfish::Model::kernels());
} catch (const std::exception& error) {
  std::fprintf(stderr, "error: %s\n", error.what());
  return 1;
}
