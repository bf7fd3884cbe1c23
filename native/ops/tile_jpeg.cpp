#include "jpeg/transcode.h"
#include "ops/checks.h"

namespace tarpeg {
namespace {

Tensor tile_jpeg_operator(Tensor jpeg, int64_t tile, int64_t max_pixels) {
  return rewritten(jpeg, "jpeg", "tile", [&](auto* data, size_t size, const Header& header, auto* out) {
    return tile_jpeg(data, size, header, check_size(tile, "tile"), max_pixels, out);
  });
}

}  // namespace
}  // namespace tarpeg

STABLE_TORCH_LIBRARY_IMPL(tarpeg, CPU, m) { m.impl("tile_jpeg", TORCH_BOX(&tarpeg::tile_jpeg_operator)); }
