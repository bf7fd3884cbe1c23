#pragma once

#include "base/device.h"
#include "image/axis.h"

// How a box is resampled: reduced before, as planes or pixels, and in which order. For the CPU and for
// devices.
namespace tarpeg {

// The factor, 1, 2, 4 or 8, by which a box of height x width is reduced before it is resampled to rows x
// columns. Measured over photographs, the mean difference from torchvision v2 or Pillow is largest just at
// these limits. For 2, 4 and 8 it is 0.50, 0.54 and 0.54 level (bilinear), 0.37, 0.50, 0.41 (bicubic), 0.41,
// 0.55, 0.45 (Lanczos), 0.39, 0.52, 0.43 (box). The sharper a filter's edges are, the later may means begin.
TARPEG_HD int reduction_of(Filter filter, bool exact, int height, int width, int rows, int columns) {
  int by_2, by_4, by_8;
  switch (filter) {
    case Filter::kAntialias:
      by_2 = 2, by_4 = 6, by_8 = 20;
      break;
    case Filter::kBicubic:
    case Filter::kLanczos:
      by_2 = 3, by_4 = 8, by_8 = 24;
      break;
    case Filter::kBox:
      by_2 = 4, by_4 = 10, by_8 = 30;
      break;
    default:
      return 1;
  }
  if (exact) return 1;
  const int down = height / rows, across = width / columns, times = down < across ? down : across;
  if (times >= by_8) return 8;
  if (times >= by_4) return 4;
  return times >= by_2 ? 2 : 1;
}

// Whether Y, Cb and Cr, if the image has them, are resampled instead of RGB (Note [planes]), a box of
// `height` to `rows`: weights of rows have only 8 bits, and means of 4 samples or more are few, so that their
// colours cost little and may be clamped early, as torchvision does: the largest differences would be 30
// levels in place of 6.
TARPEG_HD bool takes_planes(Filter filter, bool exact, int reduction, int height, int rows) {
  constexpr int kMostReduction = 2, kMostRatio = 16;
  return filter == Filter::kAntialias && !exact && reduction <= kMostReduction &&
         height / reduction / rows < kMostRatio;
}

// Whether the stored columns are resampled before the rows: Note [order]. `rows` and `columns`: how many
// fewer there are in the result; `swap`: of an image on its side. Pillow 13 begins with the rows if it
// removes more than twice as many rows as columns.
TARPEG_HD bool is_columns_first(Filter filter, int rows, int columns, bool swap) {
  if (!is_rounded_between(filter)) return false;
  const int upright_rows = swap ? columns : rows, upright_columns = swap ? rows : columns;
  const bool are_first =
      filter != Filter::kLanczos || upright_rows <= 0 || upright_rows <= 2 * upright_columns;
  return are_first != swap;
}

}  // namespace tarpeg
