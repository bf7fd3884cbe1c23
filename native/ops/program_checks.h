#pragma once

#include <algorithm>
#include <optional>
#include <vector>

#include "batch/programs.h"
#include "ops/batch_checks.h"

// The memory checks of run_programs, for the CPU and for CUDA.
namespace tarpeg {

inline ProgramJob check_programs(const Tensor& images, const Tensor& ops, const Tensor& values,
                                 const std::optional<Tensor>& weights, bool nearest,
                                 const std::vector<double>& fill, const Tensor& out) {
  STD_TORCH_CHECK(images.scalar_type() == ScalarType::Byte && out.scalar_type() == ScalarType::Byte,
                  "images and out must be uint8 tensors");
  ProgramJob job = {};
  job.from = layout_of(images, "images");
  job.to = layout_of(out, "out");
  const BatchLayout &from = job.from, &to = job.to;
  STD_TORCH_CHECK(from.channels == 3 && to.channels == 3 && to.count == from.count &&
                      to.height == from.height && to.width == from.width,
                  "images and out must have the same shape, with 3 channels");
  STD_TORCH_CHECK(from.pixels() <= kMostPixels && std::max(from.height, from.width) <= kMostSide,
                  "images must have at most ", kMostPixels, " pixels and sides of at most ", kMostSide,
                  ", got ", from.height, " x ", from.width);
  STD_TORCH_CHECK(same_device(images, out), "out must be on the device of images");
  const int64_t bytes = from.count * from.numbers();
  check_apart(images, bytes, out, bytes);
  STD_TORCH_CHECK(ops.dim() == 3 && ops.size(0) == from.count && ops.size(1) > 0 &&
                      ops.scalar_type() == ScalarType::Int && ops.is_contiguous() && same_device(ops, images),
                  "ops must be a contiguous int32 tensor [", from.count, ", c, n] on the device of images");
  job.chains = ops.size(1);
  job.length = ops.size(2);
  STD_TORCH_CHECK(values.dim() == 4 && values.size(0) == from.count && values.size(1) == job.chains &&
                      values.size(2) == job.length && values.size(3) == kValues &&
                      values.scalar_type() == ScalarType::Float && values.is_contiguous() &&
                      same_device(values, images),
                  "values must be a contiguous float32 tensor [", from.count, ", ", job.chains, ", ",
                  job.length, ", ", kValues, "] on the device of images");
  STD_TORCH_CHECK(weights.has_value() || job.chains == 1, "ops must be of one chain without weights, got ",
                  job.chains);
  if (weights) {
    STD_TORCH_CHECK(weights->dim() == 2 && weights->size(0) == from.count &&
                        weights->size(1) == job.chains + 1 && weights->scalar_type() == ScalarType::Float &&
                        weights->is_contiguous() && same_device(*weights, images),
                    "weights must be a contiguous float32 tensor [", from.count, ", ", job.chains + 1,
                    "] on the device of images");
    job.weights = static_cast<const float*>(weights->const_data_ptr());
  }
  STD_TORCH_CHECK(fill.empty() || fill.size() == 3, "fill must be no or three numbers, got ", fill.size());
  job.has_fill = !fill.empty();
  for (size_t i = 0; i < fill.size(); ++i) job.fill[i] = static_cast<float>(fill[i]);
  job.nearest = nearest;
  job.images = static_cast<const uint8_t*>(images.const_data_ptr());
  job.ops = static_cast<const int32_t*>(ops.const_data_ptr());
  job.values = static_cast<const float*>(values.const_data_ptr());
  job.out = static_cast<uint8_t*>(out.mutable_data_ptr());
  return job;
}

}  // namespace tarpeg
