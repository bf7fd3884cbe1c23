#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>

#include <algorithm>

#include "base/pages.h"
#include "batch/rows.h"
#include "batch/warp.h"
#include "ops/warp_job.h"

namespace tarpeg {
namespace {

constexpr int64_t kBand = 32;             // rows of an image that one thread does at a time
constexpr int64_t kWorthwhile = 1 << 15;  // numbers below which no second thread is called

// uint8 RGB: the spans of augment_batch.
void warp_rgb(const WarpJob& job, const Affine& map, int64_t image, int64_t begin, int64_t end) {
  const BatchLayout &from = job.from, &to = job.to;
  const Source source = {static_cast<const uint8_t*>(job.images) + image * from.numbers(), from.height,
                         from.width, from.planar};
  const Target target = {static_cast<uint8_t*>(job.out) + image * to.numbers(),
                         Number::kUint8,
                         to.height,
                         to.width,
                         to.planar,
                         false};
  const float fill[3] = {job.fill_of(0), job.fill_of(1), job.fill_of(2)};
  const float nothing[3] = {};
  Row row;
  for (int64_t y = begin; y < end; ++y) {
    for (int64_t x = 0; x < to.width; x += kSpan) {
      const int n = static_cast<int>(std::min<int64_t>(kSpan, to.width - x));
      fetch_warped(source, map, job.nearest, fill, x, y, n, &row);
      store(row, nothing, nothing, x, y, n, target);
    }
  }
}

template <class T>
void warp_any(const WarpJob& job, const Affine& map, int64_t image, int64_t begin, int64_t end) {
  const Picture<T> from = job.picture<T>(image);
  T* out = static_cast<T*>(job.out) + image * job.to.numbers();
  for (int64_t y = begin; y < end; ++y) {
    for (int64_t x = 0; x < job.to.width; x += kSpan) {
      const Span span = span_at(map, x, y);
      const int n = static_cast<int>(std::min<int64_t>(kSpan, job.to.width - x));
      for (int i = 0; i < n; ++i) {
        const Place place = place_in(span, i, job.nearest ? 0.5f : 0.0f);
        T* pixel = out + y * job.to.row_stride() + (x + i) * job.to.pixel_stride();
        for (int64_t c = 0; c < job.to.channels; ++c, pixel += job.to.channel_stride()) {
          const float fill = job.fill_of(c);
          *pixel = number_from<T>(map.usable ? sampled(from, c, place, job.nearest, fill) : fill);
        }
      }
    }
  }
}

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
