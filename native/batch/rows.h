#pragma once

#include <algorithm>
#include <cstdint>

#include "batch/final_pass.h"
#include "image/normalise.h"

// The stages of run_batch and warp_affine that move pixels, on the CPU. Each processes a span of one row, as
// arrays of float32 that stay in the first-level cache.
namespace tarpeg {

// Of gray images only the first channel is used.
struct Row {
  float channels[3][kSpan];
};

// Fills the first n of `row` with the values of `from` at the target pixels (x.., y); x is a multiple of
// kSpan, and the map takes whole pixels to whole pixels along rows.
void fetch_direct(const Picture<uint8_t>& from, const Affine& map, const float* fill, int64_t x, int64_t y,
                  int n, Row* row);

// Sets the pixels from `begin` up to `end` to the fill colour.
inline void fill_row(const float* fill, int64_t begin, int64_t end, Row* row) {
  if (end <= begin) return;
  for (int c = 0; c < 3; ++c) std::fill(row->channels[c] + begin, row->channels[c] + end, fill[c]);
}

// The colour matrix, 12 numbers.
void recolour_row(const float* matrix, int n, Row* row);

// Writes value * scale + shift; for uint8 the value itself, rounded and held between 0 and 255.
void store(const Row& row, const Normalisation& how, int64_t x, int64_t y, int n, const Target& target);

}  // namespace tarpeg
