// As much JSON as an exported file needs: read, never written.
#pragma once

#include <algorithm>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace selfish {

struct Json {
  enum Kind { kNull, kNumber, kString, kArray, kObject } kind = kNull;
  double number = 0;
  std::string text;  // of a string
  std::string raw;   // of a string, as it was written, with its quotes
  std::vector<Json> items;
  std::vector<std::pair<Json, Json>> fields;

  static Json read(const std::string& from) {
    size_t at = 0;
    Json found = value(from, at, 0);
    space(from, at);
    if (at != from.size()) wrong();
    return found;
  }

  const Json* find(const std::string& name) const {
    for (const auto& field : fields)
      if (field.first.text == name) return &field.second;
    return nullptr;
  }
  const Json& at(const std::string& name, Kind wanted) const {
    const Json* found = find(name);
    if (found == nullptr || found->kind != wanted) throw std::runtime_error("has no " + name);
    return *found;
  }
  int64_t whole() const {
    if (kind != kNumber || !(number >= -1 && number <= 9e15) ||
        number != static_cast<double>(static_cast<int64_t>(number)))
      throw std::runtime_error("has a number that is out of range");
    return static_cast<int64_t>(number);
  }

 private:
  [[noreturn]] static void wrong() { throw std::runtime_error("is damaged: its description is not JSON"); }

  static void space(const std::string& from, size_t& at) {
    while (at < from.size() && (from[at] == ' ' || from[at] == '\n' || from[at] == '\t' || from[at] == '\r')) ++at;
  }

  static Json value(const std::string& from, size_t& at, int depth) {
    if (depth > 32) wrong();
    space(from, at);
    if (at >= from.size()) wrong();
    Json made;
    if (from[at] == '"') return string(from, at);
    if (from[at] == '[' || from[at] == '{') {
      const bool object = from[at++] == '{';
      made.kind = object ? kObject : kArray;
      for (bool first = true;; first = false) {
        space(from, at);
        if (at < from.size() && from[at] == (object ? '}' : ']')) return ++at, made;
        if (!first) expect(from, at, ',');
        space(from, at);
        if (!object) {
          made.items.push_back(value(from, at, depth + 1));
          continue;
        }
        Json name = string(from, at);
        space(from, at);
        expect(from, at, ':');
        made.fields.emplace_back(std::move(name), value(from, at, depth + 1));
      }
    }
    if (from.compare(at, 4, "null") == 0) return at += 4, made;
    made.kind = kNumber;
    made.number = number_at(from, at);
    return made;
  }

  static bool digit_at(const std::string& from, size_t at) {
    return at < from.size() && from[at] >= '0' && from[at] <= '9';
  }

  // Unlike strtod, which follows the user's language in what a decimal point is. Exact for the nine digits that a float
  // takes.
  static double number_at(const std::string& from, size_t& at) {
    const bool negative = from[at] == '-';
    if (negative) ++at;
    if (!digit_at(from, at)) wrong();
    double found = 0;
    int64_t power = 0, written = 0;
    for (; digit_at(from, at); ++at) found = 10 * found + (from[at] - '0');
    if (at < from.size() && from[at] == '.')
      for (++at; digit_at(from, at); ++at, --power) found = 10 * found + (from[at] - '0');
    if (at < from.size() && (from[at] == 'e' || from[at] == 'E')) {
      ++at;
      const bool down = at < from.size() && from[at] == '-';
      if (at < from.size() && (from[at] == '-' || from[at] == '+')) ++at;
      if (!digit_at(from, at)) wrong();
      for (; digit_at(from, at); ++at) written = std::min<int64_t>(1000, 10 * written + (from[at] - '0'));
      power += down ? -written : written;
    }
    double scale = 1;
    for (int64_t left = std::min<int64_t>(power < 0 ? -power : power, 400); left > 0; --left) scale *= 10;
    found = power < 0 ? found / scale : found * scale;
    return negative ? -found : found;
  }

  static void expect(const std::string& from, size_t& at, char wanted) {
    if (at >= from.size() || from[at] != wanted) wrong();
    ++at;
  }

  static unsigned four(const std::string& from, size_t& at) {
    unsigned code = 0;
    for (int digit = 0; digit < 4; ++digit, ++at) {
      const char c = at < from.size() ? from[at] : 'x';
      if (c >= '0' && c <= '9')
        code = 16 * code + (c - '0');
      else if (c >= 'a' && c <= 'f')
        code = 16 * code + (c - 'a' + 10);
      else if (c >= 'A' && c <= 'F')
        code = 16 * code + (c - 'A' + 10);
      else
        wrong();
    }
    return code;
  }

  static void utf8(unsigned code, std::string& to) {
    if (code < 0x80) {
      to += static_cast<char>(code);
    } else if (code < 0x800) {
      to += static_cast<char>(0xc0 | code >> 6), to += static_cast<char>(0x80 | (code & 63));
    } else if (code < 0x10000) {
      to += static_cast<char>(0xe0 | code >> 12), to += static_cast<char>(0x80 | (code >> 6 & 63));
      to += static_cast<char>(0x80 | (code & 63));
    } else {
      to += static_cast<char>(0xf0 | code >> 18), to += static_cast<char>(0x80 | (code >> 12 & 63));
      to += static_cast<char>(0x80 | (code >> 6 & 63)), to += static_cast<char>(0x80 | (code & 63));
    }
  }

  static Json string(const std::string& from, size_t& at) {
    Json made;
    made.kind = kString;
    const size_t first = at;
    expect(from, at, '"');
    for (;;) {
      if (at >= from.size()) wrong();
      const char c = from[at++];
      if (c == '"') break;
      if (c != '\\') {
        made.text += c;
        continue;
      }
      if (at >= from.size()) wrong();
      const char escaped = from[at++];
      static const std::string from_letters = "\"\\/bfnrt", to_letters = "\"\\/\b\f\n\r\t";
      const size_t which = from_letters.find(escaped);
      if (which != std::string::npos) {
        made.text += to_letters[which];
      } else if (escaped == 'u') {
        unsigned code = four(from, at);
        if (code >= 0xd800 && code < 0xdc00 && from.compare(at, 2, "\\u") == 0) {
          at += 2;
          code = 0x10000 + ((code - 0xd800) << 10) + ((four(from, at) - 0xdc00) & 0x3ff);
        }
        utf8(code, made.text);
      } else {
        wrong();
      }
    }
    made.raw = from.substr(first, at - first);
    return made;
  }
};

}  // namespace selfish
