#include "jpeg/transcode.h"
#include "ops/checks.h"

namespace tarpeg {
namespace {

Tensor pack_jpeg_operator(Tensor jpeg, int64_t tile, int64_t max_pixels) {
  return rewritten(jpeg, "jpeg", "pack", [&](auto* data, size_t size, const Header& header, auto* out) {
    return pack_jpeg(data, size, header, check_size(tile, "tile"), max_pixels, out);
  });
}

Tensor unpack_jpeg_operator(Tensor image, int64_t max_pixels) {
  return rewritten(image, "image", "unpack", [&](auto* data, size_t size, const Header& header, auto* out) {
    return unpack_jpeg(data, size, header, max_pixels, out);
  });
}

}  // namespace
}  // namespace tarpeg

STABLE_TORCH_LIBRARY_IMPL(tarpeg, CPU, m) {
  m.impl("pack_jpeg", TORCH_BOX(&tarpeg::pack_jpeg_operator));
  m.impl("unpack_jpeg", TORCH_BOX(&tarpeg::unpack_jpeg_operator));
}
