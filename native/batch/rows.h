#pragma once

#include <cstdint>

#include "batch/augment.h"

// Stages of augment_batch and warp_affine on the CPU: a span of one row at a time, as three arrays of float32
// that stay in the first-level cache.
namespace tarpeg {

enum class Number { kUint8, kFloat32, kFloat16, kBFloat16 };

inline int64_t size_of(Number type) { return type == Number::kUint8 ? 1 : type == Number::kFloat32 ? 4 : 2; }

struct Row {
  float r[kSpan], g[kSpan], b[kSpan];
};

// One uint8 RGB image, dense: three planes or interleaved.
struct Source {
  const uint8_t* data;
  int64_t height, width;
  bool planar;

  Picture<uint8_t> picture() const {
    if (planar) return {data, height, width, height * width, width, 1};
    return {data, height, width, 1, 3 * width, 3};
  }
};

// One image of the output; strides in elements.
struct Target {
  void* data;
  Number type;
  int64_t height, width;
  bool planar;
  bool streams;  // written past the caches: what is larger than they are would only push other things out
};

// Fills the first n of `row` with what belongs to the target pixels (x.., y); x is a multiple of kSpan.
void fetch_direct(const Source& source, const Affine& map, const float* fill, int64_t x, int64_t y, int n,
                  Row* row);
void fetch_warped(const Source& source, const Affine& map, bool nearest, const float* fill, int64_t x,
                  int64_t y, int n, Row* row);

void apply_brightness(const Plan& plan, int n, Row* row);
// Of brightened rows.
int64_t sum_gray(int n, const Row& row);
// All that comes after brightness.
void apply_colour(const Plan& plan, int n, Row* row);

// Before another thread reads what was streamed.
void finish_stores();

// value * scale + shift; for uint8 rounded instead, and held between 0 and 255.
void store(const Row& row, const float* scale, const float* shift, int64_t x, int64_t y, int n,
           const Target& target);

}  // namespace tarpeg
