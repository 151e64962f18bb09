// A safetensors file that selfish-rnn wrote, checked: every tensor lies in the file, and the checksum is right.
#pragma once

#include <cstring>
#include <map>

#include "json.hpp"
#include "sha256.hpp"

namespace selfish {

struct SavedTensor {
  std::string type;
  std::vector<int64_t> shape;
  const char* data = nullptr;
  int64_t bytes = 0;

  int64_t count() const {
    int64_t product = 1;
    for (int64_t size : shape) product *= size;
    return product;
  }
  // Tensors need not be aligned.
  template <class Number>
  std::vector<Number> numbers() const {
    std::vector<Number> made(static_cast<size_t>(count()));
    if (!made.empty()) std::memcpy(made.data(), data, sizeof(Number) * made.size());
    return made;
  }
};

class SavedFile {
 public:
  // Follows the bytes only as long as it lives.
  SavedFile(const char* data, size_t size) : size_(static_cast<int64_t>(size)) {
    uint64_t length = 0;
    for (int at = 0; at < 8 && size >= 8; ++at)
      length |= static_cast<uint64_t>(static_cast<uint8_t>(data[at])) << 8 * at;
    if (length == 0 || length > size - 8) wrong("is not a safetensors file");
    const Json header = Json::read(std::string(data + 8, length));
    const char* start = data + 8 + length;
    const auto room = static_cast<int64_t>(size - 8 - length);
    for (const auto& field : header.fields) {
      if (field.first.text == "__metadata__") continue;
      SavedTensor made;
      made.type = field.second.at("dtype", Json::kString).text;
      const int64_t width = bytes_of(made.type);
      const Json& offsets = field.second.at("data_offsets", Json::kArray);
      if (width == 0 || offsets.items.size() != 2) wrong("has a tensor " + field.first.text + " of another type");
      for (const Json& size_of : field.second.at("shape", Json::kArray).items) {
        const int64_t count = size_of.whole();
        if (count < 0 || (count > 0 && made.count() > (int64_t{1} << 40) / count)) wrong("has an impossible tensor");
        made.shape.push_back(count);
      }
      const int64_t begin = offsets.items[0].whole(), end = offsets.items[1].whole();
      if (begin < 0 || end < begin || end > room || end - begin != made.count() * width)
        wrong("is damaged: " + field.first.text + " is not inside the file");
      made.data = start + begin, made.bytes = end - begin;
      tensors_[field.first.text] = made;
    }
    const Json& metadata = header.at("__metadata__", Json::kObject);
    const Json description = Json::read(metadata.at("selfish_rnn", Json::kString).text);
    metadata_ = description.at("metadata", Json::kObject);
    for (const auto& field : metadata_.fields)
      if (field.second.kind != Json::kString) wrong("is damaged: its metadata is not text");
    check_content(description.at("sha256", Json::kString).text);
  }

  int64_t size() const { return size_; }
  const Json& metadata() const { return metadata_; }
  const SavedTensor* find(const std::string& name) const {
    const auto found = tensors_.find(name);
    return found == tensors_.end() ? nullptr : &found->second;
  }
  const SavedTensor& tensor(const std::string& name, const char* type) const {
    const SavedTensor* found = find(name);
    if (found == nullptr || found->type != type) wrong("has no tensor " + name + " of type " + type);
    return *found;
  }

  [[noreturn]] static void wrong(const std::string& what) { throw std::runtime_error(what); }

 private:
  int64_t size_;
  std::map<std::string, SavedTensor> tensors_;
  Json metadata_;

  static int64_t bytes_of(const std::string& type) {
    return type == "I8" || type == "U8" ? 1 : type == "F32" || type == "I32" ? 4 : type == "I64" ? 8 : 0;
  }
  static const char* torch_name(const std::string& type) {
    return type == "F32"   ? "float32"
           : type == "I8"  ? "int8"
           : type == "U8"  ? "uint8"
           : type == "I32" ? "int32"
                           : "int64";
  }

  // Over the metadata and every tensor's name, type, shape and bytes, as selfish_rnn.files has it.
  void check_content(const std::string& expected) const {
    Sha256 sum;
    std::string text = "[";
    for (const auto& field : metadata_.fields)
      text += (text.size() > 1 ? ", [" : "[") + field.first.raw + ", " + field.second.raw + "]";
    sum.add(text + "]");
    for (const auto& named : tensors_) {
      text = "[\"" + named.first + "\", \"torch." + torch_name(named.second.type) + "\", [";
      for (size_t at = 0; at < named.second.shape.size(); ++at)
        text += (at ? ", " : "") + std::to_string(named.second.shape[at]);
      sum.add(text + "]]");
      sum.add(named.second.data, static_cast<size_t>(named.second.bytes));
    }
#ifndef SRNN_ANY_CHECKSUM  // which tests define, to get past it
    if (sum.hex() != expected) wrong("is damaged: its checksum does not match");
#endif
  }
};

}  // namespace selfish
