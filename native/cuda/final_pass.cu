#include "cuda/final_pass.h"
#include "cuda/quads.h"

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

TARPEG_DEVICE void erase(const FinalPass& pass, const BatchLayout& to, int64_t image, const Quad& quad,
                         float (&v)[3][4]) {
  const int32_t* box = pass.boxes + pass.box_columns * pass.box_count * image;
  for (int64_t k = 0; k < pass.box_count; ++k, box += pass.box_columns) {
    const int64_t top = box[0], left = box[1];
    if (quad.y < top || quad.y >= top + box[2] || quad.x + 4 <= left || quad.x >= left + box[3]) continue;
    TARPEG_UNROLL for (int i = 0; i < 4; ++i) {
      if (quad.x + i < left || quad.x + i >= left + box[3]) continue;
      const int64_t at = quad.y * to.width + quad.x + i;
      TARPEG_UNROLL for (int c = 0; c < 3; ++c) v[c][i] =
          pass.box_columns == 4 ? pass.fill[c] : pass.random_level(box, at, c);
    }
  }
}

TARPEG_DEVICE void mask(const FinalPass& pass, const BatchLayout& to, int64_t image, const Quad& quad,
                        float (&v)[3][4]) {
  const int64_t line = image * pass.mask_height + quad.y * pass.mask_height / to.height;
  const uint8_t* cells = pass.mask + line * pass.mask_width;
  TARPEG_UNROLL for (int i = 0; i < 4; ++i) {
    if (i >= quad.n || !cells[(quad.x + i) * pass.mask_width / to.width]) continue;
    TARPEG_UNROLL for (int c = 0; c < 3; ++c) v[c][i] = pass.fill[c];
  }
}

template <class T>
__global__ void __launch_bounds__(kThreads) final_kernel(BatchJob job, int64_t first) {
  TARPEG_SHARED(ImagePass, own);
  const int64_t image = first + blockIdx.y;
  if (threadIdx.x == 0) own = image_pass(job.pass, image, job.from.width);
  __syncthreads();
  const Quad quad = quad_of(job.to);
  if (quad.n == 0) return;
  const Picture<uint8_t> from = job.from.picture(job.images, image);
  float v[3][4];
  if (own.is_direct) {
    fetch_direct(from, own.map, job.pass.fill, quad, v);
  } else {
    fetch_warped(from, own.map, false, job.pass.fill, quad, v);
  }
  if (own.recolours) {
    TARPEG_UNROLL for (int i = 0; i < 4; ++i) recolour(own.colour, &v[0][i], &v[1][i], &v[2][i]);
  }
  if (job.pass.boxes) erase(job.pass, job.to, image, quad, v);
  if (job.pass.mask) mask(job.pass, job.to, image, quad, v);
  if (job.type != Number::kUint8) {
    TARPEG_UNROLL for (int c = 0; c < 3; ++c) {
      TARPEG_UNROLL for (int i = 0; i < 4; ++i) v[c][i] =
          v[c][i] * job.pass.how.scale[c] + job.pass.how.shift[c];
    }
  }
  put_rgb(static_cast<T*>(job.out) + image * job.to.numbers(), job.to, quad, v);
}

}  // namespace

void run_final_pass(const BatchJob& job, const Stream& stream) {
  with_type(job.type, [&](auto zero) {
    launch_images(final_kernel<decltype(zero)>, blocks_of(job.to), job.to.count, stream, "run_batch", job);
  });
}

}  // namespace tarpeg
