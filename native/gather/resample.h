#pragma once

#include "gather/idct.h"

// From planes to the pixels of the result: the arithmetic of jpeg/color.cpp, image/row_passes.cpp,
// image/column_pass.cpp and image/pixels.cpp, one number at a time.
namespace tarpeg::gather {

constexpr int kBlendBits = 7, kMostBetween = 255 << kBlendBits;

// A sum of 32 bits, which only wraps where a tensor is damaged, within 16 bits.
TARPEG_HD int shifted(uint32_t sum, int shift) {
  return within(static_cast<int>(sum) >> shift, -32768, 32767);
}

// A sample of a plane; of those that are decoded, the next one.
TARPEG_HD int sample_at(const Plane& plane, const uint8_t* memory, int y, int x) {
  const int row = within(y - plane.top, 0, plane.rows - 1),
            column = within(x - plane.left, 0, plane.columns - 1);
  return memory[plane.samples + static_cast<uint64_t>(row) * plane.columns + column];
}

// Pixel (y, x) of the image in a component: PlaneReader::upsampled() of jpeg/planes.cpp. The image's
// outermost samples are repeated beyond its edges.
TARPEG_HD int upsampled(const Plane& plane, const uint8_t* memory, int y, int x) {
  const int near_y = y / plane.repeat_down, near_x = x / plane.repeat_across;
  const int near = sample_at(plane, memory, near_y, near_x);
  if (!plane.mixes_across && !plane.mixes_down) return near;
  const bool is_lower = y % plane.repeat_down != 0, is_right = x % plane.repeat_across != 0;
  const int far_y = within(is_lower ? near_y + 1 : near_y - 1, 0, plane.height - 1);
  const int far_x = within(is_right ? near_x + 1 : near_x - 1, 0, plane.width - 1);
  if (!plane.mixes_across)
    return (3 * near + sample_at(plane, memory, far_y, near_x) + (is_lower ? 2 : 1)) >> 2;
  const int side = sample_at(plane, memory, near_y, far_x);
  if (!plane.mixes_down) return (3 * near + side + (is_right ? 2 : 1)) >> 2;
  const int own = 3 * near + sample_at(plane, memory, far_y, near_x);
  const int other = 3 * side + sample_at(plane, memory, far_y, far_x);
  return (3 * own + other + (is_right ? 7 : 8)) >> 4;
}

TARPEG_HD uint8_t clamped(int level) { return static_cast<uint8_t>(within(level, 0, 255)); }

struct Rgb {
  uint8_t channels[3];
};

// libjpeg's rounding: jpeg/color.cpp.
TARPEG_HD Rgb rgb_of(int y, int cb, int cr) {
  constexpr int kRed = 26345, kBlue = -14942, kGreenBlue = -22554, kGreenRed = 18734, kHalf = 1 << 15;
  cb -= 128;
  cr -= 128;
  const int red = ((2 * cr * kRed >> 16) + 1) >> 1, blue = ((2 * cb * kBlue >> 16) + 1) >> 1;
  const int green = (kGreenBlue * cb + kGreenRed * cr + kHalf) >> 16;
  return {{clamped(y + cr + red), clamped(y - cr + green), clamped(y + 2 * cb + blue)}};
}

// Pixel `number` of the reduced box, to a plane of each channel.
TARPEG_HD void convert_pixel(const Plan& plan, int64_t number, uint8_t* memory) {
  const int y = plan.box.top + static_cast<int>(number / plan.box.width);
  const int x = plan.box.left + static_cast<int>(number % plan.box.width);
  const int luma = upsampled(plan.planes[0], memory, y, x);
  const int64_t plane = static_cast<int64_t>(plan.box.height) * plan.box.width;
  uint8_t* const out = memory + plan.pixels + number;
  if (plan.wanted == 1) {
    for (int c = 0; c < plan.channels; ++c) out[c * plane] = static_cast<uint8_t>(luma);
    return;
  }
  const Rgb rgb =
      rgb_of(luma, upsampled(plan.planes[1], memory, y, x), upsampled(plan.planes[2], memory, y, x));
  for (int c = 0; c < 3; ++c) out[c * plane] = rgb.channels[c];
}

// Numbers between the passes of a channel, or of a component of kPlanes: number x of line y.
TARPEG_HD int16_t* line_at(const Plan& plan, int channel, int y, uint8_t* memory) {
  const bool is_plane = plan.way == Way::kPlanes;
  const int line = is_plane ? plan.planes[channel].columns : plan.line;
  const int64_t before = is_plane ? y : static_cast<int64_t>(channel) * plan.lines + y;
  return reinterpret_cast<int16_t*>(memory + (is_plane ? plan.planes[channel].between : plan.between)) +
         before * line;
}

// How many numbers of a channel are between the passes.
TARPEG_HD int64_t between_count(const Plan& plan, int channel) {
  if (plan.way == Way::kPlanes) return static_cast<int64_t>(plan.out_rows) * plan.planes[channel].columns;
  return static_cast<int64_t>(plan.lines) * plan.line;
}

// The first pass of resampling, of one number.
TARPEG_HD void first_pass(const Plan& plan, int channel, int64_t number, uint8_t* memory) {
  if (plan.way == Way::kPlanes) {
    const Plane& plane = plan.planes[channel];
    const AxisPlan& axis = plan.axes[plan.axis_of[channel]];
    const AxisView rows(axis, memory);
    const int y = static_cast<int>(number / plane.columns), x = static_cast<int>(number % plane.columns);
    const int first = rows.start[y] + (axis.times > 1 ? 0 : plan.box.top);
    const int16_t* const weights = rows.weights_of(y);
    int sum = 0;
    for (int tap = 0; tap < rows.counts[y]; ++tap)
      sum += weights[tap] * (sample_at(plane, memory, first + tap, plane.left + x) - 128);
    line_at(plan, channel, y, memory)[x] = static_cast<int16_t>(sum);
    return;
  }
  const bool is_rows = plan.way == Way::kRows;
  const AxisView axis(plan.axes[is_rows ? 0 : 1], memory);
  const int y = static_cast<int>(number / plan.line), x = static_cast<int>(number % plan.line);
  const int output = is_rows ? y : x;
  const int64_t channel_at = static_cast<int64_t>(channel) * plan.box.height * plan.box.width;
  const uint8_t* const pixels = memory + plan.pixels + channel_at;
  const int16_t* const weights = axis.weights_of(output);
  const int last = (is_rows ? plan.box.height : plan.box.width) - 1;
  const int shift = axis.precision() - kBlendBits;
  uint32_t sum = 1u << (shift - 1);
  for (int tap = 0; tap < axis.counts[output]; ++tap) {
    const int at = within(axis.start[output] + tap, 0, last);
    const int64_t pixel = is_rows ? static_cast<int64_t>(at) * plan.box.width + x
                                  : static_cast<int64_t>(y) * plan.box.width + at;
    sum += static_cast<uint32_t>(weights[tap] * pixels[pixel]);
  }
  int result = shifted(sum, shift);
  if (is_rounded_between(plan.filter)) result = within(result, 0, kMostBetween);
  line_at(plan, channel, y, memory)[x] = static_cast<int16_t>(result);
}

// The second pass, of one number: a level, or a component minus 128 of kBlendBits fractional bits.
TARPEG_HD int second_pass(const Plan& plan, int channel, int row, int column, uint8_t* memory) {
  if (plan.way == Way::kColumns) {
    const AxisView rows(plan.axes[0], memory);
    const int shift = rows.precision() + kBlendBits;
    uint32_t sum = 1u << (shift - 1);
    for (int tap = 0; tap < rows.counts[row]; ++tap) {
      const int line = within(rows.start[row] + tap, 0, plan.lines - 1);
      sum += static_cast<uint32_t>(rows.weights_of(row)[tap] * line_at(plan, channel, line, memory)[column]);
    }
    return shifted(sum, shift);
  }
  const bool is_plane = plan.way == Way::kPlanes;
  const AxisPlan& axis = plan.axes[is_plane ? plan.axis_of[channel] + 1 : 1];
  const AxisView columns(axis, memory);
  int first = columns.start[column], last = plan.line - 1;
  if (is_plane) {
    first += (axis.times > 1 ? 0 : plan.box.left) - plan.planes[channel].left;
    last = plan.planes[channel].columns - 1;
  }
  const int shift = columns.precision() + (is_plane ? kPlaneRowBits - kBlendBits : kBlendBits);
  const int16_t* const line = line_at(plan, channel, row, memory);
  const int16_t* const weights = columns.weights_of(column);
  uint32_t sum = 1u << (shift - 1);
  for (int tap = 0; tap < columns.counts[column]; ++tap)
    sum += static_cast<uint32_t>(weights[tap] * line[within(first + tap, 0, last)]);
  return shifted(sum, shift);
}

// Note [planes] in image/resample.h.
TARPEG_HD Rgb rgb_of_planes(int y, int cb, int cr) {
  constexpr int kRed = 13173, kGreenBlue = -11277, kGreenRed = -23401, kBlue = 25297;
  const auto scaled = [](int value, int factor) { return (value * factor + (1 << 14)) >> 15; };
  const auto level = [](int value) {
    return clamped(((value + (1 << (kBlendBits - 1))) >> kBlendBits) + 128);
  };
  return {{level(y + cr + scaled(cr, kRed)), level(y + scaled(cb, kGreenBlue) + scaled(cr, kGreenRed)),
           level(y + cb + scaled(cb, kBlue))}};
}

// A pixel of the stored result, to its place.
TARPEG_HD void put_pixel(const Plan& plan, int row, int column, uint8_t* memory, uint8_t* out) {
  uint8_t* const to = out + plan.place(row, column);
  if (plan.way == Way::kPlanes) {
    const Rgb rgb =
        rgb_of_planes(second_pass(plan, 0, row, column, memory), second_pass(plan, 1, row, column, memory),
                      second_pass(plan, 2, row, column, memory));
    for (int c = 0; c < 3; ++c) to[c] = rgb.channels[c];
    return;
  }
  const int64_t plane = static_cast<int64_t>(plan.box.height) * plan.box.width;
  for (int c = 0; c < plan.channels; ++c) {
    if (plan.way == Way::kCopy) {
      to[c] = memory[plan.pixels + c * plane + static_cast<int64_t>(row) * plan.box.width + column];
    } else {
      to[c] = clamped(second_pass(plan, c, row, column, memory));
    }
  }
}

}  // namespace tarpeg::gather
