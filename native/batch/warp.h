#pragma once

#include <cmath>
#include <cstdint>

#include "base/device.h"

// The source position of a target pixel, and the value there. See Note [one arithmetic] in base/device.h.
namespace tarpeg {

// Note [spans]: a position in the source is needed to about 1/1000 pixel anywhere in a large image, which
// float32 alone does not give. Each span of kSpan target pixels, aligned in its row, has its start computed
// in double and split into whole and rest; the pixels after it add a float32 step to the rest. That step and
// its multiples are wrong by up to 1.5 * 2^-23 of the way gone, at most 1/20,000 of one step: more than
// 1/1000 pixel if the image shrinks more than 20 times.
//
// Two whole numbers are added, and each is held within bounds of its own: a start that is not near becomes
// +-kFarStart, a way of more than kFarWay becomes +-kFarWay. In either case the sum is outside of
// every image, on either side: kFarWay - kNear and kFarStart - kFarWay are more than kMaxSide, and all of it
// together is an int32. So if a span goes more than kFarWay, that is from 2 million source pixels for one
// target pixel on, single pixels may remain fill.
constexpr int kSpan = 256;
constexpr int64_t kMaxSide = int64_t{1} << 28;  // of an image, in pixels
constexpr int32_t kNear = 1 << 29;
constexpr int32_t kFarWay = (1 << 29) + (1 << 28) + (1 << 26);  // a float32 as well
constexpr int32_t kFarStart = (1 << 30) + (1 << 27);
static_assert(kFarWay - kNear > kMaxSide && kFarStart - kFarWay > kMaxSide, "Note [spans]");
static_assert(int64_t{kFarStart} + kFarWay < INT32_MAX, "Note [spans]");

// One rounding, as torch's a.add(b, alpha=...) on every processor that has the instruction.
TARPEG_HD float fused(float a, float b, float c) { return fmaf(a, b, c); }

// Maps target pixels to source pixels: x' = xx x + xy y + x0, y' = yx x + yy y + y0.
struct Affine {
  double xx, xy, x0, yx, yy, y0;
};

TARPEG_HD bool is_finite(double value) { return value - value == 0; }

// matrix: [2, 3], source to target as cv2.warpAffine takes it; `inverse`: target to source already. If a
// number is not finite, or the matrix not invertible, all target pixels lie outside of the source.
TARPEG_HD Affine affine_of(const double* matrix, bool inverse) {
  Affine map = {matrix[0], matrix[1], matrix[2], matrix[3], matrix[4], matrix[5]};
  if (!inverse) {
    const double scale = 1 / (matrix[0] * matrix[4] - matrix[1] * matrix[3]);
    map.xx = matrix[4] * scale;
    map.xy = -matrix[1] * scale;
    map.yx = -matrix[3] * scale;
    map.yy = matrix[0] * scale;
    map.x0 = -(map.xx * matrix[2] + map.xy * matrix[5]);
    map.y0 = -(map.yx * matrix[2] + map.yy * matrix[5]);
  }
  const bool is_usable = is_finite(map.xx) && is_finite(map.xy) && is_finite(map.x0) && is_finite(map.yx) &&
                         is_finite(map.yy) && is_finite(map.y0);
  if (!is_usable) map = {0, 0, -1e30, 0, 0, -1e30};
  return map;
}

// Note [positions]: all warps have one arithmetic, and their positions one form: along a row of the target, a
// coordinate of the source is whole + (column * slope + along + start + one) * unit + shift, in this order of
// roundings. Only the numbers differ. Policies have torchvision's (grid_span): its bits depend on where
// float32 rounds, by up to 3e-5 pixel in images of 224 pixels, 7e-4 of 8,192 and 5e-3 of 65,536. So these
// numbers cannot keep the 1/1000 pixel of Note [spans] in images of every size; and from those of span_at()
// policies would not have torchvision's bits.
struct Way {
  int32_t whole;
  float slope, along, start, one, unit, shift;
};

TARPEG_HD float way_at(const Way& way, float column) {
  return fused(column * way.slope + way.along + way.start + way.one, way.unit, way.shift);
}

// Up to kSpan target pixels of a row; `column` is that of the first one.
struct Span {
  Way x, y;
  float column;
};

TARPEG_HD void split(double value, int32_t* whole, float* rest) {
  const double low = floor(value);
  const bool is_near = low > -kNear && low < kNear;  // no for NaN
  *whole = is_near ? static_cast<int32_t>(low) : value > 0 ? kFarStart : -kFarStart;
  *rest = is_near ? static_cast<float>(value - low) : 0.0f;
}

// Finite as float32 too: an infinite step times 0 would be NaN.
TARPEG_HD float step_of(double value) {
  return static_cast<float>(value > -1e30 ? (value < 1e30 ? value : 1e30) : -1e30);
}

TARPEG_HD Way way_from(double start, double step, float shift) {
  Way way = {0, step_of(step), 0, 0, 0, 1, shift};
  split(start, &way.whole, &way.along);
  return way;
}

// Note [spans]. x: a multiple of kSpan; shift: 0, or 0.5 for the nearest pixel.
TARPEG_HD Span span_at(const Affine& map, int64_t x, int64_t y, float shift) {
  const double column = static_cast<double>(x), row = static_cast<double>(y);
  return {way_from(map.xx * column + map.xy * row + map.x0, map.xx, shift),
          way_from(map.yx * column + map.yy * row + map.y0, map.yx, shift), 0};
}

// torchvision's positions, in the roundings of affine_grid and grid_sample: those of policies.
struct Grid {
  float xx, xy, x0, yx, yy, y0;   // to -1..1
  float half_width, half_height;  // of the source
  float left, top;                // the first pixel's position, relative to the centre
};

TARPEG_HD Grid grid_of(const float* matrix, int64_t height, int64_t width) {
  const float w = static_cast<float>(width), h = static_cast<float>(height);
  const float x = 0.5f * w, y = 0.5f * h;
  return {matrix[0] / x,  matrix[1] / x, matrix[2] / x, matrix[3] / y, matrix[4] / y, matrix[5] / y, x, y,
          (1 - w) * 0.5f, (1 - h) * 0.5f};
}

TARPEG_HD Span grid_span(const Grid& grid, int64_t x, int64_t y) {
  const float row = static_cast<float>(y) + grid.top;
  return {{0, grid.xx, row * grid.xy, grid.x0, 1, grid.half_width, -0.5f},
          {0, grid.yx, row * grid.yy, grid.y0, 1, grid.half_height, -0.5f},
          static_cast<float>(x) + grid.left};
}

// The floor of a position, and the distance of the position from it, 0 to 1. See Note [spans] for what is
// far.
struct Place {
  int32_t x, y;
  float right, below;
};

TARPEG_HD int32_t floored(float value, float* behind) {
  const float low = floorf(value), rest = value - low;
  *behind = rest > 0 ? rest : 0;  // NaN too
  const float far = static_cast<float>(kFarWay);
  const float above = low > -far ? low : -far;  // NaN too
  return static_cast<int32_t>(above < far ? above : far);
}

TARPEG_HD Place place_in(const Span& span, int offset) {
  const float column = span.column + static_cast<float>(offset);
  Place place;
  place.x = span.x.whole + floored(way_at(span.x, column), &place.right);
  place.y = span.y.whole + floored(way_at(span.y, column), &place.below);
  return place;
}

// The nearest pixel as torchvision rounds positions of a grid, half to even. Returns whether it is in the
// image.
TARPEG_HD bool find_rounded(const Span& span, int offset, float width, float height, int32_t* x, int32_t* y) {
  const float column = span.column + static_cast<float>(offset);
  const float u = rintf(way_at(span.x, column)), v = rintf(way_at(span.y, column));
  const bool is_there = (u > -1) & (u < width) & (v > -1) & (v < height);  // no for NaN
  *x = static_cast<int32_t>(is_there ? u : 0);
  *y = static_cast<int32_t>(is_there ? v : 0);
  return is_there;
}

// One image; strides in elements.
template <class T>
struct Picture {
  const T* data;
  int channels;
  int64_t height, width, channel_stride, row_stride, pixel_stride;

  TARPEG_HD bool is_planar() const { return pixel_stride == 1; }
};

TARPEG_HD bool is_inside(int64_t x, int64_t y, int64_t width, int64_t height) {
  return (x >= 0) & (y >= 0) & (x < width) & (y < height);
}

template <class T>
TARPEG_HD float value_at(const Picture<T>& picture, int64_t channel, int64_t x, int64_t y, float fill) {
  if (!is_inside(x, y, picture.width, picture.height)) return fill;
  return static_cast<float>(
      picture.data[channel * picture.channel_stride + y * picture.row_stride + x * picture.pixel_stride]);
}

// Bilinear interpolation, in torch's order of roundings.
struct Weights {
  float nw, ne, sw, se;
};

TARPEG_HD Weights weights_of(const Place& place) {
  const float w = place.right, e = 1 - w, n = place.below, s = 1 - n;
  return {e * s, w * s, e * n, w * n};
}

TARPEG_HD float weighted(const Weights& weights, float nw, float ne, float sw, float se) {
  return fused(se, weights.se, fused(sw, weights.sw, fused(ne, weights.ne, nw * weights.nw)));
}

// Whether any of the four neighbours is in the image.
TARPEG_HD bool touches(const Place& place, int64_t width, int64_t height) {
  return (place.x >= -1) & (place.y >= -1) & (place.x < width) & (place.y < height);
}

// Interpolated, with black outside of the image.
template <class T>
TARPEG_HD float blended(const Picture<T>& picture, int64_t channel, const Place& place) {
  if (!touches(place, picture.width, picture.height)) return 0;
  const int64_t x = place.x, y = place.y;
  return weighted(weights_of(place), value_at(picture, channel, x, y, 0),
                  value_at(picture, channel, x + 1, y, 0), value_at(picture, channel, x, y + 1, 0),
                  value_at(picture, channel, x + 1, y + 1, 0));
}

// The part of the weights whose neighbours are inside.
TARPEG_HD float inside_of(int64_t width, int64_t height, const Place& place) {
  if (!touches(place, width, height)) return 0;
  const int64_t x = place.x, y = place.y;
  return weighted(weights_of(place), is_inside(x, y, width, height), is_inside(x + 1, y, width, height),
                  is_inside(x, y + 1, width, height), is_inside(x + 1, y + 1, width, height));
}

// A blended value with the fill where the image is not: neighbours outside have its level, or, in
// torchvision, which policies follow, the value itself is faded once more.
TARPEG_HD float filled(float value, float inside, float fill) { return fused(1 - inside, fill, value); }
TARPEG_HD float faded(float value, float inside, float fill) { return (value - fill) * inside + fill; }

template <class T>
TARPEG_HD float sampled(const Picture<T>& picture, int64_t channel, const Place& place, float inside,
                        bool nearest, float fill) {
  if (nearest) return value_at(picture, channel, place.x, place.y, fill);
  return filled(blended(picture, channel, place), inside, fill);
}

}  // namespace tarpeg
