#include <cstring>
#include <tuple>
#include <vector>

#include "gather/decode.h"
#include "ops/checks.h"
#include "ops/share.h"

namespace tarpeg {
namespace {

std::tuple<Tensor, Tensor> decode_gathered(Tensor data, int64_t count, int64_t height, int64_t width,
                                           int64_t channels, int64_t, std::vector<int64_t> chunks,
                                           int64_t threads) {
  STD_TORCH_CHECK(
      data.is_cpu() && data.scalar_type() == ScalarType::Byte && data.dim() == 1 && data.is_contiguous(),
      "data must be a contiguous uint8 tensor [n] on the CPU");
  const uint8_t* const bytes = data.const_data_ptr<uint8_t>();
  STD_TORCH_CHECK(reinterpret_cast<uintptr_t>(bytes) % gather::kUnit == 0,
                  "data must begin at a multiple of ", gather::kUnit, " bytes");
  STD_TORCH_CHECK(channels == 1 || channels == 3, "channels must be 1 or 3, got ", channels);
  check_chunks(chunks, count);  // only devices have memory for several images
  check_size(height, "height");
  check_size(width, "width");
  gather::Gathered all;
  STD_TORCH_CHECK(
      count >= 0 && gather::read_header(bytes, static_cast<uint64_t>(data.numel()),
                                        static_cast<uint32_t>(count), static_cast<uint32_t>(height),
                                        static_cast<uint32_t>(width), static_cast<uint32_t>(channels), &all),
      "data is not what gather_tiles of this version made for ", count, " images of ", height, " x ", width,
      " with ", channels, " channels");
  Tensor images = new_images({count, channels, height, width},
                             {channels * height * width, 1, channels * width, channels});
  Tensor statuses = new_images({count}, {1}, ScalarType::Int);
  uint8_t* const pixels = images.mutable_data_ptr<uint8_t>();
  int32_t* const status = statuses.mutable_data_ptr<int32_t>();
  const size_t image_bytes = static_cast<size_t>(channels * height * width);
  share_pieces(count, count, threads, [&](int64_t i) {
    static thread_local gather::Memory memory;
    uint8_t* const image = pixels + image_bytes * static_cast<size_t>(i);
    const Status result = gather::decode(all, static_cast<uint32_t>(i), &memory, image);
    if (result != Status::kOk) std::memset(image, 0, image_bytes);
    status[i] = static_cast<int32_t>(result);
  });
  return {images, statuses};
}

}  // namespace
}  // namespace tarpeg

STABLE_TORCH_LIBRARY_IMPL(tarpeg, CPU, m) { m.impl("decode_gathered", TORCH_BOX(&tarpeg::decode_gathered)); }
