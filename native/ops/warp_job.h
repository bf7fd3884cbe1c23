#pragma once

#include <torch/headeronly/util/BFloat16.h>
#include <torch/headeronly/util/Half.h>

#include <type_traits>
#include <vector>

#include "ops/augment_job.h"

namespace tarpeg {

constexpr int64_t kFills = 16;  // channels that may have a fill of their own

// warp_affine's arguments as plain pointers, checked; the same for the CPU and for CUDA.
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

template <class T>
TARPEG_HD T number_from(float value) {
  if constexpr (std::is_same_v<T, uint8_t>) {
    return to_level(value);
  } else {
    return static_cast<T>(value);
  }
}

inline WarpJob check_warp(const Tensor& images, const Tensor& matrices, const std::vector<float>& fill,
                          bool nearest, bool inverse, const Tensor& out) {
  WarpJob job = {};
  job.from = layout_of(images, "images");
  job.to = layout_of(out, "out");
  job.type = number_of(images.scalar_type(), "images");
  STD_TORCH_CHECK(out.scalar_type() == images.scalar_type(), "out must have the dtype of images");
  const int64_t count = job.from.count;
  STD_TORCH_CHECK(job.to.count == count && job.to.channels == job.from.channels,
                  "out must be of as many images and channels as images");
  STD_TORCH_CHECK(same_device(images, out), "out must be on the device of images");
  check_apart(images, count * job.from.numbers() * size_of(job.type), out,
              count * job.to.numbers() * size_of(job.type));
  job.matrices = check_table(matrices, {count, 2, 3}, images, "matrices");
  job.fill_count = static_cast<int64_t>(fill.size());
  STD_TORCH_CHECK(job.fill_count == 1 || (job.fill_count == job.from.channels && job.fill_count <= kFills),
                  "fill must be one number, or one for each of at most ", kFills, " channels, got ",
                  fill.size());
  for (int64_t i = 0; i < job.fill_count; ++i) job.fill[i] = fill[i];
  job.nearest = nearest;
  job.inverse = inverse;
  job.images = images.const_data_ptr();
  job.out = out.mutable_data_ptr();
  return job;
}

}  // namespace tarpeg
