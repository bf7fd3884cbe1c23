#pragma once

#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>
#include <torch/headeronly/core/ScalarType.h>
#include <torch/headeronly/util/shim_utils.h>

#include <cstdint>
#include <cstring>
#include <limits>
#include <optional>
#include <vector>

#include "base/number.h"
#include "image/decode.h"

// Memory is checked here, meaning in Python (tarpeg/ops). Every message contains the name of the argument.
namespace tarpeg {

using torch::headeronly::ScalarType;
using torch::stable::Tensor;

// Some build of torch may number its types differently than its headers: compare, never print, them.
inline void check_bytes(const Tensor& jpeg, const char* name, int64_t index) {
  STD_TORCH_CHECK(jpeg.is_cpu() && jpeg.scalar_type() == ScalarType::Byte && jpeg.dim() == 1, name, "[",
                  index, "] must be a one-dimensional uint8 tensor on the CPU");
  STD_TORCH_CHECK(jpeg.is_contiguous(), name, "[", index, "] must be contiguous");
}

// A box for each of `count` images, and whether they are mirrored.
inline void check_boxes(const Tensor& boxes, const std::optional<Tensor>& flip, int64_t count) {
  STD_TORCH_CHECK(boxes.is_cpu() && boxes.scalar_type() == ScalarType::Int && boxes.is_contiguous() &&
                      boxes.dim() == 2 && boxes.size(0) == count && boxes.size(1) == 4,
                  "boxes must be a contiguous int32 tensor [", count, ", 4] on the CPU");
  STD_TORCH_CHECK(!flip || (flip->is_cpu() && flip->scalar_type() == ScalarType::Bool &&
                            flip->is_contiguous() && flip->dim() == 1 && flip->size(0) == count),
                  "flip must be a contiguous bool tensor [", count, "] on the CPU");
}

// Raises the status of box `index` if that is outside its image.
inline void check_box(Status status, int64_t index, const Box& box, const Header& header) {
  STD_TORCH_CHECK(status != Status::kBoxOutside, "boxes[", index, "] (", box.top, ", ", box.left, ", ",
                  box.height, ", ", box.width, ") is outside its image of ", header.upright_height(), " x ",
                  header.upright_width());
}

// The first image of each chunk of a gathered batch; none: all images are one chunk.
inline void check_chunks(const std::vector<int64_t>& chunks, int64_t count) {
  int64_t before = -1;
  for (const int64_t first : chunks) {
    STD_TORCH_CHECK(first > before && first < count && (before >= 0 || first == 0), "chunks has ", first,
                    " after ", before, ": the numbers of images must ascend from 0 to less than ", count,
                    ", as gather_tiles of this version returned them");
    before = first;
  }
}

// Raises what is not the file's fault.
inline void check_status(Status status) {
  STD_TORCH_CHECK(status != Status::kOutOfMemory && status != Status::kOtherLibrary, describe(status),
                  ", while decoding an image");
}

inline int check_size(int64_t value, const char* name) {
  STD_TORCH_CHECK(value > 0 && value <= 65535, name, " must be from 1 to 65535, got ", value);
  return static_cast<int>(value);
}

inline Number number_of(ScalarType type, const char* name) {
  if (type == ScalarType::Byte) return Number::kUint8;
  if (type == ScalarType::Float) return Number::kFloat32;
  if (type == ScalarType::Half) return Number::kFloat16;
  STD_TORCH_CHECK(type == ScalarType::BFloat16, name,
                  " must be a uint8, float32, float16 or bfloat16 tensor");
  return Number::kBFloat16;
}

// A new uint8, int32 or int64 tensor on the CPU, by default of images; strides in elements.
inline Tensor new_images(const std::vector<int64_t>& sizes, const std::vector<int64_t>& strides,
                         ScalarType type = ScalarType::Byte) {
  AtenTensorHandle handle;
  int32_t dtype = aoti_torch_dtype_uint8();
  if (type == ScalarType::Int) dtype = aoti_torch_dtype_int32();
  if (type == ScalarType::Long) dtype = aoti_torch_dtype_int64();
  TORCH_ERROR_CODE_CHECK(aoti_torch_empty_strided(static_cast<int64_t>(sizes.size()), sizes.data(),
                                                  strides.data(), dtype, aoti_torch_device_type_cpu(), 0,
                                                  &handle));
  return Tensor(handle);
}

// A file that `rewrite(data, size, header, &bytes)` makes of another. `verb`, for the message: what it does.
template <class Rewrite>
Tensor rewritten(const Tensor& file, const char* name, const char* verb, const Rewrite& rewrite) {
  check_bytes(file, name, 0);
  const uint8_t* data = file.const_data_ptr<uint8_t>();
  const size_t size = static_cast<size_t>(file.numel());
  std::vector<uint8_t> bytes;
  const Status status = rewrite(data, size, read_header(data, size), &bytes);
  check_status(status);
  STD_TORCH_CHECK(status == Status::kOk, "[decode] cannot ", verb, " the image: ", describe(status));
  Tensor result = new_images({static_cast<int64_t>(bytes.size())}, {1});
  std::memcpy(result.mutable_data_ptr<uint8_t>(), bytes.data(), bytes.size());
  return result;
}

}  // namespace tarpeg
