#pragma once

#include <cstdint>
#include <limits>
#include <type_traits>

#include "base/number.h"
#include "batch/augment.h"
#include "image/normalise.h"

namespace tarpeg {

// [B, C, H, W] in one of two dense orders; strides in elements.
struct BatchLayout {
  int64_t count, channels, height, width;
  bool planar;

  TARPEG_HD int64_t pixels() const { return height * width; }
  TARPEG_HD int64_t numbers() const { return channels * height * width; }  // of an image
  // 0 for gray: code for RGB then reads the same pixel three times.
  TARPEG_HD int64_t channel_stride() const { return channels == 1 ? 0 : planar ? pixels() : 1; }
  TARPEG_HD int64_t row_stride() const { return planar ? width : channels * width; }
  TARPEG_HD int64_t pixel_stride() const { return planar ? 1 : channels; }
};

// The arguments of augment_batch as plain pointers, checked; the same for the CPU and for CUDA.
struct AugmentJob {
  BatchLayout from, to;
  const uint8_t* images;
  const double* numbers;  // [B, kColumns]
  int parts;
  const int32_t* boxes;  // [B, box_count, box_columns] (top, left, height, width, key), or null
  int64_t box_count;
  int64_t box_columns;  // 6 with keys, low and high half: boxes of random pixels; 4 without
  const uint8_t* mask;  // [B, mask_height, mask_width], or null
  int64_t mask_height, mask_width;
  float fill[3];
  Normalisation how;
  Number type;
  void* out;

  // The level that becomes a normal random number, of pixel `at` and channel c in a box with a key.
  TARPEG_HD float random_level(const int32_t* box, int64_t at, int c) const {
    const uint64_t low = static_cast<uint32_t>(box[4]), high = static_cast<uint32_t>(box[5]);
    return (normal_of(low | (high << 32), static_cast<uint64_t>(3 * at + c)) - how.shift[c]) / how.scale[c];
  }
};

constexpr int64_t kFills = 16;  // channels that may have a fill of their own

// The arguments of warp_affine as plain pointers, checked; the same for the CPU and for CUDA.
struct WarpJob {
  BatchLayout from, to;
  const void* images;
  const double* matrices;  // [B, 2, 3]
  float fill[kFills];
  int64_t fill_count;  // 1: the same for all channels
  bool nearest, inverse;
  Number type;
  void* out;

  TARPEG_HD float fill_of(int64_t channel) const { return fill[fill_count == 1 ? 0 : channel]; }

  template <class T>
  TARPEG_HD Picture<T> picture(int64_t image) const {
    return {static_cast<const T*>(images) + image * from.numbers(),
            from.height,
            from.width,
            from.channel_stride(),
            from.row_stride(),
            from.pixel_stride()};
  }
};

// torch's NaN of 16 bits, the same as in to_float16() and to_bfloat16().
template <class T>
constexpr uint16_t kNan = std::numeric_limits<T>::quiet_NaN().x;

template <class T>
TARPEG_HD T number_from(float value) {
  if constexpr (std::is_same_v<T, uint8_t>) {
    return to_level(value);
  } else if constexpr (sizeof(T) == 2) {
    return value == value ? static_cast<T>(value) : T(kNan<T>, T::from_bits());
  } else {
    return value;
  }
}

}  // namespace tarpeg
