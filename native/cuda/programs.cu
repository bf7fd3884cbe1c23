#include <torch/csrc/stable/library.h>

#include <algorithm>
#include <optional>
#include <vector>

#include "cuda/launch.h"
#include "cuda/quads.h"
#include "ops/program_checks.h"

// One block of threads runs one chain of one image, operation by operation, in two buffers of three planes.
namespace tarpeg {
namespace {

struct Shared {
  uint8_t tables[3][256];
  uint32_t histogram[3][256];
  unsigned long long sum;
  Blur blur;
};

// The image on its way through its program; the same in all threads of the block.
struct Canvas {
  const ProgramJob& job;
  uint8_t *now, *next;
  int64_t pixels, height, width;

  TARPEG_DEVICE void swap() {
    uint8_t* const before = now;
    now = next;
    next = before;
  }
};

TARPEG_DEVICE const uint8_t* source_of(const ProgramJob& job, int64_t image) {
  return job.images + image * job.from.numbers();
}

TARPEG_DEVICE uint8_t level_of(const uint8_t* image, const BatchLayout& layout, int c, int64_t pixel) {
  return image[c * layout.channel_stride() + pixel * layout.pixel_stride()];
}

// Between a barrier before and one after it.
TARPEG_DEVICE void count_levels(const Canvas& canvas, Shared* shared) {
  for (int c = 0; c < 3; ++c) shared->histogram[c][threadIdx.x] = 0;
  __syncthreads();
  for (int64_t i = threadIdx.x; i < canvas.pixels; i += kThreads) {
    for (int c = 0; c < 3; ++c) atomicAdd(&shared->histogram[c][canvas.now[c * canvas.pixels + i]], 1u);
  }
  __syncthreads();
}

TARPEG_DEVICE void sum_gray(const Canvas& canvas, Shared* shared) {
  if (threadIdx.x == 0) shared->sum = 0;
  __syncthreads();
  unsigned long long sum = 0;
  for (int64_t i = threadIdx.x; i < canvas.pixels; i += kThreads) {
    const uint8_t* at = canvas.now + i;
    sum += static_cast<unsigned>(whole_gray(at[0], at[canvas.pixels], at[2 * canvas.pixels]));
  }
  atomicAdd(&shared->sum, sum);
  __syncthreads();
}

TARPEG_DEVICE void look_up(const Canvas& canvas, Op op, const float* values, Shared* shared) {
  static_assert(kThreads == 256, "one level for each thread");
  const int level = static_cast<int>(threadIdx.x);
  Statistic of = {0, 0, 0};
  if (op == Op::kContrast) {
    sum_gray(canvas, shared);
    of.mean = mean_of(static_cast<int64_t>(shared->sum), canvas.pixels);
  }
  if (op == Op::kAutocontrast || op == Op::kEqualize) count_levels(canvas, shared);
  for (int c = 0; c < 3; ++c) {
    if (op == Op::kEqualize) {
      if (level == c) equalise(shared->histogram[c], canvas.pixels, shared->tables[c]);
      continue;
    }
    if (op == Op::kAutocontrast) {
      const uint32_t* counts = shared->histogram[c];
      for (of.low = 0; of.low < 255 && counts[of.low] == 0;) ++of.low;
      for (of.high = 255; of.high > 0 && counts[of.high] == 0;) --of.high;
    }
    shared->tables[c][level] = level_after(op, values, of, level);
  }
  __syncthreads();
  for (int64_t i = threadIdx.x; i < canvas.pixels; i += kThreads) {
    for (int c = 0; c < 3; ++c) {
      uint8_t* const at = canvas.now + c * canvas.pixels + i;
      *at = shared->tables[c][*at];
    }
  }
}

TARPEG_DEVICE void recolour_pixels(const Canvas& canvas, Op op, float value) {
  const float rest = rest_of(value);
  for (int64_t i = threadIdx.x; i < canvas.pixels; i += kThreads) {
    uint8_t *const r = canvas.now + i, *const g = r + canvas.pixels, *const b = g + canvas.pixels;
    const uint8_t red = *r, green = *g, blue = *b;
    if (op == Op::kHue) {
      shift_hue(value, red, green, blue, r, g, b);
      continue;
    }
    const int32_t gray = whole_gray(red, green, blue);
    const bool all = op == Op::kGrayscale;
    const float other = static_cast<float>(gray);
    *r = all ? static_cast<uint8_t>(gray) : blend_levels(red, value, other, rest);
    *g = all ? static_cast<uint8_t>(gray) : blend_levels(green, value, other, rest);
    *b = all ? static_cast<uint8_t>(gray) : blend_levels(blue, value, other, rest);
  }
}

TARPEG_DEVICE uint8_t interpolated(const ProgramJob& job, const uint8_t* plane, int c, const Taps& taps) {
  const int64_t width = job.from.width, height = job.from.height;
  float values[4], inside[4];
  TARPEG_UNROLL for (int k = 0; k < 4; ++k) {
    const int64_t x = taps.x + k % 2, y = taps.y + k / 2;
    const bool is_in = is_inside(x, y, width, height);
    values[k] = is_in ? static_cast<float>(plane[y * width + x]) : 0.0f;
    inside[k] = is_in ? 1.0f : 0.0f;
  }
  const float weights[4] = {taps.nw, taps.ne, taps.sw, taps.se};
  const float value = weighted(values[0], values[1], values[2], values[3], weights);
  if (!job.has_fill) return rounded(value);
  return rounded(filled(value, weighted(inside[0], inside[1], inside[2], inside[3], weights), job.fill[c]));
}

TARPEG_DEVICE void warp(const Canvas& canvas, const float* matrix) {
  const ProgramJob& job = canvas.job;
  const Grid grid = grid_of(matrix, canvas.height, canvas.width);
  for (int64_t i = threadIdx.x; i < canvas.pixels; i += kThreads) {
    const int x = static_cast<int>(i % canvas.width), y = static_cast<int>(i / canvas.width);
    if (job.nearest) {
      const int32_t at = index_at(grid, x, y);
      for (int c = 0; c < 3; ++c) {
        const int64_t plane = c * canvas.pixels;
        canvas.next[plane + i] = at < 0 ? job.outside(c) : canvas.now[plane + at];
      }
      continue;
    }
    const Taps taps = taps_at(grid, x, y);
    for (int c = 0; c < 3; ++c) {
      const int64_t plane = c * canvas.pixels;
      canvas.next[plane + i] = interpolated(job, canvas.now + plane, c, taps);
    }
  }
}

TARPEG_DEVICE void sharpen(const Canvas& canvas, float ratio) {
  const float rest = rest_of(ratio);
  const int64_t width = canvas.width;
  for (int64_t i = threadIdx.x; i < canvas.pixels; i += kThreads) {
    const int64_t x = i % width, y = i / width;
    const bool is_edge = x == 0 || y == 0 || x == width - 1 || y == canvas.height - 1;
    for (int c = 0; c < 3; ++c) {
      const uint8_t* at = canvas.now + c * canvas.pixels + i;
      uint8_t level = *at;
      if (!is_edge) {
        const uint8_t *above = at - width, *below = at + width;
        const int sum =
            above[-1] + above[0] + above[1] + at[-1] + 5 * at[0] + at[1] + below[-1] + below[0] + below[1];
        level = sharpened(level, sum, rest);
      }
      canvas.next[c * canvas.pixels + i] = level;
    }
  }
}

// The first pass of a blur, at one pixel.
TARPEG_DEVICE float blurred(const uint8_t* row, int64_t x, int64_t width, const Blur& blur) {
  float sum = blur.weights[0] * static_cast<float>(row[x]);
  for (int i = 1; i <= blur.radius; ++i) {
    const float before = row[reflected(x - i, width)], after = row[reflected(x + i, width)];
    sum = fused(blur.weights[i], before + after, sum);
  }
  return sum;
}

TARPEG_DEVICE void smooth(const Canvas& canvas, const Blur& blur) {
  const int64_t width = canvas.width, height = canvas.height;
  for (int64_t i = threadIdx.x; i < canvas.pixels; i += kThreads) {
    const int64_t x = i % width, y = i / width;
    for (int c = 0; c < 3; ++c) {
      const uint8_t* plane = canvas.now + c * canvas.pixels;
      float sum = blur.weights[0] * blurred(plane + y * width, x, width, blur);
      for (int k = 1; k <= blur.radius; ++k) {
        const float above = blurred(plane + reflected(y - k, height) * width, x, width, blur);
        const float below = blurred(plane + reflected(y + k, height) * width, x, width, blur);
        sum = fused(blur.weights[k], above + below, sum);
      }
      canvas.next[c * canvas.pixels + i] = rounded(sum);
    }
  }
}

// All threads of a block take the same way through this function. True: the result is in `next`.
TARPEG_DEVICE bool apply(const Canvas& canvas, Op op, const float* values, Shared* shared) {
  switch (op) {
    case Op::kIdentity:
      return false;
    case Op::kFlip:
      for (int64_t i = threadIdx.x; i < 3 * canvas.pixels; i += kThreads) {
        const int64_t x = i % canvas.width;
        canvas.next[i] = canvas.now[i - x + canvas.width - 1 - x];
      }
      return true;
    case Op::kAffine:
      warp(canvas, values);
      return true;
    case Op::kSaturation:
    case Op::kHue:
    case Op::kGrayscale:
      recolour_pixels(canvas, op, values[0]);
      return false;
    case Op::kSharpness:
      if (canvas.height <= 2 || canvas.width <= 2) return false;
      sharpen(canvas, values[0]);
      return true;
    case Op::kBlur:
      if (threadIdx.x == 0) blur_of(values, &shared->blur);
      __syncthreads();
      if (shared->blur.radius == 0) return false;
      smooth(canvas, shared->blur);
      return true;
    default:
      look_up(canvas, op, values, shared);
      return false;
  }
}

// scratch: 6 planes for each chain of each image; its result is in the first three.
__global__ void __launch_bounds__(kThreads) chain_kernel(ProgramJob job, uint8_t* scratch) {
  TARPEG_SHARED(Shared, shared);
  const int64_t image = int64_t{blockIdx.x} / job.chains, chain = int64_t{blockIdx.x} % job.chains;
  const int64_t pixels = job.from.pixels();
  uint8_t* const first = scratch + 6 * pixels * int64_t{blockIdx.x};
  Canvas canvas = {job, first, first + 3 * pixels, pixels, job.from.height, job.from.width};
  const uint8_t* source = source_of(job, image);
  for (int64_t i = threadIdx.x; i < pixels; i += kThreads) {
    for (int c = 0; c < 3; ++c) canvas.now[c * pixels + i] = level_of(source, job.from, c, i);
  }
  __syncthreads();
  for (int64_t i = 0; i < job.length; ++i) {
    const int64_t step = job.step(image, chain, i);
    if (apply(canvas, job.op(step), job.values + step * kValues, &shared)) canvas.swap();
    __syncthreads();
  }
  if (canvas.now == first) return;
  for (int64_t i = threadIdx.x; i < 3 * pixels; i += kThreads) first[i] = canvas.now[i];
}

__global__ void __launch_bounds__(kThreads)
    mix_kernel(ProgramJob job, const uint8_t* scratch, int64_t begin) {
  const int64_t image = begin + blockIdx.y, pixels = job.from.pixels();
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= pixels) return;
  const uint8_t* chains = scratch + 6 * pixels * image * job.chains;
  uint8_t* const out = job.out + image * job.to.numbers();
  for (int c = 0; c < 3; ++c) {
    uint8_t level = chains[c * pixels + i];
    if (job.weights) {
      const float* weights = job.weights + image * (job.chains + 1);
      float sum = weights[0] * static_cast<float>(level_of(source_of(job, image), job.from, c, i));
      for (int64_t k = 0; k < job.chains; ++k) {
        sum = mixed_in(sum, weights[k + 1], chains[(6 * k + c) * pixels + i]);
      }
      level = cut(sum);
    }
    out[c * job.to.channel_stride() + i * job.to.pixel_stride()] = level;
  }
}

void run_programs(Tensor images, Tensor ops, Tensor values, std::optional<Tensor> weights, bool nearest,
                  std::vector<double> fill, bool, Tensor out, int64_t) {
  const ProgramJob job = check_programs(images, ops, values, weights, nearest, fill, out);
  const int64_t pixels = job.to.pixels(), count = job.to.count;
  if (count == 0 || pixels == 0) return;
  const int64_t chains = count * job.chains;
  STD_TORCH_CHECK(chains < (int64_t{1} << 31), "ops must have fewer than 2^31 chains, got ", chains);
  const torch::stable::accelerator::DeviceGuard guard(images.get_device_index());
  const Stream stream = current_stream(images.get_device_index());
  const Tensor scratch = new_on_device(images, 6 * pixels * chains, aoti_torch_dtype_uint8());
  uint8_t* const memory = static_cast<uint8_t*>(scratch.mutable_data_ptr());
  launch(chain_kernel, dim3(static_cast<unsigned>(chains)), kThreads, stream, "run_programs", job, memory);
  const unsigned blocks = static_cast<unsigned>((pixels + kThreads - 1) / kThreads);
  for (int64_t first = 0; first < count; first += kMostImages) {
    const dim3 grid(blocks, static_cast<unsigned>(std::min(kMostImages, count - first)));
    launch(mix_kernel, grid, kThreads, stream, "run_programs", job, memory, first);
  }
}

}  // namespace
}  // namespace tarpeg

STABLE_TORCH_LIBRARY_IMPL(tarpeg, TARPEG_DISPATCH, m) {
  m.impl("run_programs", TORCH_BOX(&tarpeg::run_programs));
}
