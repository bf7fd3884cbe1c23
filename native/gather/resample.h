#pragma once

#include "gather/idct.h"

// From planes to the pixels of the result: the arithmetic of jpeg/color.cpp, image/row_passes.cpp,
// image/column_pass.cpp and image/pixels.cpp, one line at a time: `begin` and `step` say which of its numbers
// a thread makes.
namespace tarpeg::gather {

constexpr int kBlendBits = 7, kMostBetween = 255 << kBlendBits;

// A sum of 32 bits, which only wraps where a tensor is damaged, within 16 bits.
TARPEG_HD int shifted(uint32_t sum, int shift) {
  return within(static_cast<int>(sum) >> shift, -32768, 32767);
}

// Row y of the samples of a plane; of those that are decoded, the next one.
TARPEG_HD const uint8_t* row_at(const Plane& plane, const uint8_t* memory, int y) {
  const int row = within(y - plane.top, 0, plane.rows - 1);
  return memory + plane.samples + static_cast<uint64_t>(row) * plane.columns;
}

TARPEG_HD int sample_at(const Plane& plane, const uint8_t* memory, int y, int x) {
  return row_at(plane, memory, y)[within(x - plane.left, 0, plane.columns - 1)];
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

// Pixels of line `line` of the reduced box, to a plane of each channel.
TARPEG_HD void convert_line(const Plan& plan, int line, int begin, int step, uint8_t* memory) {
  const int y = plan.box.top + line;
  const int64_t plane = static_cast<int64_t>(plan.box.height) * plan.box.width;
  uint8_t* const out = memory + plan.pixels + static_cast<int64_t>(line) * plan.box.width;
  for (int i = begin; i < plan.box.width; i += step) {
    const int x = plan.box.left + i, luma = upsampled(plan.planes[0], memory, y, x);
    if (plan.wanted == 1) {
      for (int c = 0; c < plan.channels; ++c) out[c * plane + i] = static_cast<uint8_t>(luma);
      continue;
    }
    const Rgb rgb =
        rgb_of(luma, upsampled(plan.planes[1], memory, y, x), upsampled(plan.planes[2], memory, y, x));
    for (int c = 0; c < 3; ++c) out[c * plane + i] = rgb.channels[c];
  }
}

// Numbers between the passes of a channel, or of a component of kPlanes: number x of line y.
TARPEG_HD int16_t* line_at(const Plan& plan, int channel, int y, uint8_t* memory) {
  const bool is_plane = plan.way == Way::kPlanes;
  const int line = is_plane ? plan.planes[channel].columns : plan.line;
  const int64_t before = is_plane ? y : static_cast<int64_t>(channel) * plan.lines + y;
  return reinterpret_cast<int16_t*>(memory + (is_plane ? plan.planes[channel].between : plan.between)) +
         before * line;
}

// How many lines of a channel, or of a component of kPlanes, are between the passes.
TARPEG_HD int line_count(const Plan& plan) { return plan.way == Way::kPlanes ? plan.out_rows : plan.lines; }

// The first pass of resampling in kPlanes, down the columns of a component, kWidth numbers at a time.
template <int kWidth>
TARPEG_HD void plane_line(const Plan& plan, int component, int y, int begin, int step, uint8_t* memory) {
  const Plane& plane = plan.planes[component];
  const AxisPlan& axis = plan.axes[plan.axis_of[component]];
  const AxisView rows(axis, memory);
  const int first = rows.start[y] + (axis.times > 1 ? 0 : plan.box.top), count = rows.counts[y];
  const int16_t* const weights = rows.weights_of(y);
  int16_t* const line = line_at(plan, component, y, memory);
  for (int x = kWidth * begin; x < plane.columns; x += kWidth * step) {
    int sums[kWidth] = {};
    for (int tap = 0; tap < count; ++tap) {
      alignas(kWidth) uint8_t samples[kWidth];
      const uint8_t* const from = row_at(plane, memory, first + tap) + x;
      read_aligned<kWidth>(from, &samples);
      for (int i = 0; i < kWidth; ++i) sums[i] += weights[tap] * (samples[i] - 128);
    }
    alignas(2 * kWidth) int16_t numbers[kWidth];
    for (int i = 0; i < kWidth; ++i) numbers[i] = static_cast<int16_t>(sums[i]);
    write_aligned<2 * kWidth>(numbers, line + x);
  }
}

// The first pass of the numbers of a line between the passes.
TARPEG_HD void first_pass(const Plan& plan, int channel, int y, int begin, int step, uint8_t* memory) {
  if (plan.way == Way::kPlanes) {
    return plan.planes[channel].block_columns % 4 == 0 ? plane_line<4>(plan, channel, y, begin, step, memory)
                                                       : plane_line<1>(plan, channel, y, begin, step, memory);
  }
  const bool is_rows = plan.way == Way::kRows, clamps = is_rounded_between(plan.filter);
  const AxisView axis(plan.axes[is_rows ? 0 : 1], memory);
  const int64_t channel_at = static_cast<int64_t>(channel) * plan.box.height * plan.box.width;
  const uint8_t* const pixels = memory + plan.pixels + channel_at;
  const int last = (is_rows ? plan.box.height : plan.box.width) - 1;
  const int shift = axis.precision() - kBlendBits;
  int16_t* const line = line_at(plan, channel, y, memory);
  for (int x = begin; x < plan.line; x += step) {
    const int output = is_rows ? y : x, start = axis.start[output], count = axis.counts[output];
    const int16_t* const weights = axis.weights_of(output);
    uint32_t sum = 1u << (shift - 1);
    for (int tap = 0; tap < count; ++tap) {
      const int at = within(start + tap, 0, last);
      const int64_t pixel = is_rows ? static_cast<int64_t>(at) * plan.box.width + x
                                    : static_cast<int64_t>(y) * plan.box.width + at;
      sum += static_cast<uint32_t>(weights[tap] * pixels[pixel]);
    }
    int result = shifted(sum, shift);
    if (clamps) result = within(result, 0, kMostBetween);
    line[x] = static_cast<int16_t>(result);
  }
}

// The second pass of kColumns, of one number: a level.
TARPEG_HD int level_down(const Plan& plan, const AxisView& rows, int channel, int row, int column,
                         uint8_t* memory) {
  const int shift = rows.precision() + kBlendBits, start = rows.start[row], count = rows.counts[row];
  const int16_t* const weights = rows.weights_of(row);
  uint32_t sum = 1u << (shift - 1);
  for (int tap = 0; tap < count; ++tap) {
    const int line = within(start + tap, 0, plan.lines - 1);
    sum += static_cast<uint32_t>(weights[tap] * line_at(plan, channel, line, memory)[column]);
  }
  return shifted(sum, shift);
}

// The second pass along a line of numbers, of one output.
struct Across {
  AxisView columns;
  int first, last, shift;

  // Of a channel in kRows.
  TARPEG_HD Across(const Plan& plan, const AxisPlan& axis, uint8_t* memory)
      : columns(axis, memory), first(0), last(plan.line - 1), shift(columns.precision() + kBlendBits) {}
  // Of a component in kPlanes.
  TARPEG_HD Across(const Plan& plan, const AxisPlan& axis, const Plane& plane, uint8_t* memory)
      : columns(axis, memory),
        first((axis.times > 1 ? 0 : plan.box.left) - plane.left),
        last(plane.columns - 1),
        shift(columns.precision() + kPlaneRowBits - kBlendBits) {}
  // A level, or a component minus 128 of kBlendBits fractional bits, from each of the lines.
  template <int kLines>
  TARPEG_HD void at(int column, const int16_t* const* lines, int* results) const {
    const int start = first + columns.start[column], count = columns.counts[column];
    const int16_t* const weights = columns.weights_of(column);
    uint32_t sums[kLines];
    for (uint32_t& sum : sums) sum = 1u << (shift - 1);
    for (int tap = 0; tap < count; ++tap) {
      const int weight = weights[tap], x = within(start + tap, 0, last);
      for (int i = 0; i < kLines; ++i) sums[i] += static_cast<uint32_t>(weight * lines[i][x]);
    }
    for (int i = 0; i < kLines; ++i) results[i] = shifted(sums[i], shift);
  }
};

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

// Rows whose outputs share their weights.
constexpr int kRowsAtOnce = 2;

TARPEG_HD void put_planes(const Plan& plan, int row, int begin, int step, uint8_t* memory, uint8_t* out) {
  const Across luma(plan, plan.axes[plan.axis_of[0] + 1], plan.planes[0], memory);
  // Cb and Cr may have other sampling factors.
  const Across blue(plan, plan.axes[plan.axis_of[1] + 1], plan.planes[1], memory);
  const Across red(plan, plan.axes[plan.axis_of[2] + 1], plan.planes[2], memory);
  const bool are_equal = plan.axis_of[1] == plan.axis_of[2] && plan.planes[1].left == plan.planes[2].left &&
                         plan.planes[1].columns == plan.planes[2].columns;
  const int16_t *lumas[kRowsAtOnce], *colours[2 * kRowsAtOnce];
  for (int i = 0; i < kRowsAtOnce; ++i) {
    const int here = least(row + i, plan.out_rows - 1);
    lumas[i] = line_at(plan, 0, here, memory);
    colours[i] = line_at(plan, 1, here, memory);
    colours[kRowsAtOnce + i] = line_at(plan, 2, here, memory);
  }
  for (int column = begin; column < plan.out_columns; column += step) {
    int y[kRowsAtOnce], c[2 * kRowsAtOnce];
    luma.at<kRowsAtOnce>(column, lumas, y);
    if (are_equal) {
      blue.at<2 * kRowsAtOnce>(column, colours, c);
    } else {
      blue.at<kRowsAtOnce>(column, colours, c);
      red.at<kRowsAtOnce>(column, colours + kRowsAtOnce, c + kRowsAtOnce);
    }
    for (int i = 0; i < kRowsAtOnce && row + i < plan.out_rows; ++i) {
      const Rgb rgb = rgb_of_planes(y[i], c[i], c[kRowsAtOnce + i]);
      uint8_t* const to = out + plan.place(row + i, column);
      for (int k = 0; k < 3; ++k) to[k] = rgb.channels[k];
    }
  }
}

TARPEG_HD void put_levels(const Plan& plan, int row, int begin, int step, uint8_t* memory, uint8_t* out) {
  const int64_t plane = static_cast<int64_t>(plan.box.height) * plan.box.width;
  const uint8_t* const pixels = memory + plan.pixels + static_cast<int64_t>(row) * plan.box.width;
  for (int column = begin; column < plan.out_columns; column += step) {
    uint8_t* const to = out + plan.place(row, column);
    for (int c = 0; c < plan.channels; ++c) {
      if (plan.way == Way::kCopy) {
        to[c] = pixels[c * plane + column];
      } else if (plan.way == Way::kColumns) {
        to[c] = clamped(level_down(plan, AxisView(plan.axes[0], memory), c, row, column, memory));
      } else {
        const int16_t* const line = line_at(plan, c, row, memory);
        int level;
        Across(plan, plan.axes[1], memory).at<1>(column, &line, &level);
        to[c] = clamped(level);
      }
    }
  }
}

// Pixels of kRowsAtOnce rows of the stored result, to their places.
TARPEG_HD void put_pixels(const Plan& plan, int row, int begin, int step, uint8_t* memory, uint8_t* out) {
  if (plan.way == Way::kPlanes) return put_planes(plan, row, begin, step, memory, out);
  for (int i = row; i < least(row + kRowsAtOnce, plan.out_rows); ++i)
    put_levels(plan, i, begin, step, memory, out);
}

}  // namespace tarpeg::gather
