#include <torch/csrc/stable/library.h>

#include <algorithm>
#include <optional>
#include <vector>

#include "cuda/final_pass.h"
#include "cuda/launch.h"
#include "cuda/quads.h"
#include "ops/batch_checks.h"

// run_batch. Each operation of all programs takes three launches: statistics of whole images, tables made of
// them, and the new levels, one block for each tile of a chain's image. So few images use a whole GPU too.
namespace tarpeg {
namespace {

constexpr int kTile = 32;                // side of a tile in pixels
constexpr int kRows = kThreads / kTile;  // of a tile, written at once
constexpr int64_t kCounted = 4096;       // pixels that a block counts

// Statistics of a chain's image for one operation; zeros before it.
struct Facts {
  unsigned long long sum;  // of gray levels
  uint32_t histogram[3][256];
  uint8_t tables[3][256];
  Blur blur;
};

// An image [3, H, W] in any order in memory.
template <class T>
struct Planes {
  T* data;
  int64_t channel, pixel;  // strides

  TARPEG_DEVICE T& at(int c, int64_t i) const { return data[c * channel + i * pixel]; }
  TARPEG_DEVICE Picture<uint8_t> picture(int64_t height, int64_t width) const {
    return {data, 3, height, width, channel, width * pixel, pixel};
  }
};

// Operation `at` of every chain of every image, numbered together.
struct Step {
  BatchJob job;  // its result are levels
  Facts* facts;  // [B * chains]
  // [0 to 2, B * chains, 3, H, W]: results, by turns; without weights the last one goes to out.
  uint8_t* canvases;
  int64_t at;

  TARPEG_DEVICE const Programs& of() const { return job.programs; }
  TARPEG_DEVICE Op op(int64_t chain) const { return of().op(chain * of().length + at); }
  TARPEG_DEVICE const float* values(int64_t chain) const {
    return of().values + (chain * of().length + at) * kValues;
  }
  TARPEG_DEVICE Planes<uint8_t> canvas(int64_t number, int64_t chain) const {
    const int64_t pixels = job.from.pixels(), chains = job.from.count * of().chains;
    return {canvases + (number % 2 * chains + chain) * 3 * pixels, pixels, 1};
  }
  TARPEG_DEVICE Planes<const uint8_t> source(int64_t image) const {
    return {job.images + image * job.from.numbers(), job.from.channel_stride(), job.from.pixel_stride()};
  }
  TARPEG_DEVICE Planes<const uint8_t> from(int64_t chain) const {
    if (at == 0) return source(chain / of().chains);
    const Planes<uint8_t> before = canvas(at - 1, chain);
    return {before.data, before.channel, before.pixel};
  }
  TARPEG_DEVICE Planes<uint8_t> to(int64_t chain) const {
    return of().weights || at < of().length - 1 ? canvas(at, chain) : result(chain);
  }
  TARPEG_DEVICE Planes<uint8_t> result(int64_t image) const {
    return {static_cast<uint8_t*>(job.out) + image * job.to.numbers(), job.to.channel_stride(),
            job.to.pixel_stride()};
  }
};

__global__ void __launch_bounds__(kThreads) count_kernel(Step step, int64_t first) {
  struct Counts {
    uint32_t levels[3][256];
  };
  TARPEG_SHARED(Counts, counts);
  static_assert(kThreads == 256, "one level for each thread");
  const int64_t chain = first + blockIdx.y, begin = int64_t{blockIdx.x} * kCounted;
  const int64_t pixels = step.job.from.pixels(), end = begin + kCounted < pixels ? begin + kCounted : pixels;
  const Planes<const uint8_t> from = step.from(chain);
  const Op op = step.op(chain);
  if (op == Op::kContrast) {
    uint32_t sum = 0;
    for (int64_t i = begin + threadIdx.x; i < end; i += kThreads) {
      sum += static_cast<uint32_t>(whole_gray(from.at(0, i), from.at(1, i), from.at(2, i)));
    }
    add_from_warp(&step.facts[chain].sum, sum);
  }
  if (op != Op::kAutocontrast && op != Op::kEqualize) return;
  for (int c = 0; c < 3; ++c) counts.levels[c][threadIdx.x] = 0;
  __syncthreads();
  for (int64_t i = begin + threadIdx.x; i < end; i += kThreads) {
    for (int c = 0; c < 3; ++c) atomicAdd(&counts.levels[c][from.at(c, i)], 1u);
  }
  __syncthreads();
  for (int c = 0; c < 3; ++c) {
    const uint32_t count = counts.levels[c][threadIdx.x];
    if (count > 0) atomicAdd(&step.facts[chain].histogram[c][threadIdx.x], count);
  }
}

__global__ void __launch_bounds__(kThreads) table_kernel(Step step, int64_t first) {
  const int64_t chain = first + blockIdx.y, pixels = step.job.from.pixels();
  const int level = static_cast<int>(threadIdx.x);
  const float* values = step.values(chain);
  Facts& facts = step.facts[chain];
  const Op op = step.op(chain);
  if (op == Op::kBlur && level == 0) blur_of(values, &facts.blur);
  if (op != Op::kEqualize && !is_table(op)) return;
  for (int c = 0; c < 3; ++c) {
    const uint32_t* counts = facts.histogram[c];
    if (op == Op::kEqualize) {
      int64_t below = 0;
      for (int i = 0; i < level; ++i) below += counts[i];
      facts.tables[c][level] = equalised(level, below, equalise_step(counts, pixels));
      continue;
    }
    Statistic of = {0, 0, 0};
    if (op == Op::kContrast) of.mean = mean_of(static_cast<int64_t>(facts.sum), pixels);
    if (op == Op::kAutocontrast) {
      for (of.low = 0; of.low < 255 && counts[of.low] == 0;) ++of.low;
      for (of.high = 255; of.high > 0 && counts[of.high] == 0;) --of.high;
    }
    facts.tables[c][level] = level_after(op, values, of, level);
  }
}

// The tile of a block, and the image that it is a part of.
struct Tile {
  const Programs& programs;
  Planes<const uint8_t> from;
  Planes<uint8_t> to;
  int height, width;  // of the image
  int top, left;      // of the tile

  // Calls each(x, y, pixel) for the pixels of the tile, of which every thread has its own.
  template <class Each>
  TARPEG_DEVICE void over(const Each& each) const {
    const int x = left + static_cast<int>(threadIdx.x) % kTile;
    const int first = top + static_cast<int>(threadIdx.x) / kTile;
    for (int y = first; y < top + kTile && y < height && x < width; y += kRows) {
      each(x, y, int64_t{y} * width + x);
    }
  }
};

TARPEG_DEVICE void copy(const Tile& tile, bool mirrored) {
  tile.over([&](int x, int, int64_t i) {
    const int64_t at = mirrored ? i - x + tile.width - 1 - x : i;
    for (int c = 0; c < 3; ++c) tile.to.at(c, i) = tile.from.at(c, at);
  });
}

TARPEG_DEVICE void look_up(const Tile& tile, const Facts& facts) {
  tile.over([&](int, int, int64_t i) {
    for (int c = 0; c < 3; ++c) tile.to.at(c, i) = facts.tables[c][tile.from.at(c, i)];
  });
}

TARPEG_DEVICE void recolour(const Tile& tile, Op op, float value) {
  const float rest = rest_of(value);
  tile.over([&](int, int, int64_t i) {
    const uint8_t red = tile.from.at(0, i), green = tile.from.at(1, i), blue = tile.from.at(2, i);
    uint8_t *const r = &tile.to.at(0, i), *const g = &tile.to.at(1, i), *const b = &tile.to.at(2, i);
    if (op == Op::kHue) return shift_hue(value, red, green, blue, r, g, b);
    const int32_t gray = whole_gray(red, green, blue);
    const bool all = op == Op::kGrayscale;
    const float other = static_cast<float>(gray);
    *r = all ? static_cast<uint8_t>(gray) : blend_levels(red, value, other, rest);
    *g = all ? static_cast<uint8_t>(gray) : blend_levels(green, value, other, rest);
    *b = all ? static_cast<uint8_t>(gray) : blend_levels(blue, value, other, rest);
  });
}

TARPEG_DEVICE void warp(const Tile& tile, const float* matrix) {
  const Programs& programs = tile.programs;
  const Grid grid = grid_of(matrix, tile.height, tile.width);
  const Picture<uint8_t> from = tile.from.picture(tile.height, tile.width);
  tile.over([&](int x, int y, int64_t i) {
    const Span span = grid_span(grid, x, y);
    if (programs.nearest) {
      int32_t column, row;
      const bool is_there = find_rounded(span, 0, static_cast<float>(tile.width),
                                         static_cast<float>(tile.height), &column, &row);
      const int64_t at = int64_t{row} * tile.width + column;
      for (int c = 0; c < 3; ++c) tile.to.at(c, i) = is_there ? tile.from.at(c, at) : programs.outside(c);
      return;
    }
    const Place place = place_in(span, 0);
    const float inside = inside_of(tile.width, tile.height, place);
    for (int c = 0; c < 3; ++c) {
      const float value = blended(from, c, place);
      tile.to.at(c, i) = rounded(programs.has_fill ? faded(value, inside, programs.fill[c]) : value);
    }
  });
}

TARPEG_DEVICE void sharpen(const Tile& tile, float ratio) {
  const float rest = rest_of(ratio);
  const int64_t width = tile.width;
  tile.over([&](int x, int y, int64_t i) {
    const bool is_edge = x == 0 || y == 0 || x == tile.width - 1 || y == tile.height - 1;
    for (int c = 0; c < 3; ++c) {
      const int level = tile.from.at(c, i);
      if (is_edge) {
        tile.to.at(c, i) = static_cast<uint8_t>(level);
        continue;
      }
      int sum = 4 * level;
      TARPEG_UNROLL for (int k = -1; k <= 1; ++k) {
        const int64_t at = i + k * width;
        sum += tile.from.at(c, at - 1) + tile.from.at(c, at) + tile.from.at(c, at + 1);
      }
      tile.to.at(c, i) = sharpened(level, sum, rest);
    }
  });
}

// The first pass of a blur: the columns of the tile, and rows for the second pass above and below it.
struct Smoothed {
  float rows[kTile + 2 * kMostRadius][kTile];
};

TARPEG_DEVICE void smooth(const Tile& tile, const Blur& blur, Smoothed* smoothed) {
  const int column = static_cast<int>(threadIdx.x) % kTile, x = tile.left + column, radius = blur.radius;
  const int bottom = tile.top + kTile < tile.height ? kTile : tile.height - tile.top;
  const bool is_inner = x >= radius && x + radius < tile.width;
  for (int c = 0; c < 3; ++c) {
    for (int row = static_cast<int>(threadIdx.x) / kTile; row < bottom + 2 * radius; row += kRows) {
      if (x >= tile.width) break;
      const int64_t line = reflected(tile.top - radius + row, tile.height) * tile.width;
      float sum = blur.weights[0] * static_cast<float>(tile.from.at(c, line + x));
      for (int k = 1; k <= radius; ++k) {
        const int64_t left = is_inner ? x - k : reflected(x - k, tile.width);
        const int64_t right = is_inner ? x + k : reflected(x + k, tile.width);
        const float before = tile.from.at(c, line + left), after = tile.from.at(c, line + right);
        sum = fused(blur.weights[k], before + after, sum);
      }
      smoothed->rows[row][column] = sum;
    }
    __syncthreads();
    tile.over([&](int, int y, int64_t i) {
      const int row = y - tile.top + radius;
      float sum = blur.weights[0] * smoothed->rows[row][column];
      for (int k = 1; k <= radius; ++k) {
        const float above = smoothed->rows[row - k][column], below = smoothed->rows[row + k][column];
        sum = fused(blur.weights[k], above + below, sum);
      }
      tile.to.at(c, i) = rounded(sum);
    });
    __syncthreads();
  }
}

__global__ void __launch_bounds__(kThreads) level_kernel(Step step, int64_t first) {
  TARPEG_SHARED(Smoothed, smoothed);
  const int64_t chain = first + blockIdx.y;
  const int height = static_cast<int>(step.job.from.height), width = static_cast<int>(step.job.from.width);
  const int index = static_cast<int>(blockIdx.x), across = (width + kTile - 1) / kTile;
  const Tile tile = {step.of(), step.from(chain),       step.to(chain),        height,
                     width,     index / across * kTile, index % across * kTile};
  const Facts& facts = step.facts[chain];
  const float* values = step.values(chain);
  const Op op = step.op(chain);
  switch (op) {
    case Op::kIdentity:
    case Op::kFlip:
      return copy(tile, op == Op::kFlip);
    case Op::kAffine:
      return warp(tile, values);
    case Op::kSaturation:
    case Op::kHue:
    case Op::kGrayscale:
      return recolour(tile, op, values[0]);
    case Op::kSharpness:
      return height <= 2 || width <= 2 ? copy(tile, false) : sharpen(tile, values[0]);
    case Op::kBlur:
      return facts.blur.radius == 0 ? copy(tile, false) : smooth(tile, facts.blur, &smoothed);
    default:
      return look_up(tile, facts);
  }
}

// After the last operation: the weighted sum of chains and image, or, of no operations, the image.
__global__ void __launch_bounds__(kThreads) mix_kernel(Step step, int64_t first) {
  const Programs& of = step.of();
  const int64_t image = first + blockIdx.y, i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= step.job.from.pixels()) return;
  const Planes<const uint8_t> source = step.source(image);
  const Planes<uint8_t> result = step.result(image);
  for (int c = 0; c < 3; ++c) {
    uint8_t level = source.at(c, i);
    if (of.weights) {
      const float* weights = of.weights + image * (of.chains + 1);
      float sum = weights[0] * static_cast<float>(level);
      for (int64_t k = 0; k < of.chains; ++k) {
        sum = mixed_in(sum, weights[k + 1], step.from(image * of.chains + k).at(c, i));
      }
      level = cut(sum);
    }
    result.at(c, i) = level;
  }
}

// Runs the programs of all images, then the final pass on their results.
void run_programs(const BatchJob& job, const Tensor& images, const Stream& stream) {
  const Programs& of = job.programs;
  const int64_t pixels = job.from.pixels(), count = job.from.count, chains = count * of.chains;
  STD_TORCH_CHECK(chains < (int64_t{1} << 31), "ops must have fewer than 2^31 chains, got ", chains);
  const int64_t known = static_cast<int64_t>(sizeof(Facts)) * chains;
  const int64_t kept = std::min<int64_t>(of.weights ? of.length : std::max<int64_t>(of.length - 1, 0), 2);
  const int64_t canvases = kept * chains, results = job.pass.numbers ? count : 0;
  const Tensor scratch =
      new_on_device(images, known + (canvases + results) * 3 * pixels, aoti_torch_dtype_uint8());
  uint8_t* const memory = static_cast<uint8_t*>(scratch.mutable_data_ptr());
  Step step = {job, reinterpret_cast<Facts*>(memory), memory + known, 0};
  if (results > 0) {
    step.job.out = memory + known + canvases * 3 * pixels;
    step.job.to = {count, 3, job.from.height, job.from.width, true};
  }
  const auto parts = [](int64_t whole, int64_t part) { return (whole + part - 1) / part; };
  const int64_t tiles = parts(job.from.width, kTile) * parts(job.from.height, kTile);
  for (; step.at < of.length; ++step.at) {
    clear_async(memory, static_cast<size_t>(known), stream);
    launch_images(count_kernel, parts(pixels, kCounted), chains, stream, "run_programs", step);
    launch_images(table_kernel, 1, chains, stream, "run_programs", step);
    launch_images(level_kernel, tiles, chains, stream, "run_programs", step);
  }
  if (of.weights || of.length == 0)
    launch_images(mix_kernel, parts(pixels, kThreads), count, stream, "run_programs", step);
  if (results == 0) return;
  BatchJob last = job;
  last.images = static_cast<const uint8_t*>(step.job.out);
  last.from = step.job.to;
  run_final_pass(last, stream);
}

void run_batch(Tensor images, std::optional<Tensor> ops, std::optional<Tensor> values,
               std::optional<Tensor> weights, bool nearest, std::vector<double> border,
               std::optional<Tensor> numbers, int64_t parts, std::optional<Tensor> boxes,
               std::optional<Tensor> cells, std::vector<double> constants, bool, Tensor out, int64_t) {
  const BatchJob job = check_batch(images, ops, values, weights, nearest, border, numbers, parts, boxes,
                                   cells, constants, out);
  if (job.to.count == 0 || job.to.pixels() == 0) return;
  const torch::stable::accelerator::DeviceGuard guard(images.get_device_index());
  const Stream stream = current_stream(images.get_device_index());
  if (job.programs.given()) return run_programs(job, images, stream);
  run_final_pass(job, stream);
}

}  // namespace
}  // namespace tarpeg

STABLE_TORCH_LIBRARY_IMPL(tarpeg, TARPEG_DISPATCH, m) { m.impl("run_batch", TORCH_BOX(&tarpeg::run_batch)); }
