#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "base/device.h"
#include "base/rows.h"

namespace tarpeg {

// EXIF orientation (tag 0x0112, values 1 to 8) as three switches. The pixel (y, x) of the upright image is
// the stored pixel (row, column) with a = swap ? x : y, b = swap ? y : x, row = flip_rows ? H - 1 - a : a and
// column = flip_columns ? W - 1 - b : b, where H x W is the stored size.
struct Orientation {
  bool swap, flip_rows, flip_columns;

  TARPEG_HD static Orientation from_exif(int value) {
    switch (value) {
      case 2:
        return {false, false, true};
      case 3:
        return {false, true, true};
      case 4:
        return {false, true, false};
      case 5:
        return {true, false, false};
      case 6:
        return {true, true, false};
      case 7:
        return {true, true, true};
      case 8:
        return {true, false, true};
      default:
        return {false, false, false};
    }
  }

  // The stored rectangle that shows `box` of the upright image; `height` and `width` are the stored size.
  TARPEG_HD Box stored(const Box& box, int height, int width) const {
    Box raw = swap ? Box{box.left, box.top, box.width, box.height} : box;
    if (flip_rows) raw.top = height - raw.top - raw.height;
    if (flip_columns) raw.left = width - raw.left - raw.width;
    return raw;
  }
};

// Where the pixel (row, column) of the stored order goes: origin + row * row_step + column * column_step,
// bytes.
struct Placement {
  uint8_t* origin;
  ptrdiff_t row_step, column_step;

  // `out` is an upright [height][width][channels] image, whose rows are `y_step` bytes apart; `mirror` flips
  // it horizontally on top of the orientation.
  static Placement upright(uint8_t* out, int height, int width, ptrdiff_t y_step, int channels,
                           Orientation orientation, bool mirror) noexcept {
    ptrdiff_t x_step = channels;
    uint8_t* origin = out;
    if (mirror) {
      origin += (width - 1) * x_step;
      x_step = -x_step;
    }
    Placement place{origin, orientation.swap ? x_step : y_step, orientation.swap ? y_step : x_step};
    const int rows = orientation.swap ? width : height, columns = orientation.swap ? height : width;
    if (orientation.flip_rows) {
      place.origin += (rows - 1) * place.row_step;
      place.row_step = -place.row_step;
    }
    if (orientation.flip_columns) {
      place.origin += (columns - 1) * place.column_step;
      place.column_step = -place.column_step;
    }
    return place;
  }
};

// Copies pixels of 1 or 3 bytes to places `step` bytes apart.
inline void scatter_pixels(const uint8_t* pixels, int count, size_t pixel_bytes, ptrdiff_t step,
                           uint8_t* out) noexcept {
  if (pixel_bytes == 1) {
    for (int x = 0; x < count; ++x) out[x * step] = pixels[x];
  } else {
    for (int x = 0; x < count; ++x) std::memcpy(out + x * step, pixels + 3 * static_cast<ptrdiff_t>(x), 3);
  }
}

}  // namespace tarpeg
