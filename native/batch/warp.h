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

// Maps target pixels to source pixels: x' = xx x + xy y + x0, y' = yx x + yy y + y0.
struct Affine {
  double xx, xy, x0, yx, yy, y0;
  bool usable;  // every number finite, and the matrix invertible if it had to be inverted
};

TARPEG_HD bool is_finite(double value) { return value - value == 0; }

// matrix: [2, 3], source to target as cv2.warpAffine takes it; `inverse`: target to source already.
TARPEG_HD Affine affine_of(const double* matrix, bool inverse) {
  Affine map = {matrix[0], matrix[1], matrix[2], matrix[3], matrix[4], matrix[5], true};
  if (!inverse) {
    const double scale = 1 / (matrix[0] * matrix[4] - matrix[1] * matrix[3]);
    map.xx = matrix[4] * scale;
    map.xy = -matrix[1] * scale;
    map.yx = -matrix[3] * scale;
    map.yy = matrix[0] * scale;
    map.x0 = -(map.xx * matrix[2] + map.xy * matrix[5]);
    map.y0 = -(map.yx * matrix[2] + map.yy * matrix[5]);
  }
  map.usable = is_finite(map.xx) && is_finite(map.xy) && is_finite(map.x0) && is_finite(map.yx) &&
               is_finite(map.yy) && is_finite(map.y0);
  return map;
}

// The source position of a span's first pixel, and the way to the next one.
struct Span {
  int32_t x, y;  // whole pixels
  float rest_x, rest_y, step_x, step_y;
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

// x: a multiple of kSpan.
TARPEG_HD Span span_at(const Affine& map, int64_t x, int64_t y) {
  const double column = static_cast<double>(x), row = static_cast<double>(y);
  Span span;
  split(map.xx * column + map.xy * row + map.x0, &span.x, &span.rest_x);
  split(map.yx * column + map.yy * row + map.y0, &span.y, &span.rest_y);
  span.step_x = step_of(map.xx);
  span.step_y = step_of(map.yx);
  return span;
}

// The floor of a position, and the distance of the position from it, 0 to 1. See Note [spans] for what is
// far.
struct Place {
  int32_t x, y;
  float right, below;
};

TARPEG_HD int32_t floored(float value, float* behind) {
  const float low = floorf(value);
  *behind = value - low;
  const float far = static_cast<float>(kFarWay);
  const float above = low > -far ? low : -far;  // NaN too
  return static_cast<int32_t>(above < far ? above : far);
}

// shift: 0, or 0.5 for the nearest pixel.
TARPEG_HD Place place_in(const Span& span, int offset, float shift) {
  const float steps = static_cast<float>(offset);
  Place place;
  place.x = span.x + floored(span.rest_x + span.step_x * steps + shift, &place.right);
  place.y = span.y + floored(span.rest_y + span.step_y * steps + shift, &place.below);
  return place;
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
  return x >= 0 && y >= 0 && x < width && y < height;
}

template <class T>
TARPEG_HD float value_at(const Picture<T>& picture, int64_t channel, int64_t x, int64_t y, float fill) {
  if (!is_inside(x, y, picture.width, picture.height)) return fill;
  return static_cast<float>(
      picture.data[channel * picture.channel_stride + y * picture.row_stride + x * picture.pixel_stride]);
}

TARPEG_HD float between(float first, float second, float share) { return first + share * (second - first); }

template <class T>
TARPEG_HD float sampled(const Picture<T>& picture, int64_t channel, const Place& place, bool nearest,
                        float fill) {
  const int64_t x = place.x, y = place.y;
  if (nearest) return value_at(picture, channel, x, y, fill);
  // Far outside, the shares may be anything.
  if (x < -1 || y < -1 || x >= picture.width || y >= picture.height) return fill;
  const float top = between(value_at(picture, channel, x, y, fill),
                            value_at(picture, channel, x + 1, y, fill), place.right);
  const float bottom = between(value_at(picture, channel, x, y + 1, fill),
                               value_at(picture, channel, x + 1, y + 1, fill), place.right);
  return between(top, bottom, place.below);
}

}  // namespace tarpeg
