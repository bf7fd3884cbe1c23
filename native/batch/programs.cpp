#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "base/simd.h"
#include "batch/programs_cpu.h"

namespace tarpeg {
namespace {

constexpr int64_t kBlock = 1024;                // pixels of which intermediate results are kept
constexpr size_t kMostKept = size_t{64} << 20;  // bytes

// Each loop below is compiled twice: NAME_of, inlined into a function for AVX2 and FMA, becomes vector code.
#if defined(TARPEG_X86)
#define TARPEG_TWICE(type, name, parameters, arguments)                       \
  TARPEG_AVX2_FMA type name##_avx2 parameters { return name##_of arguments; } \
  type name parameters {                                                      \
    if (has_avx2()) return name##_avx2 arguments;                             \
    return name##_of arguments;                                               \
  }
#else
#define TARPEG_TWICE(type, name, parameters, arguments) \
  type name parameters { return name##_of arguments; }
#endif

using In = const uint8_t* __restrict;
using Out = uint8_t* __restrict;

// Between interleaved pixels and planes.
TARPEG_HD void split_of(In pixels, int64_t n, Out r, Out g, Out b) {
  for (int64_t i = 0; i < n; ++i) {
    r[i] = pixels[3 * i];
    g[i] = pixels[3 * i + 1];
    b[i] = pixels[3 * i + 2];
  }
}
TARPEG_TWICE(void, split, (In pixels, int64_t n, Out r, Out g, Out b), (pixels, n, r, g, b))

TARPEG_HD void join_of(In r, In g, In b, int64_t n, Out pixels) {
  for (int64_t i = 0; i < n; ++i) {
    pixels[3 * i] = r[i];
    pixels[3 * i + 1] = g[i];
    pixels[3 * i + 2] = b[i];
  }
}
TARPEG_TWICE(void, join, (In r, In g, In b, int64_t n, Out pixels), (r, g, b, n, pixels))

TARPEG_HD void look_up_of(In levels, int64_t n, In table, Out out) {
  for (int64_t i = 0; i < n; ++i) out[i] = table[levels[i]];
}
TARPEG_TWICE(void, look_up, (In levels, int64_t n, In table, Out out), (levels, n, table, out))

TARPEG_HD void extremes_of(In levels, int64_t n, uint8_t* lowest, uint8_t* highest) {
  uint8_t low = 255, high = 0;
  for (int64_t i = 0; i < n; ++i) {
    low = levels[i] < low ? levels[i] : low;
    high = levels[i] > high ? levels[i] : high;
  }
  *lowest = low;
  *highest = high;
}
TARPEG_TWICE(void, extremes, (In levels, int64_t n, uint8_t* low, uint8_t* high), (levels, n, low, high))

TARPEG_HD void to_gray_of(In r, In g, In b, int64_t n, Out gray) {
  for (int64_t i = 0; i < n; ++i) gray[i] = static_cast<uint8_t>(whole_gray(r[i], g[i], b[i]));
}
TARPEG_TWICE(void, to_gray, (In r, In g, In b, int64_t n, Out gray), (r, g, b, n, gray))

TARPEG_HD int64_t sum_gray_of(In r, In g, In b, int64_t n) {
  int64_t sum = 0;
  for (int64_t begin = 0; begin < n; begin += kBlock) {
    const int64_t end = begin + kBlock < n ? begin + kBlock : n;
    int32_t part = 0;
    for (int64_t i = begin; i < end; ++i) part += whole_gray(r[i], g[i], b[i]);
    sum += part;
  }
  return sum;
}
TARPEG_TWICE(int64_t, sum_gray, (In r, In g, In b, int64_t n), (r, g, b, n))

TARPEG_HD void saturate_planes_of(In r, In g, In b, int64_t n, float ratio, Out out_r, Out out_g, Out out_b) {
  const float rest = rest_of(ratio);
  for (int64_t i = 0; i < n; ++i) {
    const float red = r[i], green = g[i], blue = b[i];
    const float gray = static_cast<float>(whole_gray(red, green, blue));
    out_r[i] = blend_levels(red, ratio, gray, rest);
    out_g[i] = blend_levels(green, ratio, gray, rest);
    out_b[i] = blend_levels(blue, ratio, gray, rest);
  }
}
TARPEG_TWICE(void, saturate_planes, (In r, In g, In b, int64_t n, float ratio, Out x, Out y, Out z),
             (r, g, b, n, ratio, x, y, z))

TARPEG_HD void turn_of(In r, In g, In b, int64_t n, float hue, Out out_r, Out out_g, Out out_b) {
  for (int64_t i = 0; i < n; ++i) shift_hue(hue, r[i], g[i], b[i], out_r + i, out_g + i, out_b + i);
}
TARPEG_TWICE(void, turn, (In r, In g, In b, int64_t n, float hue, Out x, Out y, Out z),
             (r, g, b, n, hue, x, y, z))

// One row, without its first and last pixel.
TARPEG_HD void sharpen_of(In above, In here, In below, int64_t width, float rest, Out out) {
  for (int64_t i = 1; i < width - 1; ++i) {
    const int sum = above[i - 1] + above[i] + above[i + 1] + here[i - 1] + 5 * here[i] + here[i + 1] +
                    below[i - 1] + below[i] + below[i + 1];
    out[i] = sharpened(here[i], sum, rest);
  }
}
TARPEG_TWICE(void, sharpen, (In above, In here, In below, int64_t width, float rest, Out out),
             (above, here, below, width, rest, out))

TARPEG_HD void indices_of(const Grid& whole, int y, int width, int32_t* __restrict out) {
  const Grid grid = whole;
  for (int x = 0; x < width; ++x) out[x] = index_at(grid, x, y);
}
TARPEG_TWICE(void, indices, (const Grid& grid, int y, int width, int32_t* __restrict out),
             (grid, y, width, out))

// sum = weight * (first + second) + sum
TARPEG_HD void add_pair_of(const float* first, const float* second, int64_t n, float weight,
                           float* __restrict sum) {
  for (int64_t i = 0; i < n; ++i) sum[i] = fused(weight, first[i] + second[i], sum[i]);
}
TARPEG_TWICE(void, add_pair, (const float* a, const float* b, int64_t n, float weight, float* __restrict sum),
             (a, b, n, weight, sum))

TARPEG_HD void scale_row_of(const float* from, int64_t n, float weight, float* __restrict out) {
  for (int64_t i = 0; i < n; ++i) out[i] = weight * from[i];
}
TARPEG_TWICE(void, scale_row, (const float* from, int64_t n, float weight, float* __restrict out),
             (from, n, weight, out))

TARPEG_HD void round_row_of(const float* __restrict from, int64_t n, Out out) {
  for (int64_t i = 0; i < n; ++i) out[i] = rounded(from[i]);
}
TARPEG_TWICE(void, round_row, (const float* __restrict from, int64_t n, Out out), (from, n, out))

TARPEG_HD void mix_of(const uint8_t* const* parts, const float* weights, int64_t count, int64_t n, Out out) {
  float sum[kBlock];
  for (int64_t begin = 0; begin < n; begin += kBlock) {
    const int64_t block = n - begin < kBlock ? n - begin : kBlock;
    for (int64_t part = 0; part < count; ++part) {
      In levels = parts[part] + begin;
      const float weight = weights[part];
      if (part == 0) {
        for (int64_t i = 0; i < block; ++i) sum[i] = weight * static_cast<float>(levels[i]);
      } else {
        for (int64_t i = 0; i < block; ++i) sum[i] = mixed_in(sum[i], weight, levels[i]);
      }
    }
    for (int64_t i = 0; i < block; ++i) out[begin + i] = cut(sum[i]);
  }
}
TARPEG_TWICE(void, mix,
             (const uint8_t* const* parts, const float* weights, int64_t count, int64_t n, Out out),
             (parts, weights, count, n, out))

// Memory of a thread, used again for every image.
struct Workspace {
  std::vector<uint8_t> levels;
  std::vector<float> numbers;
  std::vector<int32_t> indices;

  ~Workspace() = default;
  void trim() {
    if (levels.capacity() > kMostKept) std::vector<uint8_t>().swap(levels);
    if (numbers.capacity() * sizeof(float) > kMostKept) std::vector<float>().swap(numbers);
  }
};

template <class T>
T* room(std::vector<T>* memory, size_t count) {
  if (memory->size() < count) memory->resize(count);
  return memory->data();
}

// One image on its way through a program: three planes. Operations that are tables wait until pixels are
// needed, so that several in a row are one.
class Picture3 {
 public:
  // first and second: room for three planes each.
  Picture3(const ProgramJob& job, const uint8_t* image, uint8_t* first, uint8_t* second, Workspace* space)
      : job_(job), now_(image), spare_{first, second}, space_(space) {
    clear_table();
  }

  void apply(Op op, const float* values) {
    switch (op) {
      case Op::kIdentity:
        return;
      case Op::kFlip:
        return flip();
      case Op::kAffine:
        return job_.nearest ? warp_nearest(values) : warp_bilinear(values);
      case Op::kSaturation:
        flush();
        return replace([&](uint8_t* to) {
          saturate_planes(plane(0), plane(1), plane(2), pixels(), values[0], to, to + pixels(),
                          to + 2 * pixels());
        });
      case Op::kHue:
        flush();
        return replace([&](uint8_t* to) {
          turn(plane(0), plane(1), plane(2), pixels(), values[0], to, to + pixels(), to + 2 * pixels());
        });
      case Op::kGrayscale:
        flush();
        return replace([&](uint8_t* to) {
          to_gray(plane(0), plane(1), plane(2), pixels(), to);
          std::memcpy(to + pixels(), to, pixels());
          std::memcpy(to + 2 * pixels(), to, pixels());
        });
      case Op::kSharpness:
        return sharpen_planes(values[0]);
      case Op::kBlur:
        return blur(values);
      case Op::kEqualize:
        return equalise_planes();
      case Op::kContrast:
      case Op::kAutocontrast:
        flush();
        [[fallthrough]];
      default:
        return add_table(op, values);
    }
  }

  const uint8_t* result() {
    flush();
    return now_;
  }

 private:
  int64_t height() const { return job_.from.height; }
  int64_t width() const { return job_.from.width; }
  int64_t pixels() const { return job_.from.pixels(); }
  const uint8_t* plane(int channel) const { return now_ + channel * pixels(); }

  // make(to) computes the new planes from now_.
  template <class Make>
  void replace(const Make& make) {
    uint8_t* const to = spare_[now_ == spare_[0]];
    make(to);
    now_ = to;
  }

  void clear_table() {
    has_table_ = false;
    for (auto& table : tables_) {
      for (int level = 0; level < 256; ++level) table[level] = static_cast<uint8_t>(level);
    }
  }

  void flush() {
    if (!has_table_) return;
    replace([&](uint8_t* to) {
      for (int c = 0; c < 3; ++c) look_up(plane(c), pixels(), tables_[c], to + c * pixels());
    });
    clear_table();
  }

  void add_table(Op op, const float* values) {
    Statistic of = {0, 0, 0};
    if (op == Op::kContrast) of.mean = mean_of(sum_gray(plane(0), plane(1), plane(2), pixels()), pixels());
    for (int c = 0; c < 3; ++c) {
      if (op == Op::kAutocontrast) {
        uint8_t low, high;
        extremes(plane(c), pixels(), &low, &high);
        of.low = low;
        of.high = high;
      }
      uint8_t after[256];
      for (int level = 0; level < 256; ++level) after[level] = level_after(op, values, of, level);
      for (uint8_t& level : tables_[c]) level = after[level];
    }
    has_table_ = true;
  }

  void equalise_planes() {
    for (int c = 0; c < 3; ++c) {
      int64_t counts[4][256] = {}, histogram[256] = {};  // four: equal neighbours do not wait for each other
      const uint8_t* levels = plane(c);
      for (int64_t i = 0; i < pixels(); ++i) ++counts[i & 3][levels[i]];
      for (int level = 0; level < 256; ++level) {
        histogram[tables_[c][level]] +=
            counts[0][level] + counts[1][level] + counts[2][level] + counts[3][level];
      }
      uint8_t after[256];
      equalise(histogram, pixels(), after);
      for (uint8_t& level : tables_[c]) level = after[level];
    }
    has_table_ = true;
  }

  void flip() {
    replace([&](uint8_t* to) {
      for (int64_t row = 0; row < 3 * height(); ++row) {
        const uint8_t* from = now_ + row * width();
        std::reverse_copy(from, from + width(), to + row * width());
      }
    });
  }

  void warp_nearest(const float* matrix) {
    const Grid grid = grid_of(matrix, height(), width());
    int32_t* const row = room(&space_->indices, static_cast<size_t>(width()));
    const uint8_t outside[3] = {job_.outside(0), job_.outside(1), job_.outside(2)};
    replace([&](uint8_t* to) {
      for (int64_t y = 0; y < height(); ++y, to += width()) {
        indices(grid, static_cast<int>(y), static_cast<int>(width()), row);
        for (int c = 0; c < 3; ++c) {
          const uint8_t *from = plane(c), *table = tables_[c];
          uint8_t* out = to + c * pixels();
          for (int64_t x = 0; x < width(); ++x) out[x] = row[x] < 0 ? outside[c] : table[from[row[x]]];
        }
      }
    });
    clear_table();
  }

  void warp_bilinear(const float* matrix) {
    flush();
    const Grid grid = grid_of(matrix, height(), width());
    replace([&](uint8_t* to) {
      for (int64_t y = 0; y < height(); ++y, to += width()) {
        for (int64_t x = 0; x < width(); ++x) {
          const Taps taps = taps_at(grid, static_cast<int>(x), static_cast<int>(y));
          for (int c = 0; c < 3; ++c) to[c * pixels() + x] = interpolated(job_, c, plane(c), taps);
        }
      }
    });
  }

  void sharpen_planes(float ratio) {
    if (height() <= 2 || width() <= 2) return;
    flush();
    const float rest = rest_of(ratio);
    replace([&](uint8_t* to) {
      for (int c = 0; c < 3; ++c) {
        const uint8_t* from = plane(c);
        uint8_t* out = to + c * pixels();
        std::memcpy(out, from, width());
        for (int64_t y = 1; y < height() - 1; ++y) {
          const uint8_t* here = from + y * width();
          uint8_t* line = out + y * width();
          line[0] = here[0];
          line[width() - 1] = here[width() - 1];
          sharpen(here - width(), here, here + width(), width(), rest, line);
        }
        std::memcpy(out + pixels() - width(), from + pixels() - width(), width());
      }
    });
  }

  void blur(const float* values) {
    Blur blur;
    blur_of(values, &blur);
    if (blur.radius == 0) return;
    flush();
    const int64_t radius = blur.radius;
    float* const smooth = room(&space_->numbers, static_cast<size_t>(pixels() + 2 * (width() + radius)));
    float *const padded = smooth + pixels() + radius, *const sum = padded + width() + radius;
    replace([&](uint8_t* to) {
      for (int c = 0; c < 3; ++c) {
        for (int64_t y = 0; y < height(); ++y) {
          const uint8_t* from = plane(c) + y * width();
          for (int64_t x = 0; x < width(); ++x) padded[x] = from[x];
          for (int64_t i = 1; i <= radius; ++i) {
            padded[-i] = from[reflected(-i, width())];
            padded[width() - 1 + i] = from[reflected(width() - 1 + i, width())];
          }
          float* row = smooth + y * width();
          scale_row(padded, width(), blur.weights[0], row);
          for (int64_t i = 1; i <= radius; ++i)
            add_pair(padded - i, padded + i, width(), blur.weights[i], row);
        }
        for (int64_t y = 0; y < height(); ++y) {
          scale_row(smooth + y * width(), width(), blur.weights[0], sum);
          for (int64_t i = 1; i <= radius; ++i) {
            add_pair(smooth + reflected(y - i, height()) * width(),
                     smooth + reflected(y + i, height()) * width(), width(), blur.weights[i], sum);
          }
          round_row(sum, width(), to + c * pixels() + y * width());
        }
      }
    });
  }

  const ProgramJob& job_;
  const uint8_t* now_;
  uint8_t* spare_[2];
  Workspace* space_;
  bool has_table_;
  uint8_t tables_[3][256];
};

}  // namespace

void run_program(const ProgramJob& job, int64_t image) {
  static thread_local Workspace space;
  const int64_t pixels = job.from.pixels(), numbers = 3 * pixels;
  const int64_t results = job.weights ? job.chains : 0;
  uint8_t* const memory = room(&space.levels, static_cast<size_t>((4 + results) * numbers));
  const uint8_t* source = job.images + image * numbers;
  if (!job.from.planar) {
    split(source, pixels, memory, memory + pixels, memory + 2 * pixels);
    source = memory;
  }
  std::vector<const uint8_t*> parts = {source};
  for (int64_t chain = 0; chain < job.chains; ++chain) {
    Picture3 picture(job, source, memory + numbers, memory + 2 * numbers, &space);
    for (int64_t i = 0; i < job.length; ++i) {
      const int64_t step = job.step(image, chain, i);
      picture.apply(job.op(step), job.values + step * kValues);
    }
    parts.push_back(picture.result());
    if (!job.weights || parts.back() == source) continue;
    uint8_t* const kept = memory + (4 + chain) * numbers;
    std::memcpy(kept, parts.back(), static_cast<size_t>(numbers));
    parts.back() = kept;
  }
  const uint8_t* result = parts.back();
  uint8_t* const out = job.out + image * numbers;
  if (job.weights) {
    uint8_t* const mixed = job.to.planar ? out : memory + 3 * numbers;
    mix(parts.data(), job.weights + image * (job.chains + 1), job.chains + 1, numbers, mixed);
    result = mixed;
  }
  if (!job.to.planar) {
    join(result, result + pixels, result + 2 * pixels, pixels, out);
  } else if (result != out) {
    std::memcpy(out, result, static_cast<size_t>(numbers));
  }
  space.trim();
}

}  // namespace tarpeg
