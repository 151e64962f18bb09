// The cells, as inference needs them: from the sums of the inputs (a) and of the recurrence (b) to the next state.
// Gates lie one after the other, each as long as the state; a cell may write the state where it was.
#pragma once

#include "../../engine/kernels/vectors.hpp"
#include "team.hpp"

namespace selfish {
namespace SELFISH_TARGET {

struct CellSite {
  const float* a;
  const float* b;            // may be null, of a highway cell
  const float* before;       // h
  const float* cell_before;  // c
  float* after;              // h
  float* cell;               // c
  int64_t hidden;
  int64_t chunk;  // of an ordered cell

  V8 sum(int64_t gate, int64_t unit, int64_t count) const { return sum_at(gate * hidden + unit, count); }
  V8 sum_at(int64_t at, int64_t count) const {
    const V8 from_input = load_some(a + at, count);
    return b == nullptr ? from_input : from_input + load_some(b + at, count);
  }
};

// Calls run(unit, count) for eight units at a time.
template <class Run>
inline void in_eights(Part units, Run run) {
  for (int64_t unit = units.begin; unit < units.end; unit += 8) run(unit, units.end - unit);
}

inline void lstm_cell(const CellSite& site, Part units) {
  in_eights(units, [&](int64_t unit, int64_t n) {
    const V8 in = sigmoid(site.sum(0, unit, n)), forget = sigmoid(site.sum(1, unit, n));
    const V8 candidate = tanh(site.sum(2, unit, n)), out = sigmoid(site.sum(3, unit, n));
    const V8 cell = forget * load_some(site.cell_before + unit, n) + in * candidate;
    store_some(site.cell + unit, cell, n);
    store_some(site.after + unit, out * tanh(cell), n);
  });
}

inline void gru_cell(const CellSite& site, Part units) {
  in_eights(units, [&](int64_t unit, int64_t n) {
    const V8 reset = sigmoid(site.sum(0, unit, n)), update = sigmoid(site.sum(1, unit, n));
    const int64_t last = 2 * site.hidden + unit;
    const V8 candidate = tanh(load_some(site.a + last, n) + reset * load_some(site.b + last, n));
    store_some(site.after + unit, candidate + update * (load_some(site.before + unit, n) - candidate), n);
  });
}

template <bool Rectified>
inline void elman_cell(const CellSite& site, Part units) {
  in_eights(units, [&](int64_t unit, int64_t n) {
    const V8 sum = site.sum(0, unit, n);
    store_some(site.after + unit, Rectified ? (sum < 0.f ? V8{} : sum) : tanh(sum), n);
  });
}

inline void highway_cell(const CellSite& site, Part units) {
  in_eights(units, [&](int64_t unit, int64_t n) {
    const V8 before = load_some(site.before + unit, n);
    const V8 transform = sigmoid(site.sum(1, unit, n));
    store_some(site.after + unit, before + transform * (tanh(site.sum(0, unit, n)) - before), n);
  });
}

// Softmax of n numbers in place: y may be x.
inline void softmax(const float* x, int64_t n, float* y) {
  V8 top = broadcast<V8>(-INFINITY);
  for (int64_t at = 0; at < n; at += 8) {
    V8 here = load_some(x + at, n - at);
    for (int64_t rest = n - at; rest < 8; ++rest) here[rest] = -INFINITY;
    top = max(here, top);
  }
  float highest = top[0];
  for (int lane = 1; lane < 8; ++lane) highest = top[lane] > highest ? top[lane] : highest;
  V8 total{};
  for (int64_t at = 0; at < n; at += 8) {
    V8 chance = exp(load_some(x + at, n - at) - highest);
    for (int64_t rest = n - at; rest < 8; ++rest) chance[rest] = 0.f;
    store_some(y + at, chance, n - at);
    total += chance;
  }
  const float inverse = 1.f / sum(total);
  for (int64_t at = 0; at < n; ++at) y[at] *= inverse;
}

// The gates: master input and master forget (one number for every chunk), output, candidate, input, forget. Every
// thread makes the master gates, which take `masters`: two numbers for every chunk.
inline void ordered_cell(const CellSite& site, Part units, float* masters) {
  const int64_t chunks = site.hidden / site.chunk;
  in_eights({0, 2 * chunks}, [&](int64_t at, int64_t n) { store_some(masters + at, site.sum_at(at, n), n); });
  for (int gate = 0; gate < 2; ++gate) {
    float* master = masters + gate * chunks;
    softmax(master, chunks, master);
    float total = 0;
    for (int64_t at = 0; at < chunks; ++at) total += master[at], master[at] = gate == 0 ? 1.f - total : total;
  }
  in_eights(units, [&](int64_t unit, int64_t n) {
    V8 master_in{}, master_forget{};
    for (int64_t at = 0; at < 8 && at < n; ++at) {
      master_in[at] = masters[(unit + at) / site.chunk];
      master_forget[at] = masters[chunks + (unit + at) / site.chunk];
    }
    const auto gate = [&](int64_t which) { return site.sum_at(2 * chunks + which * site.hidden + unit, n); };
    const V8 overlap = master_in * master_forget;
    const V8 write = sigmoid(gate(2)) * overlap + (master_in - overlap);
    const V8 keep = sigmoid(gate(3)) * overlap + (master_forget - overlap);
    const V8 cell = keep * load_some(site.cell_before + unit, n) + write * tanh(gate(1));
    store_some(site.cell + unit, cell, n);
    store_some(site.after + unit, sigmoid(gate(0)) * tanh(cell), n);
  });
}

}  // namespace SELFISH_TARGET
}  // namespace selfish
