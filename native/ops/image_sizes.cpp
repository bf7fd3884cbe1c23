#include "ops/files.h"

namespace tarpeg {
namespace {

Tensor image_sizes(std::vector<Tensor> jpegs, std::optional<Tensor> places) {
  const std::vector<FileBytes> files = files_of(jpegs, places, "jpegs");
  const int64_t count = static_cast<int64_t>(files.size());
  Tensor sizes = new_images({count, 2}, {2, 1}, ScalarType::Int);
  int32_t* out = sizes.mutable_data_ptr<int32_t>();
  for (int64_t i = 0; i < count; ++i) {
    const Header header = read_header(files[i].data, files[i].size);
    const bool known = header.status == Status::kOk;
    out[2 * i] = known ? header.upright_height() : 0;
    out[2 * i + 1] = known ? header.upright_width() : 0;
  }
  return sizes;
}

}  // namespace
}  // namespace tarpeg

STABLE_TORCH_LIBRARY_IMPL(tarpeg, CPU, m) { m.impl("image_sizes", TORCH_BOX(&tarpeg::image_sizes)); }
