#pragma once

#include <torch/csrc/stable/tensor.h>
#include <torch/headeronly/core/ScalarType.h>
#include <torch/headeronly/util/Exception.h>

#include <cstdint>
#include <string>
#include <vector>

#include "batch/warp.h"

// Memory of batches of images, checked for warp_affine and augment_batch on any device.
namespace tarpeg {

using torch::headeronly::ScalarType;
using torch::stable::Tensor;

// [B, C, H, W] in one of two dense orders; strides in elements.
struct BatchLayout {
  int64_t count, channels, height, width;
  bool planar;

  TARPEG_HD int64_t pixels() const { return height * width; }
  TARPEG_HD int64_t numbers() const { return channels * height * width; }  // of an image
  TARPEG_HD int64_t channel_stride() const { return planar ? pixels() : 1; }
  TARPEG_HD int64_t row_stride() const { return planar ? width : channels * width; }
  TARPEG_HD int64_t pixel_stride() const { return planar ? 1 : channels; }
};

inline BatchLayout layout_of(const Tensor& images, const char* name) {
  STD_TORCH_CHECK(images.dim() == 4, name, " must be a tensor [B, C, H, W]");
  BatchLayout layout = {images.size(0), images.size(1), images.size(2), images.size(3),
                        images.is_contiguous()};
  STD_TORCH_CHECK(layout.height <= kMaxSide && layout.width <= kMaxSide, name, " must have sides of at most ",
                  kMaxSide, " pixels, got ", layout.height, " x ", layout.width);
  if (layout.planar) return layout;
  const int64_t strides[4] = {layout.numbers(), 1, layout.row_stride(), layout.channels};
  for (int i = 0; i < 4; ++i) {
    STD_TORCH_CHECK(images.size(i) == 1 || images.stride(i) == strides[i] || images.numel() == 0, name,
                    " must be contiguous, or dense in channels_last order");
  }
  return layout;
}

inline void check_apart(const Tensor& images, int64_t image_bytes, const Tensor& out, int64_t out_bytes) {
  const char* first = static_cast<const char*>(images.const_data_ptr());
  const char* second = static_cast<const char*>(out.const_data_ptr());
  STD_TORCH_CHECK(first + image_bytes <= second || second + out_bytes <= first,
                  "out must not share memory with images");
}

inline bool same_device(const Tensor& first, const Tensor& second) {
  return first.is_cpu() == second.is_cpu() && first.get_device_index() == second.get_device_index();
}

// A table of float64, dense, on the device of `images`.
inline const double* check_table(const Tensor& table, const std::vector<int64_t>& sizes, const Tensor& images,
                                 const char* name) {
  bool fits = table.dim() == static_cast<int64_t>(sizes.size());
  for (size_t i = 0; fits && i < sizes.size(); ++i) fits = table.size(static_cast<int64_t>(i)) == sizes[i];
  STD_TORCH_CHECK(fits && table.scalar_type() == ScalarType::Double && table.is_contiguous(), name,
                  " must be a contiguous float64 tensor with ", sizes.back(),
                  " columns and a row for each image");
  STD_TORCH_CHECK(same_device(table, images), name, " must be on the device of images");
  return static_cast<const double*>(table.const_data_ptr());
}

// A new int64 tensor [count] on the device of `images`.
inline Tensor new_sums(const Tensor& images, int64_t count) {
  const int64_t stride = 1;
  AtenTensorHandle handle;
  const int32_t device = images.is_cpu() ? aoti_torch_device_type_cpu() : aoti_torch_device_type_cuda();
  STABLE_TORCH_ERROR_CODE_CHECK(aoti_torch_empty_strided(1, &count, &stride, aoti_torch_dtype_int64(), device,
                                                         images.get_device_index(), &handle));
  return Tensor(handle);
}

}  // namespace tarpeg
