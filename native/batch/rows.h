#pragma once

#include <algorithm>
#include <cstdint>

#include "batch/final_pass.h"
#include "image/normalise.h"

// The stages of augment_batch and warp_affine on the CPU. Each processes a span of one row, as three arrays
// of float32 that stay in the first-level cache.
namespace tarpeg {

// Of gray images, `g` and `b` are not used.
struct Row {
  float r[kSpan], g[kSpan], b[kSpan];
};

// Fills the first n of `row` with the values of `from` at the target pixels (x.., y); x is a multiple of
// kSpan. fetch_direct: the map takes whole pixels to whole pixels along rows; fetch_warped (warp_rows.cpp):
// interpolated or nearest.
void fetch_direct(const Picture<uint8_t>& from, const Affine& map, const float* fill, int64_t x, int64_t y,
                  int n, Row* row);
void fetch_warped(const Picture<uint8_t>& from, const Affine& map, bool nearest, const float* fill, int64_t x,
                  int64_t y, int n, Row* row);

// Sets the pixels from `begin` up to `end` to the fill colour.
inline void fill_row(const float* fill, int64_t begin, int64_t end, Row* row) {
  if (end <= begin) return;
  std::fill(row->r + begin, row->r + end, fill[0]);
  std::fill(row->g + begin, row->g + end, fill[1]);
  std::fill(row->b + begin, row->b + end, fill[2]);
}

// The colour matrix, 12 numbers.
void recolour_row(const float* matrix, int n, Row* row);

// Writes value * scale + shift; for uint8 the value itself, rounded and held between 0 and 255.
void store(const Row& row, const Normalisation& how, int64_t x, int64_t y, int n, const Target& target);

}  // namespace tarpeg
