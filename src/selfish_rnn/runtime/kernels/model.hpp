// A model that `selfish-rnn export RUN --precision int8` wrote, read from its file and run word by word, without
// Python.
//
//   selfish::Model model("model.safetensors");
//   const float* scores = model.step(model.word("the"));   // of every word
//   int64_t next = model.choose(0.8, 0, number);           // number: uniform in [0, 1)
//
// Everything in the file is checked before it is followed; what is wrong is a std::runtime_error.
#pragma once

#include <fstream>
#include <iterator>
#include <map>
#include <memory>

#include "int8_layers.hpp"
#include "json.hpp"
#include "sampling.hpp"
#include "sha256.hpp"
#include "windows_packing.hpp"

namespace selfish {
namespace SELFISH_TARGET {

class Model {
 public:
  explicit Model(const std::string& path) : path_(path) {
    read();
    for (auto& named : tensors_) named.second.data = file_.data() + named.second.begin;
    const Json metadata = description_.at("metadata", Json::kObject);
    if (metadata.at("format", Json::kString).text != "int8 2" || metadata.at("layout", Json::kString).text != "1")
      wrong("is no int8 model of this version");
    const Json vocabulary = Json::read(metadata.at("vocabulary", Json::kString).text);
    for (const Json& word : vocabulary.at("tokens", Json::kArray).items) {
      numbers_.emplace(word.text, static_cast<int64_t>(words_.size()));
      words_.push_back(word.text);
    }
    plan(Json::read(metadata.at("step", Json::kString).text));
    tensors_.clear();
    file_ = std::string();
  }
  Model(const Model&) = delete;
  Model& operator=(const Model&) = delete;

  const std::vector<std::string>& words() const { return words_; }
  // The number of a word, that of <unk> for one that is not known, or -1.
  int64_t word(const std::string& text) const {
    auto found = numbers_.find(text);
    if (found == numbers_.end()) found = numbers_.find("<unk>");
    return found == numbers_.end() ? -1 : found->second;
  }

  // Reads a word; the scores of the next, which stay until another is read.
  const float* step(int64_t word) {
    if (word < 0 || word >= static_cast<int64_t>(words_.size())) throw std::out_of_range("there is no such word");
    run_program<Int8Matrices>({static_cast<int64_t>(operations_.size()), operations_.data(), memory_.data(), word});
    return scores();
  }
  const float* scores() const { return memory_.data() + scores_; }
  // A word drawn from the scores; never <unk>.
  int64_t choose(double temperature, int64_t top, double number) const {
    const auto unknown = numbers_.find("<unk>");
    const int64_t forbidden = unknown == numbers_.end() ? -1 : unknown->second;
    return SELFISH_TARGET::choose(scores(), words_.size(), temperature, top, forbidden, number);
  }
  void reset() {
    for (const auto& state : states_) std::fill_n(memory_.begin() + state.first, state.second, 0.f);
  }
  // Which kernels were compiled in.
  static const char* kernels() { return kName; }

 private:
  struct Tensor {
    std::string type;
    std::vector<int64_t> shape;
    size_t begin = 0, end = 0;
    const char* data = nullptr;
    int64_t count() const {
      int64_t product = 1;
      for (int64_t size : shape) product *= size;
      return product;
    }
  };
  struct Matrix {
    int64_t rows, columns;
    FreshMemory windows;  // or dense:
    std::vector<float> values;
  };

  std::string path_, file_;
  Json description_;
  std::map<std::string, Tensor> tensors_;
  std::vector<std::string> words_;
  std::map<std::string, int64_t> numbers_;
  std::map<std::string, Matrix> matrices_;
  std::vector<std::unique_ptr<std::vector<float>>> biases_;
  std::vector<Operation> operations_;
  std::vector<std::pair<int64_t, int64_t>> states_;
  std::vector<float> memory_;
  int64_t scores_ = 0;

  [[noreturn]] void wrong(const std::string& what) const { throw std::runtime_error(path_ + " " + what); }

  // Bytes of one number, or 0 for a type that no exported file has.
  static int64_t width_of(const std::string& type) {
    return type == "I8" || type == "U8" ? 1 : type == "F32" || type == "I32" ? 4 : type == "I64" ? 8 : 0;
  }
  static const char* torch_name(const std::string& type) {
    return type == "F32"   ? "float32"
           : type == "I8"  ? "int8"
           : type == "U8"  ? "uint8"
           : type == "I32" ? "int32"
                           : "int64";
  }

  void read() {
    std::ifstream stream(path_, std::ios::binary);
    if (!stream) wrong("cannot be read");
    file_.assign(std::istreambuf_iterator<char>(stream), std::istreambuf_iterator<char>());
    uint64_t length = 0;
    for (int at = 0; at < 8 && file_.size() >= 8; ++at)
      length |= static_cast<uint64_t>(static_cast<uint8_t>(file_[at])) << 8 * at;
    if (length == 0 || length > file_.size() - 8) wrong("is no safetensors file");
    const Json header = Json::read(file_.substr(8, length));
    const size_t start = 8 + static_cast<size_t>(length), room = file_.size() - start;
    for (const auto& field : header.fields) {
      if (field.first.text == "__metadata__") continue;
      Tensor made;
      made.type = field.second.at("dtype", Json::kString).text;
      const Json& offsets = field.second.at("data_offsets", Json::kArray);
      const int64_t width = width_of(made.type);
      if (width == 0 || offsets.items.size() != 2) wrong("has a tensor " + field.first.text + " of another type");
      for (const Json& size : field.second.at("shape", Json::kArray).items) {
        made.shape.push_back(size.whole());
        if (made.shape.back() < 0 || made.count() > (int64_t{1} << 40)) wrong("has a tensor that is too large");
      }
      const int64_t begin = offsets.items[0].whole(), end = offsets.items[1].whole();
      if (begin < 0 || end < begin || static_cast<uint64_t>(end) > room || end - begin != made.count() * width)
        wrong("is damaged: " + field.first.text + " is not where it should be");
      made.begin = start + begin, made.end = start + end;
      tensors_[field.first.text] = made;
    }
    description_ = Json::read(header.at("__metadata__", Json::kObject).at("selfish_rnn", Json::kString).text);
    check_content();
  }

  // The checksum that selfish_rnn.files wrote: of the metadata and of every tensor's name, type, shape and bytes.
  void check_content() {
    Sha256 sum;
    std::string text = "[";
    for (const auto& field : description_.at("metadata", Json::kObject).fields)
      text += (text.size() > 1 ? ", [" : "[") + field.first.raw + ", " + field.second.raw + "]";
    sum.add(text + "]");
    for (const auto& named : tensors_) {
      const std::string& type = named.second.type;
      text = "[\"" + named.first + "\", \"torch." + torch_name(type) + "\", [";
      for (size_t at = 0; at < named.second.shape.size(); ++at)
        text += (at ? ", " : "") + std::to_string(named.second.shape[at]);
      sum.add(text + "]]");
      sum.add(file_.data() + named.second.begin, named.second.end - named.second.begin);
    }
#ifndef SELFISH_ANY_CHECKSUM  // which tests define, to get past it
    if (sum.hex() != description_.at("sha256", Json::kString).text) wrong("is damaged: its checksum does not match");
#endif
  }

  const Tensor& tensor(const std::string& name, const char* type) const {
    const auto found = tensors_.find(name);
    if (found == tensors_.end() || found->second.type != type) wrong("has no tensor " + name + " of type " + type);
    return found->second;
  }

  std::vector<float> floats(const Tensor& from) const {
    std::vector<float> made(from.count());
    if (!made.empty()) std::memcpy(made.data(), from.data, 4 * made.size());
    return made;
  }

  // The sorted positions of the weights of a matrix, which the file has as positions or as bits.
  std::vector<int64_t> existing(const std::string& name, int64_t size) const {
    std::vector<int64_t> made;
    const auto listed = tensors_.find(name + ".positions");
    if (listed == tensors_.end()) {
      const Tensor& bits = tensor(name + ".bits", "U8");
      if (bits.count() != (size + 7) / 8) wrong("has bits of " + name + " that do not fit its shape");
      for (int64_t at = 0; at < size; ++at)
        if (static_cast<uint8_t>(bits.data[at / 8]) >> (7 - at % 8) & 1) made.push_back(at);
      return made;
    }
    const Tensor& positions = listed->second;
    if (positions.type != "I32" && positions.type != "I64") wrong("has positions of " + name + " of another type");
    for (int64_t at = 0; at < positions.count(); ++at) {
      int32_t small = 0;
      int64_t position = 0;
      if (positions.type == "I32") {
        std::memcpy(&small, positions.data + 4 * at, 4);
        position = small;
      } else {
        std::memcpy(&position, positions.data + 8 * at, 8);
      }
      if (position < (made.empty() ? 0 : made.back() + 1) || position >= size)
        wrong("has positions of " + name + " that are not sorted or outside the matrix");
      made.push_back(position);
    }
    return made;
  }

  const Matrix& matrix(const std::string& name, int64_t columns) {
    auto found = matrices_.find(name);
    if (found == matrices_.end()) found = matrices_.emplace(name, packed(name, columns)).first;
    if (found->second.columns != columns) wrong("uses " + name + " with vectors of another size");
    return found->second;
  }

  Matrix packed(const std::string& name, int64_t columns) {
    Matrix made{};
    made.columns = columns;
    if (tensors_.count(name + ".values") == 0) {
      const Tensor& dense = tensor(name, "F32");
      if (dense.shape.size() != 2 || dense.shape[1] != columns) wrong("has " + name + " of another shape");
      made.rows = dense.shape[0], made.values = floats(dense);
      return made;
    }
    const Tensor& values = tensor(name + ".values", "I8");
    std::vector<float> scale = floats(tensor(name + ".scales", "F32"));
    made.rows = static_cast<int64_t>(scale.size());
    if (made.rows < 1 || columns < 1 || columns > kMostColumns) wrong("has " + name + " of a shape that does not fit");
    for (float number : scale)
      if (!(number >= 0 && number < 3e38f)) wrong("has a scale of " + name + " that is not finite or negative");
    const std::vector<int64_t> positions = existing(name, made.rows * columns);
    if (static_cast<int64_t>(positions.size()) != values.count())
      wrong("has positions of " + name + " that do not fit its values");
    std::vector<int64_t> first(made.rows + 1, 0);
    std::vector<uint16_t> column;
    for (int64_t position : positions) {
      ++first[position / columns + 1];
      column.push_back(static_cast<uint16_t>(position % columns));
    }
    for (int64_t row = 0; row < made.rows; ++row) first[row + 1] += first[row];
    const auto* numbers = reinterpret_cast<const int8_t*>(values.data);
    for (int64_t at = 0; at < values.count(); ++at)
      if (numbers[at] == 0 || numbers[at] == -128) wrong("has weights of " + name + " that are not from -127 to 127");
    int64_t together = 0;
    for (const auto& named : tensors_) together += named.second.type == "I8" ? named.second.count() : 0;
    const Int8Weights weights{made.rows,    columns,       values.count(), together,
                              first.data(), column.data(), numbers,        scale.data()};
    const WindowsPacking packing(weights, kHeight, planes_for(weights));
    made.windows = FreshMemory(packing.header().bytes);
    packing.build(made.windows.begin());
    return made;
  }

  // The place of so many numbers, or -1 where it may be nowhere.
  int64_t place(const Json& from, int64_t size, bool needed = true) const {
    const int64_t at = from.whole(), memory = static_cast<int64_t>(memory_.size());
    if (at == -1 && !needed) return at;
    if (at < 0 || size < 1 || size > memory || at > memory - size) wrong("is damaged: an operation leaves the memory");
    return at;
  }

  void plan(const Json& step) {
    const int64_t memory = step.at("memory", Json::kNumber).whole();
    if (memory < 1 || memory > (int64_t{1} << 31)) wrong("wants an impossible amount of memory");
    memory_.assign(memory, 0.f);
    for (const Json& state : step.at("states", Json::kArray).items) {
      if (state.items.size() != 2) wrong("is damaged: a state is none");
      const int64_t size = state.items[1].whole();
      states_.emplace_back(place(state.items[0], size), size);
    }
    const Json& scores = step.at("scores", Json::kArray);
    if (scores.items.size() != 2 || scores.items[1].whole() != static_cast<int64_t>(words_.size()))
      wrong("has other scores than words");
    scores_ = place(scores.items[0], scores.items[1].whole());
    int64_t phase = 0;
    for (const Json& operation : step.at("operations", Json::kArray).items) {
      if (operation.items.size() != 13) wrong("is damaged: an operation is none");
      operations_.push_back(checked(operation.items));
      if (operations_.back().phase < phase) wrong("is damaged: its phases are out of order");
      phase = operations_.back().phase;
    }
  }

  Operation checked(const std::vector<Json>& items) {
    constexpr int64_t kMost = int64_t{1} << 31;
    Operation made{};
    made.kind = items[0].whole(), made.phase = items[1].whole(), made.count = items[2].whole();
    made.size = items[3].whole(), made.columns = items[4].whole(), made.extra = items[5].whole();
    made.factor = items[6].number;
    const bool product = made.kind == kProduct, ordered = made.kind == kOrderedCell;
    if (made.kind < 0 || made.kind > kMixtureOf || made.phase < 0 || made.count < 1 || made.size < 1 ||
        made.count > kMost || made.size > kMost || made.columns < (product ? 1 : 0) || made.columns > kMost)
      wrong("is damaged: an operation is none");
    if (ordered && (made.extra < 1 || made.extra > made.size || made.size % made.extra != 0))
      wrong("has chunks that do not fit");
    const int64_t all = made.count * made.size;
    int64_t gates = 0;  // numbers of the sums that a cell takes
    switch (made.kind) {
      case kLstmCell: gates = 4 * made.size; break;
      case kGruCell: gates = 3 * made.size; break;
      case kRnnTanhCell:
      case kRnnReluCell: gates = made.size; break;
      case kHighwayCell: gates = 2 * made.size; break;
      case kOrderedCell: gates = 4 * made.size + 2 * made.size / made.extra; break;
      default: break;
    }
    const bool cell = gates > 0, mixture = made.kind == kMixtureOf;
    const int64_t input = cell ? gates : product ? made.count * made.columns : mixture ? made.count : all;
    made.input = place(items[7], input, made.kind != kMatrixRow);
    made.second = place(items[8], cell ? gates : all, (cell && made.kind != kHighwayCell) || mixture);
    made.state = place(items[9], made.size, made.kind == kLstmCell || ordered);
    made.output =
        place(items[10], cell || mixture || made.kind == kMatrixRow || made.kind == kTanhOf ? made.size : all);
    if (product || made.kind == kMatrixRow) {
      const Matrix& weights = matrix(items[11].text, product ? made.columns : made.size);
      const int64_t rows = product ? made.size : static_cast<int64_t>(words_.size());
      if (weights.rows != rows) wrong("has " + items[11].text + " of another number of rows");
      made.matrix = weights.values.empty() ? weights.windows.begin() : nullptr;
      made.values = weights.values.empty() ? nullptr : weights.values.data();
    }
    if (product && items[12].kind == Json::kString) {
      const Tensor& bias = tensor(items[12].text, "F32");
      if (bias.count() != made.size) wrong("has a bias " + items[12].text + " of another size");
      biases_.emplace_back(new std::vector<float>(floats(bias)));
      made.bias = biases_.back()->data();
    }
    return made;
  }
};

}  // namespace SELFISH_TARGET

using SELFISH_TARGET::Model;

}  // namespace selfish
