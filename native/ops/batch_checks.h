#pragma once

#include <torch/csrc/stable/tensor.h>
#include <torch/headeronly/core/ScalarType.h>
#include <torch/headeronly/util/BFloat16.h>
#include <torch/headeronly/util/Exception.h>
#include <torch/headeronly/util/Half.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <vector>

#include "batch/jobs.h"
#include "ops/checks.h"

// The memory checks of warp_affine and run_batch, for the CPU and for CUDA.
namespace tarpeg {

// Calls call(T()) with the type T of a tensor's elements.
template <class Call>
void with_type(Number type, const Call& call) {
  switch (type) {
    case Number::kUint8:
      return call(uint8_t());
    case Number::kFloat32:
      return call(float());
    case Number::kFloat16:
      return call(torch::headeronly::Half());
    case Number::kBFloat16:
      return call(torch::headeronly::BFloat16());
  }
}

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

inline Programs check_programs(const Tensor& images, const Tensor& ops, const std::optional<Tensor>& values,
                               const std::optional<Tensor>& weights, bool nearest,
                               const std::vector<double>& border) {
  const int64_t count = images.size(0), height = images.size(2), width = images.size(3);
  STD_TORCH_CHECK(images.size(1) == 3, "programs need images of 3 channels");
  STD_TORCH_CHECK(height * width <= kMostPixels && std::max(height, width) <= kMostExact,
                  "images must have at most ", kMostPixels, " pixels and sides of at most ", kMostExact,
                  ", got ", height, " x ", width);
  STD_TORCH_CHECK(ops.dim() == 3 && ops.size(0) == count && ops.size(1) > 0 &&
                      ops.scalar_type() == ScalarType::Int && ops.is_contiguous() && same_device(ops, images),
                  "ops must be a contiguous int32 tensor [", count, ", c, n] on the device of images");
  Programs programs = {};
  programs.chains = ops.size(1);
  programs.length = ops.size(2);
  STD_TORCH_CHECK(values && values->dim() == 4 && values->size(0) == count &&
                      values->size(1) == programs.chains && values->size(2) == programs.length &&
                      values->size(3) == kValues && values->scalar_type() == ScalarType::Float &&
                      values->is_contiguous() && same_device(*values, images),
                  "values must be a contiguous float32 tensor [", count, ", ", programs.chains, ", ",
                  programs.length, ", ", kValues, "] on the device of images");
  STD_TORCH_CHECK(weights || programs.chains == 1, "ops must be of one chain without weights, got ",
                  programs.chains);
  if (weights) {
    STD_TORCH_CHECK(weights->dim() == 2 && weights->size(0) == count &&
                        weights->size(1) == programs.chains + 1 &&
                        weights->scalar_type() == ScalarType::Float && weights->is_contiguous() &&
                        same_device(*weights, images),
                    "weights must be a contiguous float32 tensor [", count, ", ", programs.chains + 1,
                    "] on the device of images");
    programs.weights = static_cast<const float*>(weights->const_data_ptr());
  }
  STD_TORCH_CHECK(border.empty() || border.size() == 3, "border must be no or three numbers, got ",
                  border.size());
  programs.has_fill = !border.empty();
  for (size_t i = 0; i < border.size(); ++i) programs.fill[i] = static_cast<float>(border[i]);
  programs.nearest = nearest;
  programs.ops = static_cast<const int32_t*>(ops.const_data_ptr());
  programs.values = static_cast<const float*>(values->const_data_ptr());
  return programs;
}

// constants: fill, scale and shift, three numbers each.
inline FinalPass check_pass(const Tensor& images, const Tensor& numbers, int64_t parts,
                            const std::optional<Tensor>& boxes, const std::optional<Tensor>& mask,
                            const std::vector<double>& constants) {
  const int64_t count = images.size(0);
  STD_TORCH_CHECK(images.size(1) == 3 || (parts & kColour) == 0, "colours need images of 3 channels");
  FinalPass pass = {};
  pass.numbers = check_table(numbers, {count, kColumns}, images, "numbers");
  pass.parts = static_cast<int>(parts);
  if (boxes) {
    STD_TORCH_CHECK(
        boxes->dim() == 3 && boxes->size(0) == count && (boxes->size(2) == 4 || boxes->size(2) == 6) &&
            boxes->scalar_type() == ScalarType::Int && boxes->is_contiguous() && same_device(*boxes, images),
        "boxes must be a contiguous int32 tensor [", count, ", n, 4 or 6] on the device of images");
    pass.boxes = static_cast<const int32_t*>(boxes->const_data_ptr());
    pass.box_count = boxes->size(1);
    pass.box_columns = boxes->size(2);
  }
  if (mask) {
    STD_TORCH_CHECK(mask->dim() == 3 && mask->size(0) == count && mask->size(1) > 0 && mask->size(2) > 0 &&
                        mask->scalar_type() == ScalarType::Bool && mask->is_contiguous() &&
                        same_device(*mask, images),
                    "mask must be a contiguous bool tensor [", count, ", h, w] on the device of images");
    pass.mask = static_cast<const uint8_t*>(mask->const_data_ptr());
    pass.mask_height = mask->size(1);
    pass.mask_width = mask->size(2);
  }
  STD_TORCH_CHECK(constants.size() == 9, "constants must be 9 numbers, got ", constants.size());
  for (int i = 0; i < 3; ++i) {
    pass.fill[i] = static_cast<float>(constants[i]);
    pass.how.scale[i] = static_cast<float>(constants[3 + i]);
    pass.how.shift[i] = static_cast<float>(constants[6 + i]);
  }
  return pass;
}

// The arguments of run_batch: `numbers` and those after it are the final pass.
inline BatchJob check_batch(const Tensor& images, const std::optional<Tensor>& ops,
                            const std::optional<Tensor>& values, const std::optional<Tensor>& weights,
                            bool nearest, const std::vector<double>& border,
                            const std::optional<Tensor>& numbers, int64_t parts,
                            const std::optional<Tensor>& boxes, const std::optional<Tensor>& mask,
                            const std::vector<double>& constants, const Tensor& out) {
  STD_TORCH_CHECK(images.scalar_type() == ScalarType::Byte, "images must be a uint8 tensor");
  BatchJob job = {};
  job.from = layout_of(images, "images");
  job.to = layout_of(out, "out");
  job.type = number_of(out.scalar_type(), "out");
  const BatchLayout &from = job.from, &to = job.to;
  STD_TORCH_CHECK(
      (from.channels == 3 || from.channels == 1) && to.channels == from.channels && to.count == from.count,
      "images and out must have the same number of images, with 3 channels or 1");
  STD_TORCH_CHECK(same_device(images, out), "out must be on the device of images");
  check_apart(images, from.count * from.numbers(), out, to.count * to.numbers() * size_of(job.type));
  STD_TORCH_CHECK(ops || numbers, "ops or numbers must be given");
  if (ops) job.programs = check_programs(images, *ops, values, weights, nearest, border);
  if (numbers) {
    job.pass = check_pass(images, *numbers, parts, boxes, mask, constants);
  } else {
    STD_TORCH_CHECK(job.type == Number::kUint8 && to.height == from.height && to.width == from.width,
                    "without numbers, images and out must be uint8 tensors of the same shape");
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
