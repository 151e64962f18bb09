// A program read from its file, checked whole, and laid out for the kernels of a processor. See docs/format.md.
//
// Every value is defined once, before an operation reads it, so that a program cannot have cycles; every operation's
// sizes are checked here, so that a step need not.
#pragma once

#include <cmath>
#include <memory>
#include <set>

#include "matrices_packing.hpp"
#include "operations.hpp"
#include "safetensors.hpp"

namespace selfish {

constexpr int64_t kMostNumbers = int64_t{1} << 24;  // of all vectors of a program, besides four times the file's bytes
constexpr int64_t kLargestVector = int64_t{1} << 28;
constexpr int64_t kLine = 16;  // floats of a cache line

// What an operation of the file needs: operands, results, numbers, tensors.
struct OperationRule {
  const char* name;
  OperationKind kind;
  int inputs, outputs, numbers, tensors;
  int64_t gates;  // of a cell
};

inline const OperationRule* find_rule(const std::string& name) {
  static const OperationRule kRules[] = {
      {"embedding", kEmbedding, 0, 1, 1, 1, 0},
      {"linear", kLinear, 1, 1, 3, 2, 0},
      {"frames", kFrames, 2, 2, 2, 0, 0},
      {"lstm_cell", kLstmCell, 3, 2, 0, 0, 4},
      {"gru_cell", kGruCell, 3, 1, 0, 0, 3},
      {"rnn_tanh_cell", kRnnTanhCell, 2, 1, 0, 0, 1},
      {"rnn_relu_cell", kRnnReluCell, 2, 1, 0, 0, 1},
      {"highway_cell", kHighwayCell, -1, 1, 0, 0, 2},  // two or three operands
      {"ordered_cell", kOrderedCell, 3, 2, 1, 0, 4},
      {"add", kAdd, 2, 1, 0, 0, 0},
      {"subtract", kSubtract, 2, 1, 0, 0, 0},
      {"multiply", kMultiply, 2, 1, 0, 0, 0},
      {"divide", kDivide, 2, 1, 0, 0, 0},
      {"maximum", kMaximum, 2, 1, 0, 0, 0},
      {"minimum", kMinimum, 2, 1, 0, 0, 0},
      {"abs", kAbs, 1, 1, 0, 0, 0},
      {"sqrt", kSqrt, 1, 1, 0, 0, 0},
      {"exp", kExp, 1, 1, 0, 0, 0},
      {"log", kLog, 1, 1, 0, 0, 0},
      {"square", kSquare, 1, 1, 0, 0, 0},
      {"tanh", kTanh, 1, 1, 0, 0, 0},
      {"sigmoid", kSigmoid, 1, 1, 0, 0, 0},
      {"relu", kRelu, 1, 1, 0, 0, 0},
      {"gelu", kGelu, 1, 1, 0, 0, 0},
      {"gelu_tanh", kGeluTanh, 1, 1, 0, 0, 0},
      {"silu", kSilu, 1, 1, 0, 0, 0},
      {"softsign", kSoftsign, 1, 1, 0, 0, 0},
      {"hardsigmoid", kHardsigmoid, 1, 1, 0, 0, 0},
      {"hardswish", kHardswish, 1, 1, 0, 0, 0},
      {"log_sigmoid", kLogSigmoid, 1, 1, 0, 0, 0},
      {"affine", kAffine, 1, 1, 2, 0, 0},
      {"clamp", kClamp, 1, 1, 2, 0, 0},
      {"leaky_relu", kLeakyRelu, 1, 1, 1, 0, 0},
      {"elu", kElu, 1, 1, 1, 0, 0},
      {"softplus", kSoftplus, 1, 1, 2, 0, 0},
      {"softmax", kSoftmax, 1, 1, 1, 0, 0},
      {"log_softmax", kLogSoftmax, 1, 1, 1, 0, 0},
      {"sum", kSum, 1, 1, 1, 0, 0},
      {"mean", kMean, 1, 1, 1, 0, 0},
      {"mixture", kMixture, 2, 1, 0, 0, 0},
      {"layer_norm", kLayerNorm, 1, 1, 2, 0, 0},
      {"rms_norm", kRmsNorm, 1, 1, 2, 0, 0},
  };
  for (const OperationRule& rule : kRules)
    if (name == rule.name) return &rule;
  return nullptr;
}

// Numbers in the memory of a stream, from place on.
struct Piece {
  int64_t place, size;
};
struct StatePiece {
  int64_t place, size, next;
  std::vector<float> initial;  // empty for zeros
};
struct ConstantPiece {
  int64_t place;
  std::vector<float> values;
};

// A program that is checked and laid out; read-only from then on.
struct LoadedProgram {
  std::vector<Operation> operations;
  std::vector<Piece> inputs, outputs;
  std::vector<int64_t> token_counts;
  std::vector<StatePiece> states;
  std::vector<ConstantPiece> constants;
  std::map<std::string, LaidOutMatrix> matrices;
  std::vector<std::unique_ptr<std::vector<float>>> biases;
  std::vector<std::pair<std::string, std::string>> texts;
  std::vector<std::string> words;
  std::map<std::string, int64_t> word_indexes;
  int64_t floats = 0;            // of a stream's vectors
  int64_t activation_bytes = 0;  // of each thread
  int64_t master_floats = 0;
  int64_t matrix_bytes = 0;
};

class ProgramReader {
 public:
  ProgramReader(const SavedFile& file, const MatrixRules& rules) : file_(file), rules_(rules) {}

  LoadedProgram read() {
    for (const auto& field : file_.metadata().fields) to_.texts.emplace_back(field.first.text, field.second.text);
    const std::string format = text("format");
    if (format != "stream 1") wrong("is of format \"" + format.substr(0, 40) + "\", this version reads \"stream 1\"");
    const Json program = Json::read(text("program"));
    read_words();
    for (const Json& size : program.at("sizes", Json::kArray).items) {
      sizes_.push_back(in_range(size.whole(), 1, kLargestVector));
      places_.push_back(-1), phases_.push_back(-1), uses_.push_back(0);
    }
    read_boundary(program);
    const auto& operations = program.at("operations", Json::kArray).items;
    if (text("layout") != "1") wrong("stores matrices in layout \"" + text("layout").substr(0, 40) + "\", not \"1\"");
    const Json shapes = Json::read(text("shapes"));
    for (const auto& shape : shapes.fields) {
      if (shape.second.items.size() != 2) wrong("is damaged: a matrix has no shape");
      shapes_[shape.first.text] = {in_range(shape.second.items[0].whole(), 1, kLargestVector),
                                   in_range(shape.second.items[1].whole(), 1, kLargestVector)};
    }
    find_forms(operations);
    for (const Json& operation : operations) read_operation(operation);
    read_ends(program);
    to_.floats += 4 * kLine;  // kernels may read a little behind a vector
    return std::move(to_);
  }

 private:
  struct Shape {
    int64_t rows, columns;
  };
  struct Forms {
    bool as_int8 = false, as_float = false;
  };

  const SavedFile& file_;
  const MatrixRules& rules_;
  LoadedProgram to_;
  std::vector<int64_t> sizes_, places_, phases_, uses_;
  std::map<std::string, Shape> shapes_;
  std::map<std::string, Forms> forms_;
  double dense_bytes_ = 0;            // of all matrices that are multiplied, if they were dense
  std::map<int64_t, int64_t> rings_;  // the state of frames, and what it is to be set to

  [[noreturn]] static void wrong(const std::string& what) { throw std::runtime_error(what); }
  static int64_t in_range(int64_t number, int64_t low, int64_t high) {
    if (number < low || number > high) wrong("is damaged: a number is out of range");
    return number;
  }
  static const std::vector<Json>& list(const Json& from, size_t size) {
    if (from.kind != Json::kArray || from.items.size() != size) wrong("is damaged: its program has a wrong entry");
    return from.items;
  }
  static const std::string& name(const Json& from) {
    if (from.kind != Json::kString) wrong("is damaged: its program has a wrong name");
    return from.text;
  }
  const std::string& text(const std::string& name) const { return file_.metadata().at(name, Json::kString).text; }

  void read_words() {
    const Json* words = file_.metadata().find("words");
    if (words == nullptr) return;
    const Json list = Json::read(words->text);
    for (const Json& word : list.items) {
      to_.word_indexes.emplace(name(word), static_cast<int64_t>(to_.words.size()));
      to_.words.push_back(word.text);
    }
  }

  // Values

  int64_t index(const Json& from) const { return in_range(from.whole(), 0, static_cast<int64_t>(sizes_.size()) - 1); }
  int64_t read_value(const Json& from) {
    const int64_t value = index(from);
    if (places_[value] < 0) wrong("is damaged: an operation reads what is not computed yet");
    ++uses_[value];
    return value;
  }
  int64_t new_place(int64_t size) {
    const int64_t place = to_.floats;
    to_.floats += (size + kLine - 1) / kLine * kLine;
    if (to_.floats > kMostNumbers + 4 * file_.size()) wrong("needs an impossible amount of memory");
    return place;
  }
  int64_t define(const Json& from, int64_t place = -1) {
    const int64_t value = index(from);
    if (places_[value] >= 0) wrong("is damaged: a value is computed twice");
    return places_[value] = place < 0 ? new_place(sizes_[value]) : place, value;
  }

  // Tensors

  std::vector<float> vector(const std::string& name, int64_t size) const {
    const SavedTensor& tensor = file_.tensor(name, "F32");
    if (tensor.count() != size) wrong("has " + name + " of another size");
    return tensor.numbers<float>();
  }

  void read_boundary(const Json& program) {
    for (const Json& input : program.at("inputs", Json::kArray).items) {
      const int64_t value = define(list(input, 2)[1]);
      to_.inputs.push_back({places_[value], sizes_[value]});
    }
    for (const Json& token : program.at("tokens", Json::kArray).items)
      to_.token_counts.push_back(in_range(list(token, 2)[1].whole(), 1, (int64_t{1} << 31) - 1));
    for (const Json& state : program.at("states", Json::kArray).items) {
      const auto& items = list(state, 4);
      const int64_t value = define(items[1]);
      StatePiece made{places_[value], sizes_[value], -1, {}};
      if (items[3].kind != Json::kNull) made.initial = vector(name(items[3]), made.size);
      to_.states.push_back(made);
    }
  }

  // Outputs and the next states. A state that becomes what another one was is copied before anything is written.
  void read_ends(const Json& program) {
    for (const Json& output : program.at("outputs", Json::kArray).items) {
      const int64_t value = read_value(list(output, 2)[1]);
      to_.outputs.push_back({places_[value], sizes_[value]});
    }
    if (to_.outputs.empty()) wrong("has a program without outputs");
    const auto& states = program.at("states", Json::kArray).items;
    std::vector<int64_t> next;
    for (const Json& state : states) next.push_back(read_value(state.items[2]));
    for (size_t at = 0; at < states.size(); ++at) {
      StatePiece& state = to_.states[at];
      const int64_t before = index(states[at].items[1]), after = next[at];
      if (sizes_[after] != state.size) wrong("is damaged: a state is set to a vector of another size");
      const auto ring = rings_.find(before);
      if (ring != rings_.end()) {  // frames() changes it in place, so nothing else may read it
        if (ring->second != after || uses_[before] != 1 || uses_[after] != 1) wrong("is damaged: a past is read twice");
        state.next = state.place;
        continue;
      }
      state.next = places_[after];
      for (const StatePiece& any : to_.states) {
        if (state.next < any.place || state.next >= any.place + any.size) continue;
        Operation copy{};
        copy.kind = kCopy, copy.size = state.size, copy.input[0] = state.next, copy.output[0] = new_place(state.size);
        copy.input[1] = copy.input[2] = copy.output[1] = -1, copy.count = 1;
        state.next = copy.output[0];
        to_.operations.push_back(copy);
        break;
      }
    }
    for (const auto& ring : rings_) {
      bool is_state = false;
      for (const Json& state : states) is_state |= index(state.items[1]) == ring.first;
      if (!is_state) wrong("is damaged: a past that is not a state");
    }
    std::stable_sort(to_.operations.begin(), to_.operations.end(),
                     [](const Operation& a, const Operation& b) { return a.phase < b.phase; });
  }

  // Matrices

  // Which layouts of a matrix its users need.
  void find_forms(const std::vector<Json>& operations) {
    for (const Json& operation : operations) {
      const auto& items = list(operation, 5);
      if (name(items[0]) != "linear") continue;
      const auto &numbers = list(items[3], 3), &tensors = list(items[4], 2);
      Forms& forms = forms_[name(tensors[0])];
      const bool is_int8 = numbers[1].whole() == 1;
      bool& known = is_int8 ? forms.as_int8 : forms.as_float;
      const Shape shape = shape_of(tensors[0].text);
      if (!known)
        dense_bytes_ += static_cast<double>(shape.rows) * static_cast<double>(shape.columns) * (is_int8 ? 1 : 4);
      known = true;
    }
  }

  // A dense matrix has its shape as a tensor, a sparse one in the metadata.
  Shape shape_of(const std::string& name) const {
    const auto found = shapes_.find(name);
    if (found != shapes_.end()) return found->second;
    const SavedTensor& dense = file_.tensor(name, "F32");
    if (dense.shape.size() != 2 || dense.count() < 1) wrong("has " + name + " of another shape");
    return {dense.shape[0], dense.shape[1]};
  }

  // The matrix in one layout, made when it is first needed.
  const Matrix* matrix(const std::string& name, bool as_int8, bool as_rows) {
    const std::string key = name + (as_rows ? " rows" : as_int8 ? " int8" : " float");
    auto found = to_.matrices.find(key);
    if (found == to_.matrices.end()) {
      const SavedMatrix saved = read_matrix(name);
      if (as_int8 && !saved.is_int8()) wrong("multiplies " + name + " in int8, which is float32");
      if (as_int8 && saved.columns > kMostColumns) wrong("has an int8 matrix " + name + " with too many columns");
      LaidOutMatrix made = as_rows   ? LaidOutMatrix::as_rows(saved)
                           : as_int8 ? LaidOutMatrix::as_int8(saved, rules_, dense_bytes_, file_.size())
                                     : LaidOutMatrix::as_float(saved, rules_, dense_bytes_);
      to_.matrix_bytes += made.bytes();
      found = to_.matrices.emplace(key, std::move(made)).first;
    }
    return &found->second.matrix;
  }

  SavedMatrix read_matrix(const std::string& name) const {
    const Shape shape = shape_of(name);
    SavedMatrix made;
    made.rows = shape.rows, made.columns = shape.columns;
    if (shapes_.count(name) == 0) {
      const SavedTensor* dense = file_.find(name);
      made.values = dense->numbers<float>();
      made.first.resize(shape.rows + 1);
      for (int64_t row = 0; row <= shape.rows; ++row) made.first[row] = row * shape.columns;
      made.column.resize(made.values.size());
      for (size_t at = 0; at < made.column.size(); ++at) made.column[at] = static_cast<uint32_t>(at % shape.columns);
      return made;
    }
    const bool is_int8 = file_.find(name + ".scales") != nullptr;
    const SavedTensor& values = file_.tensor(name + ".values", is_int8 ? "I8" : "F32");
    if (shape.rows > kMostNumbers + values.count()) wrong("has " + name + " with an impossible number of rows");
    read_positions(name, made);
    if (made.count() != values.count()) wrong("has as many positions of " + name + " as it has not values");
    if (!is_int8) return made.values = values.numbers<float>(), made;
    made.bytes = values.numbers<int8_t>();
    made.scale = vector(name + ".scales", shape.rows);
    for (int8_t value : made.bytes)
      if (value == 0 || value == -128) wrong("has weights of " + name + " that are not from -127 to 127 or zero");
    for (float scale : made.scale)
      if (!(scale >= 0 && scale < 3e38f)) wrong("has a scale of " + name + " that is negative or not finite");
    return made;
  }

  void read_positions(const std::string& name, SavedMatrix& to) const {
    const int64_t rows = to.rows, columns = to.columns;
    to.first.assign(rows + 1, 0);
    if (const SavedTensor* bits = file_.find(name + ".bits")) {
      if (bits->type != "U8" || bits->count() != (rows * columns + 7) / 8)
        wrong("has " + name + ".bits of another size");
      const auto* from = reinterpret_cast<const uint8_t*>(bits->data);
      for (int64_t row = 0; row < rows; ++row) {
        for (int64_t at = row * columns; at < (row + 1) * columns; ++at)
          if (from[at / 8] >> (7 - at % 8) & 1) to.column.push_back(static_cast<uint32_t>(at - row * columns));
        to.first[row + 1] = static_cast<int64_t>(to.column.size());
      }
      return;
    }
    const SavedTensor* positions = file_.find(name + ".positions");
    if (positions == nullptr) wrong("has no positions of " + name);
    if (positions->type == "I32")
      take_positions(name, positions->numbers<int32_t>(), to);
    else if (positions->type == "I64")
      take_positions(name, positions->numbers<int64_t>(), to);
    else
      wrong("has positions of " + name + " of another type");
  }

  template <class Number>
  void take_positions(const std::string& name, const std::vector<Number>& positions, SavedMatrix& to) const {
    int64_t last = -1;
    for (const int64_t position : positions) {
      if (position <= last || position >= to.rows * to.columns)
        wrong("has positions of " + name + " that are not sorted or outside the matrix");
      last = position;
      to.column.push_back(static_cast<uint32_t>(position % to.columns));
      ++to.first[position / to.columns + 1];
    }
    for (int64_t row = 0; row < to.rows; ++row) to.first[row + 1] += to.first[row];
  }

  // Operations: [kind, operands, results, numbers, tensors]

  void read_operation(const Json& from) {
    const auto& items = list(from, 5);
    const std::string& kind = name(items[0]);
    for (int at = 1; at < 5; ++at)
      if (items[at].kind != Json::kArray) wrong("is damaged: its program has a wrong entry");
    const auto &operands = items[1].items, &results = items[2].items, &numbers = items[3].items;
    const auto& tensors = items[4].items;
    if (kind == "constant") {
      list(items[1], 0), list(items[2], 1), list(items[3], 0);
      const int64_t value = define(results[0]);
      to_.constants.push_back({places_[value], vector(name(list(items[4], 1)[0]), sizes_[value])});
      return;
    }
    std::vector<int64_t> in;
    int64_t phase = 0;
    for (const Json& operand : operands) {
      in.push_back(read_value(operand));
      phase = std::max(phase, phases_[in.back()] + 1);
    }
    if (kind == "slice") return read_slice(in, results, numbers);
    if (kind == "concat") return read_concat(in, results, phase);
    const OperationRule* rule = find_rule(kind);
    if (rule == nullptr) wrong("needs an operation " + kind.substr(0, 40) + " that this version does not have");
    const auto counts = [&](int64_t wanted, size_t count) { return static_cast<size_t>(wanted) == count; };
    const bool operands_fit = rule->inputs < 0 ? in.size() == 2 || in.size() == 3 : counts(rule->inputs, in.size());
    if (!operands_fit || !counts(rule->outputs, results.size()) || !counts(rule->numbers, numbers.size()) ||
        !counts(rule->tensors, tensors.size()))
      wrong("is damaged: an operation " + kind + " has a wrong number of operands");
    Operation made{};
    made.kind = rule->kind, made.phase = phase, made.count = 1;
    made.input[0] = made.input[1] = made.input[2] = made.output[0] = made.output[1] = -1;
    for (size_t at = 0; at < in.size(); ++at) made.input[at] = places_[in[at]];
    std::vector<int64_t> in_size, out_size;
    for (int64_t value : in) in_size.push_back(sizes_[value]);
    for (const Json& result : results) out_size.push_back(sizes_[index(result)]);
    for (size_t at = 0; at < in_size.size() && at < 2; ++at) made.input_size[at] = in_size[at];
    made.size = out_size[0];
    check(*rule, made, in_size, out_size, numbers, tensors);
    for (size_t at = 0; at < results.size(); ++at) {
      // Frames change their past in place.
      const bool ring = rule->kind == kFrames && at == 1;
      const int64_t value = define(results[at], ring ? places_[in[1]] : -1);
      phases_[value] = phase, made.output[at] = places_[value];
      if (ring && !rings_.emplace(in[1], value).second) wrong("is damaged: a past is read twice");
    }
    to_.operations.push_back(made);
  }

  void read_slice(const std::vector<int64_t>& in, const std::vector<Json>& results, const std::vector<Json>& numbers) {
    if (in.size() != 1 || results.size() != 1 || numbers.size() != 1) wrong("is damaged: a slice is wrong");
    const int64_t size = sizes_[index(results[0])], start = in_range(numbers[0].whole(), 0, kLargestVector);
    if (start > sizes_[in[0]] - size) wrong("is damaged: a slice is outside its vector");
    const int64_t value = define(results[0], places_[in[0]] + start);
    phases_[value] = phases_[in[0]];
  }

  void read_concat(const std::vector<int64_t>& in, const std::vector<Json>& results, int64_t phase) {
    if (in.empty() || results.size() != 1) wrong("is damaged: a concat is wrong");
    const int64_t value = define(results[0]);
    phases_[value] = phase;
    int64_t at = places_[value], left = sizes_[value];
    for (int64_t part : in) {
      Operation copy{};
      copy.kind = kCopy, copy.phase = phase, copy.size = sizes_[part], copy.count = 1;
      copy.input[0] = places_[part], copy.output[0] = at, copy.input[1] = copy.input[2] = copy.output[1] = -1;
      at += copy.size, left -= copy.size;
      if (left < 0) break;
      to_.operations.push_back(copy);
    }
    if (left != 0) wrong("is damaged: a concat has another size than its parts");
  }

  static float constant(const Json& from, float unbounded = 0.f) {
    if (from.kind == Json::kNull && unbounded != 0.f) return unbounded;
    if (from.kind != Json::kNumber || !(std::fabs(from.number) < 3.5e38)) wrong("is damaged: a constant is wrong");
    return static_cast<float>(from.number);
  }

  // Everything of one kind: sizes that fit, and what the kernel needs to know.
  void check(const OperationRule& rule, Operation& made, const std::vector<int64_t>& in,
             const std::vector<int64_t>& out, const std::vector<Json>& numbers, const std::vector<Json>& tensors) {
    const auto need = [&](bool fits) {
      if (!fits) wrong(std::string("is damaged: sizes of an operation ") + rule.name + " do not fit");
    };
    const auto parts = [&] {
      made.count = in_range(numbers[0].whole(), 1, in[0]);
      need(in[0] % made.count == 0);
    };
    switch (rule.kind) {
      case kLinear: return check_linear(made, in[0], out[0], numbers, tensors);
      case kEmbedding: {
        const std::string& weights = name(tensors[0]);
        const Shape shape = shape_of(weights);
        made.extra = in_range(numbers[0].whole(), 0, static_cast<int64_t>(to_.token_counts.size()) - 1);
        need(out[0] == shape.columns && to_.token_counts[made.extra] <= shape.rows);
        // In the layout that something multiplies, if anything does.
        const auto forms = forms_.find(weights);
        const bool is_int8 = file_.find(weights + ".scales") != nullptr;
        const bool as_float = forms != forms_.end() && forms->second.as_float;
        const bool as_int8 = forms != forms_.end() ? forms->second.as_int8 : is_int8;
        const bool as_rows = forms == forms_.end() && shapes_.count(weights) == 0;
        made.matrix = matrix(weights, as_int8 && !as_float, as_rows);
        return;
      }
      case kFrames: {
        made.count = in_range(numbers[0].whole(), 2, kLargestVector);
        made.extra = in_range(numbers[1].whole(), 1, kLargestVector);
        need(made.count <= kLargestVector / in[0] && (made.count - 1) <= kLargestVector / made.extra);
        const int64_t past = (made.count - 1) * made.extra;
        need(past <= kLargestVector / in[0] && past < (1 << 24) && in[1] == past * in[0] + 1 && out[1] == in[1] &&
             out[0] == made.count * in[0]);
        bool is_state = false;
        for (const StatePiece& state : to_.states) is_state |= state.place == made.input[1] && state.size == in[1];
        need(is_state);
        return;
      }
      case kLstmCell: return need(in[0] == 4 * out[0] && in[1] == in[0] && in[2] == out[0] && out[1] == out[0]);
      case kGruCell: return need(in[0] == 3 * out[0] && in[1] == in[0] && in[2] == out[0]);
      case kRnnTanhCell:
      case kRnnReluCell: return need(in[0] == out[0] && in[1] == out[0]);
      case kHighwayCell: return need(in[0] == out[0] && in[1] == 2 * out[0] && (in.size() < 3 || in[2] == in[1]));
      case kOrderedCell: {
        made.count = in_range(numbers[0].whole(), 1, out[0]);
        need(out[0] % made.count == 0 && out[1] == out[0] && in[2] == out[0] && in[1] == in[0] &&
             in[0] == 4 * out[0] + 2 * (out[0] / made.count));
        to_.master_floats = std::max(to_.master_floats, (2 * out[0] / made.count / kLine + 2) * kLine);
        return;
      }
      case kAdd:
      case kSubtract:
      case kMultiply:
      case kDivide:
      case kMaximum:
      case kMinimum: {
        need(out[0] == std::max(in[0], in[1]) && (in[0] == out[0] || in[0] == 1) && (in[1] == out[0] || in[1] == 1));
        if (out[0] == 1) made.input_size[0] = made.input_size[1] = 1;
        return;
      }
      case kSoftmax:
      case kLogSoftmax: return parts(), need(out[0] == in[0]);
      case kLayerNorm:
      case kRmsNorm: return parts(), need(out[0] == in[0]), void(made.a = constant(numbers[1]));
      case kSum:
      case kMean: return parts(), need(out[0] == made.count);
      case kMixture: return need(in[1] / out[0] == in[0] && in[1] % out[0] == 0);
      default: break;
    }
    need(in[0] == out[0]);
    const bool clamp = rule.kind == kClamp;
    if (!numbers.empty()) made.a = constant(numbers[0], clamp ? -INFINITY : 0.f);
    if (numbers.size() > 1) made.b = constant(numbers[1], clamp ? INFINITY : 0.f);
  }

  void check_linear(Operation& made, int64_t in, int64_t out, const std::vector<Json>& numbers,
                    const std::vector<Json>& tensors) {
    const std::string& weights = name(tensors[0]);
    const Shape shape = shape_of(weights);
    made.count = in_range(numbers[0].whole(), 1, in);
    made.extra = in_range(numbers[1].whole(), 0, 1);
    made.a = constant(numbers[2]);
    if (in % made.count || in / made.count != shape.columns || out % made.count || out / made.count != shape.rows)
      wrong("is damaged: " + weights + " multiplies a vector of another size");
    if (!(made.a >= 0.f)) wrong("is damaged: a scale of activations is negative");
    made.matrix = matrix(weights, made.extra == 1, false);
    if (tensors[1].kind == Json::kString) {
      to_.biases.emplace_back(new std::vector<float>(vector(tensors[1].text, shape.rows)));
      made.bias = to_.biases.back()->data();
    }
    if (made.extra == 1) {
      const int64_t bytes = ((shape.columns + 7) / 8 * 8 + kActivationSlack) * std::min<int64_t>(made.count, 8);
      to_.activation_bytes = std::max(to_.activation_bytes, (bytes + 63) / 64 * 64);
    }
  }
};

}  // namespace selfish
