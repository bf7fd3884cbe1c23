#include <cstring>

#include "jpeg/transcode.h"
#include "ops/checks.h"

namespace tarpeg {
namespace {

Tensor tile_jpeg_operator(Tensor jpeg, int64_t tile, int64_t max_pixels) {
  check_bytes(jpeg, "jpeg", 0);
  const uint8_t* data = jpeg.const_data_ptr<uint8_t>();
  const size_t size = static_cast<size_t>(jpeg.numel());
  std::vector<uint8_t> bytes;
  const Status status =
      tile_jpeg(data, size, read_header(data, size), check_size(tile, "tile"), max_pixels, &bytes);
  check_status(status);
  STD_TORCH_CHECK(status == Status::kOk, "[decode] cannot tile the image: ", describe(status));
  const int64_t length = static_cast<int64_t>(bytes.size());
  Tensor tiled = new_images({length}, {1});
  std::memcpy(tiled.mutable_data_ptr<uint8_t>(), bytes.data(), bytes.size());
  return tiled;
}

}  // namespace
}  // namespace tarpeg

STABLE_TORCH_LIBRARY_IMPL(tarpeg, CPU, m) { m.impl("tile_jpeg", TORCH_BOX(&tarpeg::tile_jpeg_operator)); }
