#include <torch/csrc/stable/library.h>

#include <algorithm>

#include "cuda/launch.h"
#include "cuda/quads.h"

namespace tarpeg {
namespace {

template <class T>
__global__ void __launch_bounds__(kThreads) warp_kernel(WarpJob job, int64_t first) {
  TARPEG_SHARED(Affine, map);
  const int64_t image = first + blockIdx.y;
  if (threadIdx.x == 0) map = affine_of(job.matrices + image * 6, job.inverse);
  __syncthreads();
  const Quad quad = quad_of(job.to);
  if (quad.n == 0) return;
  const Picture<T> from = job.picture<T>(image);
  T* out = static_cast<T*>(job.out) + image * job.to.numbers();
  int offset;
  const Span span = span_of(map, quad, job.nearest ? 0.5f : 0.0f, &offset);
  Place places[4];
  float inside[4];
  TARPEG_UNROLL for (int i = 0; i < 4; ++i) {
    places[i] = place_in(span, offset + i);
    inside[i] = inside_of(from.width, from.height, places[i]);
  }
  if (job.to.channels == 3) {
    float v[3][4];
    TARPEG_UNROLL for (int c = 0; c < 3; ++c) {
      const float fill = job.fill_of(c);
      TARPEG_UNROLL for (int i = 0; i < 4; ++i) v[c][i] =
          sampled(from, c, places[i], inside[i], job.nearest, fill);
    }
    return put_rgb(out, job.to, quad, v);
  }
  for (int64_t c = 0; c < job.to.channels; ++c) {
    const float fill = job.fill_of(c);
    T* row = out + c * job.to.channel_stride() + quad.y * job.to.row_stride();
    TARPEG_UNROLL for (int i = 0; i < 4; ++i) {
      if (i >= quad.n) break;
      const float value = sampled(from, c, places[i], inside[i], job.nearest, fill);
      row[(quad.x + i) * job.to.pixel_stride()] = number_from<T>(value);
    }
  }
}

void warp_affine(Tensor images, Tensor matrices, std::vector<double> fill, bool nearest, bool inverse, bool,
                 Tensor out) {
  const std::vector<float> fills(fill.begin(), fill.end());
  const WarpJob job = check_warp(images, matrices, fills, nearest, inverse, out);
  if (job.to.count == 0 || job.to.numbers() == 0) return;
  const torch::stable::accelerator::DeviceGuard guard(images.get_device_index());
  const Stream stream = current_stream(images.get_device_index());
  for (int64_t first = 0; first < job.to.count; first += kMostImages) {
    const dim3 blocks = grid_of(job.to, std::min(kMostImages, job.to.count - first));
    with_type(job.type, [&](auto zero) {
      launch(warp_kernel<decltype(zero)>, blocks, kThreads, stream, "warp_affine", job, first);
    });
  }
}

}  // namespace
}  // namespace tarpeg

STABLE_TORCH_LIBRARY_IMPL(tarpeg, TARPEG_DISPATCH, m) {
  m.impl("warp_affine", TORCH_BOX(&tarpeg::warp_affine));
}
