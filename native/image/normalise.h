#pragma once

#include <cstdint>

#include "base/number.h"

// From RGB bytes to normalised numbers: value * scale + shift for each channel, in float32 with two roundings
// (no fused multiply-add), then rounded to nearest even if the type has fewer bits.
namespace tarpeg {

// A row of RGB or gray pixels, from `first` on to the right, or to the left if `backwards`; strides in bytes.
struct RgbRow {
  const uint8_t* first;
  int64_t pixel_stride, channel_stride;
  bool backwards;
  int channels = 3;  // 1: `pixel_stride` is 1, and the target planar
};

struct Normalisation {
  float scale[3] = {1, 1, 1}, shift[3] = {0, 0, 0};
};

// Bytes of output that are more than the caches hold.
constexpr int64_t kLarge = 16 << 20;

// One image of the output; strides in elements.
struct Target {
  void* data;
  Number type;
  int64_t height, width;
  bool planar;       // planes; otherwise interleaved
  bool streams;      // written past the caches, which an output larger than they are would only empty
  int channels = 3;  // 1: planar
};

// Normalises the first n pixels of a row to the target's pixel `at` and those after it. The target's type is
// not kUint8.
void normalise(const RgbRow& row, const Normalisation& how, int64_t at, int64_t n,
               const Target& target) noexcept;

// The same with vector code, for as many of the pixels as it takes; returns how many are done, 0 for kUint8.
int64_t normalise_simd(const RgbRow& row, const Normalisation& how, int64_t at, int64_t n,
                       const Target& target) noexcept;

// Call before another thread reads streamed data.
void finish_stores() noexcept;

}  // namespace tarpeg
