#pragma once

#include <algorithm>
#include <cstdint>

#include "batch/jobs.h"

// warp_affine on the CPU, without threads: rows [begin, end) of one image.
namespace tarpeg {

// uint8 RGB, by the stages of augment_batch.
void warp_rgb(const WarpJob& job, const Affine& map, int64_t image, int64_t begin, int64_t end);

// Any type and number of channels.
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

}  // namespace tarpeg
