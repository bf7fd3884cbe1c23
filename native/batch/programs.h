#pragma once

#include <cmath>
#include <cstdint>

#include "base/device.h"
#include "batch/levels.h"
#include "batch/warp.h"

// The arithmetic of run_programs: that of torchvision v2's functions on uint8, operation by operation and
// rounding by rounding, as torch computes it on x86. See Note [one arithmetic] in base/device.h.
namespace tarpeg {

// The same in tarpeg/ops/programs.py.
enum class Op : int32_t {
  kIdentity,
  kFlip,
  kAffine,
  kBrightness,
  kContrast,
  kSaturation,
  kHue,
  kSharpness,
  kPosterize,
  kSolarize,
  kAutocontrast,
  kEqualize,
  kInvert,
  kGrayscale,
  kBlur,
  kSolarizeAdd
};
constexpr int kValues = 6;                         // of each operation
constexpr int kMostRadius = 127;                   // of a blur, in pixels
constexpr int64_t kMostPixels = int64_t{1} << 30;  // of an image: positions are int32
constexpr int64_t kMostExact = int64_t{1} << 24;   // of a side, in float32

// The programs of a batch as plain pointers, checked.
struct Programs {
  const int32_t* ops;    // [B, chains, length], if there are any chains
  const float* values;   // [B, chains, length, kValues]
  const float* weights;  // [B, chains + 1], or null: the result is that of the only chain
  int64_t chains, length;
  bool nearest, has_fill;
  float fill[3];

  TARPEG_HD bool given() const { return chains > 0; }
  TARPEG_HD int64_t step(int64_t image, int64_t chain, int64_t at) const {
    return (image * chains + chain) * length + at;
  }
  TARPEG_HD Op op(int64_t step) const {
    const int32_t code = ops[step];
    return code >= 0 && code <= static_cast<int32_t>(Op::kSolarizeAdd) ? static_cast<Op>(code)
                                                                       : Op::kIdentity;
  }
  // What nearest interpolation puts outside of the image.
  TARPEG_HD uint8_t outside(int channel) const;
};

TARPEG_HD uint8_t Programs::outside(int channel) const { return has_fill ? rounded(fill[channel]) : 0; }

TARPEG_HD int32_t whole_gray(float r, float g, float b) {
  return static_cast<int32_t>(fused(b, 0.114f, fused(g, 0.587f, r * 0.2989f)));
}

// _blend: value * ratio + other * (1 - ratio).
TARPEG_HD float rest_of(float ratio) { return static_cast<float>(1.0 - static_cast<double>(ratio)); }
TARPEG_HD uint8_t blend_levels(float value, float ratio, float other, float rest) {
  return cut(fused(other, rest, value * ratio));
}

// What an operation needs to know about a channel before it becomes a table.
struct Statistic {
  float mean;     // gray of the image: contrast
  int low, high;  // levels that occur: autocontrast
};

TARPEG_HD float mean_of(int64_t sum, int64_t pixels) {
  return static_cast<float>(sum) / static_cast<float>(pixels);
}

TARPEG_HD bool is_table(Op op) {
  return op == Op::kBrightness || op == Op::kContrast || op == Op::kPosterize || op == Op::kSolarize ||
         op == Op::kAutocontrast || op == Op::kInvert || op == Op::kSolarizeAdd;
}

// The new value of a level, for operations that are tables; not for kEqualize.
TARPEG_HD uint8_t level_after(Op op, const float* values, const Statistic& of, int level) {
  const float x = static_cast<float>(level), first = values[0];
  switch (op) {
    case Op::kBrightness:
      return cut(x * first);
    case Op::kContrast:
      return blend_levels(x, first, of.mean, rest_of(first));
    case Op::kPosterize: {
      const int bits = first > 0 ? (first < 8 ? static_cast<int>(first) : 8) : 0;
      return static_cast<uint8_t>(level & ~(255 >> bits) & 255);
    }
    case Op::kSolarize:
      return static_cast<uint8_t>(x >= first ? 255 - level : level);
    case Op::kSolarizeAdd:
      return x < values[1] ? cut(x + first) : static_cast<uint8_t>(level);
    case Op::kAutocontrast: {
      if (of.high == of.low) return static_cast<uint8_t>(level);
      const float scale = static_cast<float>(of.high - of.low) * static_cast<float>(1.0 / 255);
      return cut(static_cast<float>(level - of.low) / scale);
    }
    case Op::kInvert:
      return static_cast<uint8_t>(255 - level);
    default:
      return static_cast<uint8_t>(level);
  }
}

// kEqualize, from a channel's histogram [256] and number of pixels.
TARPEG_HD int64_t equalise_step(const uint32_t* histogram, int64_t pixels) {
  int last = 255;
  while (last > 0 && histogram[last] == 0) --last;
  return (pixels - static_cast<int64_t>(histogram[last])) / 255;
}

// below: pixels of lower levels.
TARPEG_HD uint8_t equalised(int level, int64_t below, int64_t step) {
  const int64_t value = step == 0 ? level : (below + step / 2) / step;
  return static_cast<uint8_t>(value < 255 ? value : 255);
}

// adjust_hue: through HSV in values of 0 to 1. torchvision takes each channel from one of four numbers by the
// sector of the hue. They are v times a factor of the saturation s that rises from 1 - s to 1 over one
// sector, or falls: as `at` is held between 0 and 1, the least or the largest of two such factors has the
// same bits, without a choice.
TARPEG_HD float unit_held(float value) { return value > 0 ? (value < 1 ? value : 1.0f) : 0.0f; }
TARPEG_HD float rising(float s, float at) { return s * unit_held(at) + (1 - s); }
TARPEG_HD float falling(float s, float at) { return 1 - s * unit_held(at); }
TARPEG_HD float least(float a, float b) { return a < b ? a : b; }
TARPEG_HD float largest(float a, float b) { return a > b ? a : b; }
TARPEG_HD uint8_t from_unit(float value) {
  return static_cast<uint8_t>(static_cast<int32_t>(value * 255.999f));
}
TARPEG_HD void shift_hue(float hue, uint8_t red, uint8_t green, uint8_t blue, uint8_t* out_r, uint8_t* out_g,
                         uint8_t* out_b) {
  const float unit = static_cast<float>(1.0 / 255);
  const float r = static_cast<float>(red) * unit, g = static_cast<float>(green) * unit,
              b = static_cast<float>(blue) * unit;
  const float v = largest(largest(r, g), b), range = v - least(least(r, g), b);
  const bool is_gray = range == 0;
  const float s = range / (is_gray ? 1.0f : v), divisor = is_gray ? 1.0f : range;
  const float rc = (v - r) / divisor, gc = (v - g) / divisor, bc = (v - b) / divisor;
  const float sixths = v == r ? bc - gc : v == g ? rc + 2 - bc : gc + 4 - rc;
  const float turns = sixths * static_cast<float>(1.0 / 6) + 1;
  const float turned = (turns >= 1 ? turns - 1 : turns) + hue;
  const float h = (turned >= 1 ? turned - 1 : turned < 0 ? turned + 1 : turned) * 6;
  *out_r = from_unit(largest(falling(s, h - 1), rising(s, h - 4)) * v);
  *out_g = from_unit(least(rising(s, h), falling(s, h - 3)) * v);
  *out_b = from_unit(least(rising(s, h - 2), falling(s, h - 5)) * v);
}

// adjust_sharpness; sum: of the eight neighbours and five times the level. Thirteenths are never halves, so
// integers round as torchvision does.
TARPEG_HD uint8_t sharpened(int level, int sum, float rest) {
  const int blurred = static_cast<uint16_t>(sum + 6) / 13;
  return cut(fused(static_cast<float>(blurred - level), rest, static_cast<float>(level)));
}

// gaussian_blur: weights from the centre outwards. Weights below 1e-9 change nothing and are left out.
struct Blur {
  int radius;
  float weights[kMostRadius + 1];
};

// exp(-x) for x >= 0 from operations that every processor rounds alike; relative error below 1e-12.
TARPEG_HD double decay(double x) {
  if (!(x < 700)) return 0;
  const double y = -x / 1024;
  double power = 1 + y * (1 + y / 2 * (1 + y / 3 * (1 + y / 4 * (1 + y / 5 * (1 + y / 6)))));
  for (int i = 0; i < 10; ++i) power *= power;
  return power;
}

// values: sigma and the kernel's size. What is not a blur has radius 0: nothing changes.
TARPEG_HD void blur_of(const float* values, Blur* blur) {
  const double sigma = values[0], size = values[1];
  const int radius = size > 1 ? (size < 2 * kMostRadius + 1 ? static_cast<int>(size) / 2 : kMostRadius) : 0;
  blur->radius = 0;
  blur->weights[0] = 1;
  if (!(sigma > 0)) return;
  double total = 1;
  for (int i = 1; i <= radius; ++i) total += 2 * decay(i / sigma * (i / sigma) / 2);
  blur->weights[0] = static_cast<float>(1 / total);
  for (int i = 1; i <= radius; ++i) {
    const double weight = decay(i / sigma * (i / sigma) / 2) / total;
    if (weight < 1e-9) break;
    blur->weights[i] = static_cast<float>(weight);
    blur->radius = i;
  }
}

// The index that a position outside of 0..count-1 is reflected to, without repeating the edge.
TARPEG_HD int64_t reflected(int64_t at, int64_t count) {
  if (at >= 0 && at < count) return at;
  if (count == 1) return 0;
  const int64_t period = 2 * (count - 1), from_zero = (at % period + period) % period;
  return from_zero < count ? from_zero : period - from_zero;
}

// AugMix: weights times images, added up; each product and each sum is rounded.
TARPEG_HD float mixed_in(float sum, float weight, uint8_t level) {
  return sum + weight * static_cast<float>(level);
}

}  // namespace tarpeg
