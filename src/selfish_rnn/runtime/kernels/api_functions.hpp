// The C functions of api.h.
#pragma once

#include "model.hpp"

extern "C" {

const char* srnn_error(void) { return selfish::last_error; }
int srnn_error_code(void) { return selfish::last_code; }

srnn_model* srnn_load_memory(const void* data, size_t bytes) {
  if (data == nullptr) return selfish::fail(SRNN_BAD_ARGUMENT, "srnn_load_memory needs data"), nullptr;
  try {
    return new srnn_model(static_cast<const char*>(data), bytes);
  } catch (const std::bad_alloc&) {
    selfish::fail(SRNN_NO_MEMORY, "there is not enough memory for the model");
  } catch (const std::exception& error) {
    selfish::fail(SRNN_BAD_FILE, "the model ", error.what());
  }
  return nullptr;
}

srnn_model* srnn_load(const char* path) {
  if (path == nullptr) return selfish::fail(SRNN_BAD_ARGUMENT, "srnn_load needs a path"), nullptr;
  try {
    std::ifstream stream(path, std::ios::binary);
    const std::string content{std::istreambuf_iterator<char>(stream), std::istreambuf_iterator<char>()};
    if (!stream) return selfish::fail(SRNN_BAD_FILE, "cannot read ", path), nullptr;
    return srnn_load_memory(content.data(), content.size());
  } catch (const std::exception&) {
    return selfish::fail(SRNN_NO_MEMORY, "there is not enough memory for ", path), nullptr;
  }
}

void srnn_free(srnn_model* model) { delete model; }

size_t srnn_input_size(const srnn_model* model) { return model->input_size; }
size_t srnn_output_size(const srnn_model* model) { return model->output_size; }
size_t srnn_state_size(const srnn_model* model) { return model->state_size; }
size_t srnn_token_count(const srnn_model* model) { return model->program.token_counts.size(); }

const char* srnn_text(const srnn_model* model, const char* name) {
  for (const auto& text : model->program.texts)
    if (text.first == name) return text.second.c_str();
  return nullptr;
}

size_t srnn_word_count(const srnn_model* model) { return model->program.words.size(); }
const char* srnn_word(const srnn_model* model, size_t index) {
  return index < model->program.words.size() ? model->program.words[index].c_str() : nullptr;
}
int64_t srnn_word_index(const srnn_model* model, const char* word) {
  const auto& indexes = model->program.word_indexes;
  auto found = indexes.find(word);
  if (found == indexes.end()) found = indexes.find("<unk>");
  return found == indexes.end() ? -1 : found->second;
}

size_t srnn_stream_size(const srnn_model* model) { return srnn_stream::bytes(*model); }

srnn_stream* srnn_stream_new(const srnn_model* model) {
  void* memory = std::malloc(srnn_stream::bytes(*model));
  if (memory == nullptr) return selfish::fail(SRNN_NO_MEMORY, "there is not enough memory for a stream"), nullptr;
  srnn_stream* stream = srnn_stream::make(*model, memory);
  stream->memory = memory;
  return stream;
}

srnn_stream* srnn_stream_new_in(const srnn_model* model, void* memory, size_t bytes) {
  if (memory == nullptr || bytes < srnn_stream::bytes(*model))
    return selfish::fail(SRNN_BAD_ARGUMENT, "a stream needs srnn_stream_size bytes"), nullptr;
  return srnn_stream::make(*model, memory);
}

void srnn_stream_free(srnn_stream* stream) {
  if (stream != nullptr && stream->memory != nullptr) std::free(stream->memory);
}

int srnn_step_tokens(srnn_stream* stream, const int32_t* tokens, const float* in, float* out) {
  const srnn_model& model = *stream->model;
  if (out == nullptr || (in == nullptr && model.input_size > 0) ||
      (tokens == nullptr && !model.program.token_counts.empty()))
    return selfish::fail(SRNN_BAD_ARGUMENT, "a step needs its inputs, its tokens and memory for its outputs");
  return stream->run(tokens, in, out);
}

int srnn_step(srnn_stream* stream, const float* in, float* out) { return srnn_step_tokens(stream, nullptr, in, out); }

void srnn_reset(srnn_stream* stream) { stream->reset(); }

void srnn_get_state(const srnn_stream* stream, float* state) {
  for (const auto& piece : stream->model->program.states) {
    std::memcpy(state, stream->step.memory + piece.place, sizeof(float) * piece.size);
    state += piece.size;
  }
}

void srnn_set_state(srnn_stream* stream, const float* state) {
  for (const auto& piece : stream->model->program.states) {
    std::memcpy(stream->step.memory + piece.place, state, sizeof(float) * piece.size);
    state += piece.size;
  }
}

int64_t srnn_choose(const float* scores, int64_t words, double temperature, int64_t top, int64_t forbidden,
                    double number) {
  return selfish::step_kernels().choose(scores, words, temperature, top, forbidden, number);
}

const char* srnn_kernels(void) { return selfish::step_kernels().name; }

}  // extern "C"
