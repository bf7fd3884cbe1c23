#include <array>

#include "ops/checks.h"
#include "ops/share.h"

namespace tarpeg {
namespace {

// Eight pixels, 0 or 1, of the bits of a byte, the highest first.
constexpr std::array<std::array<uint8_t, 8>, 256> kPixels = [] {
  std::array<std::array<uint8_t, 8>, 256> pixels = {};
  for (size_t byte = 0; byte < 256; ++byte) {
    for (size_t i = 0; i < 8; ++i) pixels[byte][i] = byte >> (7 - i) & 1;
  }
  return pixels;
}();

void unpack_masks(Tensor bits, Tensor out, int64_t threads) {
  const int64_t masks = out.dim() == 2 ? out.size(0) : 0, pixels = out.dim() == 2 ? out.size(1) : 0;
  STD_TORCH_CHECK(
      out.is_cpu() && out.scalar_type() == ScalarType::Byte && out.dim() == 2 && out.is_contiguous(),
      "out must be a contiguous uint8 tensor [N, pixels] on the CPU");
  const int64_t bytes = (pixels + 7) / 8;
  STD_TORCH_CHECK(bits.is_cpu() && bits.scalar_type() == ScalarType::Byte && bits.dim() == 2 &&
                      bits.size(0) == masks && bits.size(1) == bytes && bits.is_contiguous(),
                  "bits must be a contiguous uint8 tensor [", masks, ", ", bytes, "] on the CPU");
  const uint8_t* from = bits.const_data_ptr<uint8_t>();
  uint8_t* to = out.mutable_data_ptr<uint8_t>();
  share_pieces(masks, masks, threads, [&](int64_t i) {
    const uint8_t* byte = from + i * bytes;
    uint8_t* pixel = to + i * pixels;
    for (uint8_t* const end = pixel + pixels / 8 * 8; pixel < end; pixel += 8) {
      std::memcpy(pixel, kPixels[*byte++].data(), 8);
    }
    if (pixels % 8 != 0) std::memcpy(pixel, kPixels[*byte].data(), static_cast<size_t>(pixels % 8));
  });
}

}  // namespace
}  // namespace tarpeg

STABLE_TORCH_LIBRARY_IMPL(tarpeg, CPU, m) { m.impl("unpack_masks", TORCH_BOX(&tarpeg::unpack_masks)); }
