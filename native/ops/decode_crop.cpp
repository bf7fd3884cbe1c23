#include "ops/checks.h"

namespace tarpeg {
namespace {

Tensor decode_crop(Tensor jpeg, int64_t top, int64_t left, int64_t height, int64_t width,
                   int64_t max_pixels) {
  check_bytes(jpeg, "jpeg", 0);
  const int64_t limit = std::numeric_limits<int32_t>::max();
  STD_TORCH_CHECK(top >= 0 && left >= 0 && top <= limit && left <= limit, "box (", top, ", ", left, ", ",
                  height, ", ", width, ") is outside the image");
  Request request{};
  request.height = check_size(height, "height");
  request.width = check_size(width, "width");
  request.box = {static_cast<int>(top), static_cast<int>(left), request.height, request.width};
  request.max_pixels = max_pixels;

  const auto* data = jpeg.const_data_ptr<uint8_t>();
  const size_t size = static_cast<size_t>(jpeg.numel());
  Header header = read_header(data, size);
  const auto check = [&](Status status) {
    check_status(status);
    STD_TORCH_CHECK(status != Status::kBoxOutside, "box (", top, ", ", left, ", ", height, ", ", width,
                    ") is outside the image of ", header.upright_height(), " x ", header.upright_width());
    STD_TORCH_CHECK(status == Status::kOk, "[decode] cannot decode the image: ", describe(status));
  };
  // Before anything is allocated for the box.
  check(check_request(request, header));
  Tensor image = new_images({3, height, width}, {1, 3 * width, 3});
  check(decode_image(data, size, request, &header, image.mutable_data_ptr<uint8_t>()));
  return image;
}

}  // namespace
}  // namespace tarpeg

STABLE_TORCH_LIBRARY_IMPL(tarpeg, CPU, m) { m.impl("decode_crop", TORCH_BOX(&tarpeg::decode_crop)); }
