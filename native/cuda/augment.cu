#include <torch/csrc/stable/library.h>

#include <algorithm>

#include "cuda/launch.h"
#include "cuda/quads.h"
#include "ops/batch_checks.h"

namespace tarpeg {
namespace {

TARPEG_DEVICE uint32_t four_bytes(const uint8_t* data) {
  if (is_aligned(data)) return *reinterpret_cast<const uint32_t*>(data);
  return data[0] | data[1] << 8 | data[2] << 16 | static_cast<uint32_t>(data[3]) << 24;
}

TARPEG_DEVICE float byte_of(uint32_t word, int at) { return static_cast<float>(word >> (8 * at) & 255); }

// Four neighbours, from left to right.
TARPEG_DEVICE void read_rgb(const uint8_t* pixel, const Picture<uint8_t>& from, float (&v)[3][4]) {
  if (from.pixel_stride == 1) {
    TARPEG_UNROLL for (int c = 0; c < 3; ++c) {
      const uint32_t word = four_bytes(pixel + c * from.channel_stride);
      TARPEG_UNROLL for (int i = 0; i < 4; ++i) v[c][i] = byte_of(word, i);
    }
    return;
  }
  const uint32_t words[3] = {four_bytes(pixel), four_bytes(pixel + 4), four_bytes(pixel + 8)};
  TARPEG_UNROLL for (int c = 0; c < 3; ++c) {
    TARPEG_UNROLL for (int i = 0; i < 4; ++i) v[c][i] = byte_of(words[(3 * i + c) / 4], (3 * i + c) % 4);
  }
}

TARPEG_DEVICE void fetch_direct(const Picture<uint8_t>& from, const Affine& map, const float* fill,
                                const Quad& quad, float (&v)[3][4]) {
  const int64_t step = static_cast<int64_t>(map.xx), x = step * quad.x + static_cast<int64_t>(map.x0);
  const int64_t y = static_cast<int64_t>(map.yy) * quad.y + static_cast<int64_t>(map.y0);
  const int64_t left = step > 0 ? x : x - 3;
  if (y < 0 || y >= from.height || left < 0 || left + 3 >= from.width) {
    TARPEG_UNROLL for (int c = 0; c < 3; ++c) {
      TARPEG_UNROLL for (int i = 0; i < 4; ++i) v[c][i] = value_at(from, c, x + step * i, y, fill[c]);
    }
    return;
  }
  read_rgb(from.data + y * from.row_stride + left * from.pixel_stride, from, v);
  if (step > 0) return;
  TARPEG_UNROLL for (int c = 0; c < 3; ++c) {
    const float first = v[c][0], second = v[c][1];
    v[c][0] = v[c][3];
    v[c][1] = v[c][2];
    v[c][2] = second;
    v[c][3] = first;
  }
}

TARPEG_DEVICE void fetch_warped(const Picture<uint8_t>& from, const Affine& map, const float* fill,
                                const Quad& quad, float (&v)[3][4]) {
  if (!map.usable) return fill_rgb(fill, v);
  int offset;
  const Span span = span_of(map, quad, &offset);
  TARPEG_UNROLL for (int i = 0; i < 4; ++i) {
    const Place place = place_in(span, offset + i, 0.0f);
    TARPEG_UNROLL for (int c = 0; c < 3; ++c) v[c][i] = sampled(from, c, place, false, fill[c]);
  }
}

// The quad after geometry and brightness.
TARPEG_DEVICE void fetch(const AugmentJob& job, const Plan& plan, int64_t image, const Quad& quad,
                         float (&v)[3][4]) {
  const BatchLayout& layout = job.from;
  const Picture<uint8_t> from = {job.images + image * layout.numbers(),
                                 layout.height,
                                 layout.width,
                                 layout.channel_stride(),
                                 layout.row_stride(),
                                 layout.pixel_stride()};
  if (plan.is_direct) {
    fetch_direct(from, plan.map, job.fill, quad, v);
  } else {
    fetch_warped(from, plan.map, job.fill, quad, v);
  }
  if (!(plan.parts & kBrightness)) return;
  TARPEG_UNROLL for (int c = 0; c < 3; ++c) {
    TARPEG_UNROLL for (int i = 0; i < 4; ++i) v[c][i] = scaled(v[c][i], plan.brightness);
  }
}

TARPEG_DEVICE void colour(const Plan& plan, float (&v)[3][4]) {
  TARPEG_UNROLL for (int i = 0; i < 4; ++i) {
    float *r = &v[0][i], *g = &v[1][i], *b = &v[2][i];
    if (plan.parts & kContrast) {
      TARPEG_UNROLL for (int c = 0; c < 3; ++c) v[c][i] = blended(v[c][i], plan.contrast, plan.mean_part);
    }
    if (plan.parts & kSaturation) saturate(plan.saturation, r, g, b);
    if (plan.parts & kHue) turn_hue(plan.hue, r, g, b);
    if (plan.parts & kColour) recolour(plan.colour, r, g, b);
  }
}

TARPEG_DEVICE void erase(const AugmentJob& job, int64_t image, const Quad& quad, float (&v)[3][4]) {
  const int32_t* box = job.boxes + job.box_columns * job.box_count * image;
  for (int64_t k = 0; k < job.box_count; ++k, box += job.box_columns) {
    const int64_t top = box[0], left = box[1];
    if (quad.y < top || quad.y >= top + box[2] || quad.x + 4 <= left || quad.x >= left + box[3]) continue;
    TARPEG_UNROLL for (int i = 0; i < 4; ++i) {
      if (quad.x + i < left || quad.x + i >= left + box[3]) continue;
      const int64_t at = quad.y * job.to.width + quad.x + i;
      TARPEG_UNROLL for (int c = 0; c < 3; ++c) v[c][i] =
          job.box_columns == 4 ? job.fill[c] : job.random_level(box, at, c);
    }
  }
}

TARPEG_DEVICE void mask(const AugmentJob& job, int64_t image, const Quad& quad, float (&v)[3][4]) {
  const int64_t line = image * job.mask_height + quad.y * job.mask_height / job.to.height;
  const uint8_t* cells = job.mask + line * job.mask_width;
  TARPEG_UNROLL for (int i = 0; i < 4; ++i) {
    if (i >= quad.n || !cells[(quad.x + i) * job.mask_width / job.to.width]) continue;
    TARPEG_UNROLL for (int c = 0; c < 3; ++c) v[c][i] = job.fill[c];
  }
}

__global__ void __launch_bounds__(kThreads)
    gray_kernel(AugmentJob job, unsigned long long* sums, int64_t first) {
  TARPEG_SHARED(Plan, plan);
  const int64_t image = first + blockIdx.y;
  if (threadIdx.x == 0) plan = plan_of(job.numbers + image * kColumns, job.parts, job.from.width);
  __syncthreads();
  if (!(plan.parts & kContrast)) return;
  const Quad quad = quad_of(job.to);
  uint32_t units = 0;
  if (quad.n > 0) {
    float v[3][4];
    fetch(job, plan, image, quad, v);
    TARPEG_UNROLL for (int i = 0; i < 4; ++i) units += i < quad.n ? gray_units(v[0][i], v[1][i], v[2][i]) : 0;
  }
  add_from_warp(sums + image, units);
}

template <class T>
__global__ void __launch_bounds__(kThreads)
    augment_kernel(AugmentJob job, const unsigned long long* sums, int64_t first) {
  TARPEG_SHARED(Plan, plan);
  const int64_t image = first + blockIdx.y;
  if (threadIdx.x == 0) {
    Plan whole = plan_of(job.numbers + image * kColumns, job.parts, job.from.width);
    if (sums)
      whole.mean_part = mean_part_of(static_cast<int64_t>(sums[image]), job.to.pixels(), whole.contrast);
    plan = whole;
  }
  __syncthreads();
  const Quad quad = quad_of(job.to);
  if (quad.n == 0) return;
  float v[3][4];
  fetch(job, plan, image, quad, v);
  if (plan.parts & ~kBrightness) colour(plan, v);
  if (job.boxes) erase(job, image, quad, v);
  if (job.mask) mask(job, image, quad, v);
  if (job.type != Number::kUint8) {
    TARPEG_UNROLL for (int c = 0; c < 3; ++c) {
      TARPEG_UNROLL for (int i = 0; i < 4; ++i) v[c][i] = v[c][i] * job.how.scale[c] + job.how.shift[c];
    }
  }
  put_rgb(static_cast<T*>(job.out) + image * job.to.numbers(), job.to, quad, v);
}

template <class T>
void run(const AugmentJob& job, unsigned long long* sums, const Stream& stream) {
  for (int64_t first = 0; first < job.to.count; first += kMostImages) {
    const dim3 blocks = grid_of(job.to, std::min(kMostImages, job.to.count - first));
    if (sums) launch(gray_kernel, blocks, kThreads, stream, "augment_batch", job, sums, first);
    launch(augment_kernel<T>, blocks, kThreads, stream, "augment_batch", job, sums, first);
  }
}

void augment_batch(Tensor images, Tensor numbers, int64_t parts, std::optional<Tensor> boxes,
                   std::optional<Tensor> cells, std::vector<double> constants, bool, Tensor out) {
  const AugmentJob job = check_augment(images, numbers, parts, boxes, cells, constants, out);
  if (job.to.count == 0 || job.to.pixels() == 0) return;
  const torch::stable::accelerator::DeviceGuard guard(images.get_device_index());
  const Stream stream = current_stream(images.get_device_index());
  // One kernel, except for contrast: every pixel then depends on the mean of all, which a first kernel adds
  // up.
  std::optional<Tensor> sums;
  unsigned long long* sum = nullptr;
  if (job.parts & kContrast) {
    sums = new_on_device(images, job.to.count, aoti_torch_dtype_int64());
    sum = static_cast<unsigned long long*>(sums->mutable_data_ptr());
    clear_async(sum, static_cast<size_t>(job.to.count) * sizeof *sum, stream);
  }
  switch (job.type) {
    case Number::kUint8:
      return run<uint8_t>(job, sum, stream);
    case Number::kFloat32:
      return run<float>(job, sum, stream);
    case Number::kFloat16:
      return run<torch::headeronly::Half>(job, sum, stream);
    case Number::kBFloat16:
      return run<torch::headeronly::BFloat16>(job, sum, stream);
  }
}

}  // namespace
}  // namespace tarpeg

STABLE_TORCH_LIBRARY_IMPL(tarpeg, TARPEG_DISPATCH, m) {
  m.impl("augment_batch", TORCH_BOX(&tarpeg::augment_batch));
}
