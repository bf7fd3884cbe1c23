#pragma once

#include <cstdint>

#include "base/simd.h"
#include "batch/jobs.h"

namespace tarpeg {

// warp_affine, without threads: rows [begin, end) of one image. Of uint8 RGB:
void warp_rgb(const WarpJob& job, const Affine& map, int64_t image, int64_t begin, int64_t end);

// Of any type and number of channels.
template <class T>
TARPEG_HD void warp_any_of(const WarpJob& job, const Affine& map, int64_t image, int64_t begin, int64_t end) {
  const Picture<T> from = job.picture<T>(image);
  T* out = static_cast<T*>(job.out) + image * job.to.numbers();
  for (int64_t y = begin; y < end; ++y) {
    Span span;
    for (int64_t x = 0; x < job.to.width; ++x) {
      if (x % kSpan == 0) span = span_at(map, x, y, job.nearest ? 0.5f : 0.0f);
      const Place place = place_in(span, static_cast<int>(x % kSpan));
      const float inside = inside_of(from.width, from.height, place);
      T* pixel = out + y * job.to.row_stride() + x * job.to.pixel_stride();
      for (int64_t c = 0; c < job.to.channels; ++c, pixel += job.to.channel_stride()) {
        *pixel = number_from<T>(sampled(from, c, place, inside, job.nearest, job.fill_of(c)));
      }
    }
  }
}
#if defined(TARPEG_AVX2)
template <class T>
TARPEG_AVX2_FMA void warp_any_avx2(const WarpJob& job, const Affine& map, int64_t image, int64_t begin,
                                   int64_t end) {
  warp_any_of<T>(job, map, image, begin, end);
}
#endif
template <class T>
void warp_any(const WarpJob& job, const Affine& map, int64_t image, int64_t begin, int64_t end) {
#if defined(TARPEG_AVX2)
  if (has_avx2()) return warp_any_avx2<T>(job, map, image, begin, end);
#endif
  warp_any_of<T>(job, map, image, begin, end);
}

}  // namespace tarpeg
