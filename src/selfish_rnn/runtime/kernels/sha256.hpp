// SHA-256 (FIPS 180-4), which every exported file carries of its content.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <string>

namespace selfish {

class Sha256 {
 public:
  Sha256() {
    // The first bits of the fractions of roots of the first primes.
    int found = 0;
    for (int number = 2; found < 64; ++number) {
      bool prime = true;
      for (int by = 2; by * by <= number; ++by) prime &= number % by != 0;
      if (!prime) continue;
      const auto bits = [](long double root) {
        return static_cast<uint32_t>((root - std::floor(root)) * 4294967296.0L);
      };
      if (found < 8) state_[found] = bits(std::sqrt(static_cast<long double>(number)));
      constants_[found++] = bits(std::cbrt(static_cast<long double>(number)));
    }
  }

  void add(const void* data, size_t bytes) {
    const auto* from = static_cast<const uint8_t*>(data);
    length_ += bytes;
    while (bytes > 0) {
      const size_t some = std::min(bytes, sizeof block_ - filled_);
      std::memcpy(block_ + filled_, from, some);
      filled_ += some, from += some, bytes -= some;
      if (filled_ == sizeof block_) mix(), filled_ = 0;
    }
  }
  void add(const std::string& text) { add(text.data(), text.size()); }

  std::string hex() {
    const uint64_t bits = 8 * length_;
    const uint8_t mark = 0x80, zero = 0;
    add(&mark, 1);
    while (filled_ != 56) add(&zero, 1);
    uint8_t end[8];
    for (int at = 0; at < 8; ++at) end[at] = static_cast<uint8_t>(bits >> (56 - 8 * at));
    add(end, 8);
    std::string text;
    for (uint32_t word : state_)
      for (int at = 28; at >= 0; at -= 4) text += "0123456789abcdef"[word >> at & 15];
    return text;
  }

 private:
  uint32_t state_[8], constants_[64];
  uint8_t block_[64];
  size_t filled_ = 0;
  uint64_t length_ = 0;

  static uint32_t turn(uint32_t word, int by) { return word >> by | word << (32 - by); }

  void mix() {
    uint32_t w[64], s[8];
    for (int at = 0; at < 16; ++at)
      w[at] = static_cast<uint32_t>(block_[4 * at]) << 24 | block_[4 * at + 1] << 16 | block_[4 * at + 2] << 8 |
              block_[4 * at + 3];
    for (int at = 16; at < 64; ++at) {
      const uint32_t a = w[at - 15], b = w[at - 2];
      w[at] = w[at - 16] + (turn(a, 7) ^ turn(a, 18) ^ a >> 3) + w[at - 7] + (turn(b, 17) ^ turn(b, 19) ^ b >> 10);
    }
    std::memcpy(s, state_, sizeof s);
    for (int at = 0; at < 64; ++at) {
      const uint32_t first = s[7] + (turn(s[4], 6) ^ turn(s[4], 11) ^ turn(s[4], 25)) +
                             ((s[4] & s[5]) ^ (~s[4] & s[6])) + constants_[at] + w[at];
      const uint32_t second =
          (turn(s[0], 2) ^ turn(s[0], 13) ^ turn(s[0], 22)) + ((s[0] & s[1]) ^ (s[0] & s[2]) ^ (s[1] & s[2]));
      for (int to = 7; to > 0; --to) s[to] = s[to - 1];
      s[4] += first, s[0] = first + second;
    }
    for (int at = 0; at < 8; ++at) state_[at] += s[at];
  }
};

}  // namespace selfish
