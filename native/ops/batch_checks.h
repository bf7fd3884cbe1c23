#pragma once

#include <torch/csrc/stable/tensor.h>
#include <torch/headeronly/core/ScalarType.h>
#include <torch/headeronly/util/Exception.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "batch/jobs.h"
#include "ops/checks.h"

// The memory checks of warp_affine and augment_batch, for the CPU and for CUDA.
namespace tarpeg {

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

// A new tensor [count] on the device of `images`.
inline Tensor new_on_device(const Tensor& images, int64_t count, int32_t dtype) {
  const int64_t stride = 1;
  AtenTensorHandle handle;
  const int32_t device = images.is_cpu() ? aoti_torch_device_type_cpu() : aoti_torch_device_type_cuda();
  TORCH_ERROR_CODE_CHECK(
      aoti_torch_empty_strided(1, &count, &stride, dtype, device, images.get_device_index(), &handle));
  return Tensor(handle);
}

// constants: fill, scale and shift, three numbers each.
inline AugmentJob check_augment(const Tensor& images, const Tensor& numbers, int64_t parts,
                                const std::optional<Tensor>& boxes, const std::optional<Tensor>& mask,
                                const std::vector<double>& constants, const Tensor& out) {
  STD_TORCH_CHECK(images.scalar_type() == ScalarType::Byte, "images must be a uint8 tensor");
  AugmentJob job = {};
  job.from = layout_of(images, "images");
  job.to = layout_of(out, "out");
  job.type = number_of(out.scalar_type(), "out");
  const int64_t count = job.from.count;
  const int64_t channels = job.from.channels;
  STD_TORCH_CHECK((channels == 1 || channels == 3) && job.to.channels == channels && job.to.count == count,
                  "images and out must have the same number of images, with 3 channels or 1");
  STD_TORCH_CHECK(channels == 3 || (parts & kColourParts) == 0, "colours need images of 3 channels");
  STD_TORCH_CHECK(same_device(images, out), "out must be on the device of images");
  check_apart(images, count * job.from.numbers(), out, count * job.to.numbers() * size_of(job.type));
  job.numbers = check_table(numbers, {count, kColumns}, images, "numbers");
  job.parts = static_cast<int>(parts);
  if (boxes) {
    STD_TORCH_CHECK(
        boxes->dim() == 3 && boxes->size(0) == count && (boxes->size(2) == 4 || boxes->size(2) == 6) &&
            boxes->scalar_type() == ScalarType::Int && boxes->is_contiguous() && same_device(*boxes, images),
        "boxes must be a contiguous int32 tensor [", count, ", n, 4 or 6] on the device of images");
    job.boxes = static_cast<const int32_t*>(boxes->const_data_ptr());
    job.box_count = boxes->size(1);
    job.box_columns = boxes->size(2);
  }
  if (mask) {
    STD_TORCH_CHECK(mask->dim() == 3 && mask->size(0) == count && mask->size(1) > 0 && mask->size(2) > 0 &&
                        mask->scalar_type() == ScalarType::Bool && mask->is_contiguous() &&
                        same_device(*mask, images),
                    "mask must be a contiguous bool tensor [", count, ", h, w] on the device of images");
    job.mask = static_cast<const uint8_t*>(mask->const_data_ptr());
    job.mask_height = mask->size(1);
    job.mask_width = mask->size(2);
  }
  STD_TORCH_CHECK(constants.size() == 9, "constants must be 9 numbers, got ", constants.size());
  for (int i = 0; i < 3; ++i) {
    job.fill[i] = static_cast<float>(constants[i]);
    job.how.scale[i] = static_cast<float>(constants[3 + i]);
    job.how.shift[i] = static_cast<float>(constants[6 + i]);
  }
  job.images = static_cast<const uint8_t*>(images.const_data_ptr());
  job.out = out.mutable_data_ptr();
  return job;
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
                  "out must have as many images and channels as images");
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
