#include <torch/csrc/stable/library.h>

#include <algorithm>
#include <vector>

#include "base/pages.h"
#include "batch/warp_job.h"
#include "ops/batch_checks.h"
#include "ops/share.h"

namespace tarpeg {
namespace {

constexpr int64_t kBand = 32;  // rows of an image that one thread does at a time

void warp_affine(Tensor images, Tensor matrices, std::vector<double> fill, bool nearest, bool inverse,
                 bool fresh, Tensor out) {
  const std::vector<float> fills(fill.begin(), fill.end());
  WarpJob job = check_warp(images, matrices, fills, nearest, inverse, out);
  const BatchLayout& to = job.to;
  if (to.count == 0 || to.numbers() == 0) return;
  if (fresh) want_huge_pages(job.out, to.count * to.numbers() * size_of(job.type));
  const int64_t bands = (to.height + kBand - 1) / kBand;
  share_pieces(to.count * bands, to.count * to.numbers() / kWorthwhile, 0, [&](int64_t piece) {
    const int64_t image = piece / bands, top = piece % bands * kBand, end = std::min(top + kBand, to.height);
    const Affine map = affine_of(job.matrices + image * 6, job.inverse);
    if (job.type == Number::kUint8 && to.channels == 3) return warp_rgb(job, map, image, top, end);
    with_type(job.type, [&](auto zero) { warp_any<decltype(zero)>(job, map, image, top, end); });
  });
}

}  // namespace
}  // namespace tarpeg

STABLE_TORCH_LIBRARY_IMPL(tarpeg, CPU, m) { m.impl("warp_affine", TORCH_BOX(&tarpeg::warp_affine)); }
