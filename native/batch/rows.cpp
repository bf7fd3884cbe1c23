#include "batch/rows.h"

#include <torch/headeronly/util/BFloat16.h>
#include <torch/headeronly/util/Half.h>

#include <algorithm>

#include "base/simd.h"
#include "batch/rows_simd.h"

namespace tarpeg {
namespace {

TARPEG_HD void brightness_of(const Plan& plan, int n, Row* row) {
  const float ratio = plan.brightness;
  for (int i = 0; i < n; ++i) {
    row->r[i] = scaled(row->r[i], ratio);
    row->g[i] = scaled(row->g[i], ratio);
    row->b[i] = scaled(row->b[i], ratio);
  }
}

TARPEG_HD int64_t gray_sum_of(int n, const Row& row) {
  int32_t sum = 0;  // at most 256 * 255 * 1024
  for (int i = 0; i < n; ++i) sum += gray_units(row.r[i], row.g[i], row.b[i]);
  return sum;
}

TARPEG_HD void contrast_of(const Plan& plan, int n, Row* row) {
  const float ratio = plan.contrast, part = plan.mean_part;
  for (int i = 0; i < n; ++i) {
    row->r[i] = blended(row->r[i], ratio, part);
    row->g[i] = blended(row->g[i], ratio, part);
    row->b[i] = blended(row->b[i], ratio, part);
  }
}

TARPEG_HD void saturation_of(const Plan& plan, int n, Row* row) {
  const float ratio = plan.saturation;
  for (int i = 0; i < n; ++i) saturate(ratio, &row->r[i], &row->g[i], &row->b[i]);
}

TARPEG_HD void hue_of(const Plan& plan, int n, Row* row) {
  const float turn = plan.hue;
  for (int i = 0; i < n; ++i) turn_hue(turn, &row->r[i], &row->g[i], &row->b[i]);
}

TARPEG_HD void recolour_of(const Plan& plan, int n, Row* row) {
  float matrix[12];
  std::copy(plan.colour, plan.colour + 12, matrix);
  for (int i = 0; i < n; ++i) recolour(matrix, &row->r[i], &row->g[i], &row->b[i]);
}

TARPEG_HD void colour_of(const Plan& plan, int n, Row* row) {
  if (plan.parts & kContrast) contrast_of(plan, n, row);
  if (plan.parts & kSaturation) saturation_of(plan, n, row);
  if (plan.parts & kHue) hue_of(plan, n, row);
  if (plan.parts & kColour) recolour_of(plan, n, row);
}

// The same loops for two processors: what is inlined into the second of each pair is compiled for AVX2.
void brightness_portable(const Plan& plan, int n, Row* row) { brightness_of(plan, n, row); }
int64_t gray_sum_portable(int n, const Row& row) { return gray_sum_of(n, row); }
void colour_portable(const Plan& plan, int n, Row* row) { colour_of(plan, n, row); }
#if defined(TARPEG_X86)
TARPEG_AVX2 void brightness_avx2(const Plan& plan, int n, Row* row) { brightness_of(plan, n, row); }
TARPEG_AVX2 int64_t gray_sum_avx2(int n, const Row& row) { return gray_sum_of(n, row); }
TARPEG_AVX2 void colour_avx2(const Plan& plan, int n, Row* row) { colour_of(plan, n, row); }
#endif

void fill_part(const float* fill, int64_t begin, int64_t end, Row* row) {
  if (end <= begin) return;
  std::fill(row->r + begin, row->r + end, fill[0]);
  std::fill(row->g + begin, row->g + end, fill[1]);
  std::fill(row->b + begin, row->b + end, fill[2]);
}

template <class T>
void store_as(const Row& row, const float* scale, const float* shift, int64_t x, int64_t y, int begin, int n,
              const Target& target) {
  T* out = static_cast<T*>(target.data);
  const float* channels[3] = {row.r, row.g, row.b};
  const int64_t pixel = y * target.width + x, plane = target.height * target.width;
  for (int64_t c = 0; c < 3; ++c) {
    for (int i = begin; i < n; ++i) {
      const int64_t at = target.planar ? c * plane + pixel + i : 3 * (pixel + i) + c;
      if constexpr (std::is_same_v<T, uint8_t>) {
        out[at] = to_level(channels[c][i]);
      } else {
        out[at] = static_cast<T>(channels[c][i] * scale[c] + shift[c]);
      }
    }
  }
}

}  // namespace

void fetch_direct(const Source& source, const Affine& map, const float* fill, int64_t x, int64_t y, int n,
                  Row* row) {
  const int64_t source_y = static_cast<int64_t>(map.yy) * y + static_cast<int64_t>(map.y0);
  const int64_t step = static_cast<int64_t>(map.xx), first = step * x + static_cast<int64_t>(map.x0);
  // Which of the n pixels come from inside the image: 0 <= first + step * i < width.
  int64_t begin = step > 0 ? -first : first - source.width + 1,
          end = step > 0 ? source.width - first : first + 1;
  begin = std::min<int64_t>(std::max<int64_t>(begin, 0), n);
  end = std::max(begin, std::min<int64_t>(end, n));
  if (source_y < 0 || source_y >= source.height) end = begin = 0;
  fill_part(fill, 0, begin, row);
  fill_part(fill, end, n, row);
  if (begin == end) return;
  const Picture<uint8_t> from = source.picture();
  const uint8_t* pixel = from.data + source_y * from.row_stride + (first + step * begin) * from.pixel_stride;
  const int count = static_cast<int>(end - begin);
  const int done = direct_simd(pixel, from, step < 0, count, static_cast<int>(begin), row);
  pixel += done * step * from.pixel_stride;
  for (int64_t i = begin + done; i < end; ++i, pixel += step * from.pixel_stride) {
    row->r[i] = static_cast<float>(pixel[0]);
    row->g[i] = static_cast<float>(pixel[from.channel_stride]);
    row->b[i] = static_cast<float>(pixel[2 * from.channel_stride]);
  }
}

void fetch_warped(const Source& source, const Affine& map, bool nearest, const float* fill, int64_t x,
                  int64_t y, int n, Row* row) {
  if (!map.usable) return fill_part(fill, 0, n, row);
  const Picture<uint8_t> from = source.picture();
  const Span span = span_at(map, x, y);
  for (int i = warped_simd(source, span, nearest, fill, n, row); i < n; ++i) {
    const Place place = place_in(span, i, nearest ? 0.5f : 0.0f);
    row->r[i] = sampled(from, 0, place, nearest, fill[0]);
    row->g[i] = sampled(from, 1, place, nearest, fill[1]);
    row->b[i] = sampled(from, 2, place, nearest, fill[2]);
  }
}

void apply_brightness(const Plan& plan, int n, Row* row) {
  if (!(plan.parts & kBrightness)) return;
#if defined(TARPEG_X86)
  if (has_avx2()) return brightness_avx2(plan, n, row);
#endif
  brightness_portable(plan, n, row);
}

int64_t sum_gray(int n, const Row& row) {
#if defined(TARPEG_X86)
  if (has_avx2()) return gray_sum_avx2(n, row);
#endif
  return gray_sum_portable(n, row);
}

void apply_colour(const Plan& plan, int n, Row* row) {
  if (!(plan.parts & ~kBrightness)) return;
#if defined(TARPEG_X86)
  if (has_avx2()) return colour_avx2(plan, n, row);
#endif
  colour_portable(plan, n, row);
}

void store(const Row& row, const float* scale, const float* shift, int64_t x, int64_t y, int n,
           const Target& target) {
  const int done = store_simd(row, scale, shift, x, y, n, target);
  switch (target.type) {
    case Number::kUint8:
      return store_as<uint8_t>(row, scale, shift, x, y, done, n, target);
    case Number::kFloat32:
      return store_as<float>(row, scale, shift, x, y, done, n, target);
    case Number::kFloat16:
      return store_as<torch::headeronly::Half>(row, scale, shift, x, y, done, n, target);
    case Number::kBFloat16:
      return store_as<torch::headeronly::BFloat16>(row, scale, shift, x, y, done, n, target);
  }
}

}  // namespace tarpeg
