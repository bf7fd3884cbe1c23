#pragma once

#include <optional>
#include <vector>

#include "batch/augment.h"
#include "batch/rows.h"
#include "ops/batch_checks.h"

namespace tarpeg {

// augment_batch's arguments as plain pointers, checked; the same for the CPU and for CUDA.
struct AugmentJob {
  BatchLayout from, to;
  const uint8_t* images;
  const double* numbers;  // [B, kColumns]
  int parts;
  const int32_t* boxes;  // [B, box_count, 4] (top, left, height, width), or null
  int64_t box_count;
  const uint8_t* mask;  // [B, mask_height, mask_width], or null
  int64_t mask_height, mask_width;
  float fill[3], scale[3], shift[3];
  Number type;
  void* out;
};

inline Number number_of(ScalarType type, const char* name) {
  if (type == ScalarType::Byte) return Number::kUint8;
  if (type == ScalarType::Float) return Number::kFloat32;
  if (type == ScalarType::Half) return Number::kFloat16;
  STD_TORCH_CHECK(type == ScalarType::BFloat16, name,
                  " must be a uint8, float32, float16 or bfloat16 tensor");
  return Number::kBFloat16;
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
  STD_TORCH_CHECK(job.from.channels == 3 && job.to.channels == 3 && job.to.count == count,
                  "images and out must be of as many images, of 3 channels");
  STD_TORCH_CHECK(same_device(images, out), "out must be on the device of images");
  check_apart(images, count * job.from.numbers(), out, count * job.to.numbers() * size_of(job.type));
  job.numbers = check_table(numbers, {count, kColumns}, images, "numbers");
  job.parts = static_cast<int>(parts);
  if (boxes) {
    STD_TORCH_CHECK(boxes->dim() == 3 && boxes->size(0) == count && boxes->size(2) == 4 &&
                        boxes->scalar_type() == ScalarType::Int && boxes->is_contiguous() &&
                        same_device(*boxes, images),
                    "boxes must be a contiguous int32 tensor [", count, ", n, 4] on the device of images");
    job.boxes = static_cast<const int32_t*>(boxes->const_data_ptr());
    job.box_count = boxes->size(1);
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
    job.scale[i] = static_cast<float>(constants[3 + i]);
    job.shift[i] = static_cast<float>(constants[6 + i]);
  }
  job.images = static_cast<const uint8_t*>(images.const_data_ptr());
  job.out = out.mutable_data_ptr();
  return job;
}

}  // namespace tarpeg
