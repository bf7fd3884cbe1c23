#include <cstring>
#include <vector>

#include "batch/engine.h"
#include "batch/program_rows.h"

namespace tarpeg {
namespace {

constexpr size_t kMostKept = size_t{64} << 20;  // bytes

// Memory of a thread, used again for every image.
struct Workspace {
  std::vector<uint8_t> levels;
  Patch patch;
  std::vector<float> numbers;

  void trim() {
    if (levels.capacity() > kMostKept) std::vector<uint8_t>().swap(levels);
    if (patch.memory.capacity() > kMostKept) patch = {};
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
class Image {
 public:
  // first and second: room for three planes each.
  Image(const BatchJob& job, const uint8_t* image, uint8_t* first, uint8_t* second, Workspace* space)
      : of_(job.programs), size_(job.from), now_(image), spare_{first, second}, space_(space) {
    clear_table();
  }

  void apply(Op op, const float* values) {
    switch (op) {
      case Op::kIdentity:
        return;
      case Op::kFlip:
        return flip();
      case Op::kAffine:
        return warp(values);
      case Op::kSaturation:
        flush();
        return replace([&](uint8_t* to) {
          programs::saturate_planes(plane(0), plane(1), plane(2), pixels(), values[0], to, to + pixels(),
                                    to + 2 * pixels());
        });
      case Op::kHue:
        flush();
        return replace([&](uint8_t* to) {
          programs::turn(plane(0), plane(1), plane(2), pixels(), values[0], to, to + pixels(),
                         to + 2 * pixels());
        });
      case Op::kGrayscale:
        flush();
        return replace([&](uint8_t* to) {
          programs::to_gray(plane(0), plane(1), plane(2), pixels(), to);
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
  int64_t height() const { return size_.height; }
  int64_t width() const { return size_.width; }
  int64_t pixels() const { return size_.pixels(); }
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
      for (int c = 0; c < 3; ++c) programs::look_up(plane(c), pixels(), tables_[c], to + c * pixels());
    });
    clear_table();
  }

  void add_table(Op op, const float* values) {
    Statistic of = {0, 0, 0};
    if (op == Op::kContrast)
      of.mean = mean_of(programs::sum_gray(plane(0), plane(1), plane(2), pixels()), pixels());
    for (int c = 0; c < 3; ++c) {
      if (op == Op::kAutocontrast) {
        uint8_t low, high;
        programs::extremes(plane(c), pixels(), &low, &high);
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
      uint32_t histogram[256] = {};
      uint32_t counts[4][256] = {};  // four: equal neighbours do not wait for each other
      const uint8_t* levels = plane(c);
      int64_t i = 0;
      for (; i + 4 <= pixels(); i += 4) {
        for (int k = 0; k < 4; ++k) ++counts[k][levels[i + k]];
      }
      for (; i < pixels(); ++i) ++counts[0][levels[i]];
      for (int level = 0; level < 256; ++level) {
        for (int k = 0; k < 4; ++k) histogram[tables_[c][level]] += counts[k][level];
      }
      const int64_t step = equalise_step(histogram, pixels());
      uint8_t after[256];
      int64_t below = 0;
      for (int level = 0; level < 256; ++level) {
        after[level] = equalised(level, below, step);
        below += histogram[level];
      }
      for (uint8_t& level : tables_[c]) level = after[level];
    }
    has_table_ = true;
  }

  void flip() {
    replace([&](uint8_t* to) {
      for (int64_t row = 0; row < 3 * height(); ++row) {
        programs::reverse(now_ + row * width(), width(), to + row * width());
      }
    });
  }

  void warp(const float* matrix) {
    flush();
    const Grid grid = grid_of(matrix, height(), width());
    Patch& patch = space_->patch;
    const BatchLayout planes = {1, 3, height(), width(), true};
    patch.copy(planes.picture(now_, 0), {0, width()}, {0, height()});
    uint32_t outside = 0;
    for (int c = 0; c < 3; ++c) outside |= uint32_t{of_.outside(c)} << (8 * c);
    replace([&](uint8_t* to) {
      over_tiles(width(), 0, height(), [&](const Tile& tile) {
        const int n = static_cast<int>(tile.width);
        for (int64_t y = tile.top; y < tile.top + tile.height; ++y) {
          const Span span = grid_span(grid, tile.left, y);
          uint8_t *const r = to + y * width() + tile.left, *const g = r + pixels(), *const b = g + pixels();
          if (of_.nearest) {
            pick_levels(patch, span, outside, n, r, g, b);
          } else {
            warp_levels(patch, span, of_.has_fill ? of_.fill : nullptr, n, r, g, b);
          }
        }
      });
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
          programs::sharpen(here - width(), here, here + width(), width(), rest, line);
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
    const float* pointers[2 * kMostRadius + 1];
    const float** const rows = pointers + kMostRadius;
    replace([&](uint8_t* to) {
      for (int c = 0; c < 3; ++c) {
        for (int64_t i = -radius; i <= radius; ++i) rows[i] = padded + i;
        for (int64_t y = 0; y < height(); ++y) {
          const uint8_t* from = plane(c) + y * width();
          programs::widen(from, width(), padded);
          for (int64_t i = 1; i <= radius; ++i) {
            padded[-i] = from[reflected(-i, width())];
            padded[width() - 1 + i] = from[reflected(width() - 1 + i, width())];
          }
          programs::blur_row(rows, blur, width(), smooth + y * width());
        }
        for (int64_t y = 0; y < height(); ++y) {
          for (int64_t i = -radius; i <= radius; ++i) rows[i] = smooth + reflected(y + i, height()) * width();
          programs::blur_row(rows, blur, width(), sum);
          programs::round_row(sum, width(), to + c * pixels() + y * width());
        }
      }
    });
  }

  const Programs& of_;
  const BatchLayout& size_;
  const uint8_t* now_;
  uint8_t* spare_[2];
  Workspace* space_;
  bool has_table_;
  uint8_t tables_[3][256];
};

}  // namespace

void run_program(const BatchJob& job, int64_t image) {
  static thread_local Workspace space;
  const Programs& of = job.programs;
  const int64_t pixels = job.from.pixels(), numbers = 3 * pixels;
  const int64_t results = of.weights ? of.chains : 0;
  uint8_t* const memory = room(&space.levels, static_cast<size_t>((4 + results) * numbers));
  const uint8_t* source = job.images + image * numbers;
  if (!job.from.planar) {
    programs::split(source, pixels, memory, memory + pixels, memory + 2 * pixels);
    source = memory;
  }
  std::vector<const uint8_t*> parts = {source};
  for (int64_t chain = 0; chain < of.chains; ++chain) {
    Image picture(job, source, memory + numbers, memory + 2 * numbers, &space);
    for (int64_t i = 0; i < of.length; ++i) {
      const int64_t step = of.step(image, chain, i);
      picture.apply(of.op(step), of.values + step * kValues);
    }
    parts.push_back(picture.result());
    if (!of.weights || parts.back() == source) continue;
    uint8_t* const kept = memory + (4 + chain) * numbers;
    std::memcpy(kept, parts.back(), static_cast<size_t>(numbers));
    parts.back() = kept;
  }
  const uint8_t* result = parts.back();
  const bool ends = !job.pass.numbers;
  uint8_t* const spare = memory + (result == memory + numbers ? 2 : 1) * numbers;
  uint8_t* const levels = ends ? static_cast<uint8_t*>(job.out) + image * numbers : spare;
  if (of.weights) {
    uint8_t* const mixed = ends && job.to.planar ? levels : memory + 3 * numbers;
    programs::mix(parts.data(), of.weights + image * (of.chains + 1), of.chains + 1, numbers, mixed);
    result = mixed;
  }
  if (!job.to.planar) {  // the final pass, too, is fastest from the order that it writes
    programs::join(result, result + pixels, result + 2 * pixels, pixels, levels);
    result = levels;
  } else if (ends && result != levels) {
    std::memcpy(levels, result, static_cast<size_t>(numbers));
  }
  if (!ends) {
    const BatchLayout made = {1, 3, job.from.height, job.from.width, job.to.planar};
    run_final_pass(job, made.picture(result, 0), image, 0, job.to.height);
  }
  space.trim();
}

}  // namespace tarpeg
