#include <torch/csrc/stable/library.h>

#include <vector>

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
  if (job.to.channels == 3) {
    const float fill[3] = {job.fill_of(0), job.fill_of(1), job.fill_of(2)};
    float v[3][4];
    fetch_warped(from, map, job.nearest, fill, quad, v);
    return put_rgb(out, job.to, quad, v);
  }
  const int offset = static_cast<int>(quad.x % kSpan);
  const Span span = span_at(map, quad.x - offset, quad.y, job.nearest ? 0.5f : 0.0f);
  for (int i = 0; i < quad.n; ++i) {
    const Place place = place_in(span, offset + i);
    const float inside = inside_of(from.width, from.height, place);
    T* pixel = out + quad.y * job.to.row_stride() + (quad.x + i) * job.to.pixel_stride();
    for (int64_t c = 0; c < job.to.channels; ++c, pixel += job.to.channel_stride()) {
      *pixel = number_from<T>(sampled(from, c, place, inside, job.nearest, job.fill_of(c)));
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
  with_type(job.type, [&](auto zero) {
    launch_images(warp_kernel<decltype(zero)>, blocks_of(job.to), job.to.count, stream, "warp_affine", job);
  });
}

}  // namespace
}  // namespace tarpeg

STABLE_TORCH_LIBRARY_IMPL(tarpeg, TARPEG_DISPATCH, m) {
  m.impl("warp_affine", TORCH_BOX(&tarpeg::warp_affine));
}
