#include <cstring>

#include "jpeg/transcode.h"
#include "ops/checks.h"

namespace tarpeg {
namespace {

Tensor as_tensor(const std::vector<uint8_t>& bytes) {
  Tensor tensor = new_images({static_cast<int64_t>(bytes.size())}, {1});
  std::memcpy(tensor.mutable_data_ptr<uint8_t>(), bytes.data(), bytes.size());
  return tensor;
}

Tensor pack_jpeg_operator(Tensor jpeg, int64_t tile, int64_t max_pixels) {
  check_bytes(jpeg, "jpeg", 0);
  const uint8_t* data = jpeg.const_data_ptr<uint8_t>();
  const size_t size = static_cast<size_t>(jpeg.numel());
  std::vector<uint8_t> bytes;
  const Status status =
      pack_jpeg(data, size, read_header(data, size), check_size(tile, "tile"), max_pixels, &bytes);
  check_status(status);
  STD_TORCH_CHECK(status == Status::kOk, "[decode] cannot pack the image: ", describe(status));
  return as_tensor(bytes);
}

Tensor unpack_jpeg_operator(Tensor image, int64_t max_pixels) {
  check_bytes(image, "image", 0);
  const uint8_t* data = image.const_data_ptr<uint8_t>();
  const size_t size = static_cast<size_t>(image.numel());
  std::vector<uint8_t> bytes;
  const Status status = unpack_jpeg(data, size, read_header(data, size), max_pixels, &bytes);
  check_status(status);
  STD_TORCH_CHECK(status == Status::kOk, "[decode] cannot unpack the image: ", describe(status));
  return as_tensor(bytes);
}

}  // namespace
}  // namespace tarpeg

STABLE_TORCH_LIBRARY_IMPL(tarpeg, CPU, m) {
  m.impl("pack_jpeg", TORCH_BOX(&tarpeg::pack_jpeg_operator));
  m.impl("unpack_jpeg", TORCH_BOX(&tarpeg::unpack_jpeg_operator));
}
