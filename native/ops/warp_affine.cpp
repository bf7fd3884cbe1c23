#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/headeronly/util/BFloat16.h>
#include <torch/headeronly/util/Half.h>

#include <algorithm>
#include <vector>

#include "base/pages.h"
#include "batch/warp_rows.h"
#include "ops/batch_checks.h"

namespace tarpeg {
namespace {

constexpr int64_t kBand = 32;             // rows of an image that one thread does at a time
constexpr int64_t kWorthwhile = 1 << 15;  // numbers below which no second thread is called

void warp_rows(const WarpJob& job, const Affine& map, int64_t image, int64_t begin, int64_t end) {
  switch (job.type) {
    case Number::kUint8:
      return job.to.channels == 3 ? warp_rgb(job, map, image, begin, end)
                                  : warp_any<uint8_t>(job, map, image, begin, end);
    case Number::kFloat32:
      return warp_any<float>(job, map, image, begin, end);
    case Number::kFloat16:
      return warp_any<torch::headeronly::Half>(job, map, image, begin, end);
    case Number::kBFloat16:
      return warp_any<torch::headeronly::BFloat16>(job, map, image, begin, end);
  }
}

void warp_affine(Tensor images, Tensor matrices, std::vector<double> fill, bool nearest, bool inverse,
                 bool fresh, Tensor out) {
  const std::vector<float> fills(fill.begin(), fill.end());
  WarpJob job = check_warp(images, matrices, fills, nearest, inverse, out);
  const BatchLayout& to = job.to;
  if (to.count == 0 || to.numbers() == 0) return;
  if (fresh) want_huge_pages(job.out, to.count * to.numbers() * size_of(job.type));
  const int64_t bands = (to.height + kBand - 1) / kBand;
  const int64_t grain = std::max<int64_t>(1, kWorthwhile / (kBand * to.width * to.channels));
  torch::stable::parallel_for(0, to.count * bands, grain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const Affine map = affine_of(job.matrices + i / bands * 6, job.inverse);
      const int64_t top = i % bands * kBand;
      warp_rows(job, map, i / bands, top, std::min(top + kBand, to.height));
    }
  });
}

}  // namespace
}  // namespace tarpeg

STABLE_TORCH_LIBRARY_IMPL(tarpeg, CPU, m) { m.impl("warp_affine", TORCH_BOX(&tarpeg::warp_affine)); }
