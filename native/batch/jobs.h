#pragma once

#include <cstdint>
#include <limits>
#include <type_traits>

#include "base/number.h"
#include "batch/final_pass.h"
#include "batch/levels.h"
#include "batch/programs.h"
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

  template <class T>
  TARPEG_HD Picture<T> picture(const T* images, int64_t image) const {
    return {images + image * numbers(),
            static_cast<int>(channels),
            height,
            width,
            channel_stride(),
            row_stride(),
            pixel_stride()};
  }
};

// The arguments of run_batch as plain pointers, checked; the same for the CPU and for CUDA. Each image goes
// through its program, if there are any, and then through the final pass, if there is one.
struct BatchJob {
  BatchLayout from, to;
  const uint8_t* images;
  Programs programs;
  FinalPass pass;
  Number type;
  void* out;
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
    return from.picture(static_cast<const T*>(images), image);
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
