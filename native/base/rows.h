#pragma once

#include <cstddef>
#include <cstdint>

#include "base/status.h"

// The interface between the decoders and the resampling: a rectangle of an image, row by row.
namespace tarpeg {

// A rectangle in pixels.
struct Box {
  int top, left, height, width;
};

// Of the rows of a source: gray, RGB, or RGB and a byte to ignore. The value is the number of bytes per
// pixel.
enum class PixelFormat { kGray = 1, kRgb = 3, kRgbx = 4 };

// A rectangle of an image, row by row, from the top.
class RowSource {
 public:
  virtual ~RowSource() = default;
  // Writes the next row, of `stride()` bytes; the rectangle begins `skip()` pixels into it.
  virtual Status next(uint8_t* row) noexcept = 0;
  // Skips a row that is not needed; `row` may be written to.
  virtual Status pass(uint8_t* row) noexcept { return next(row); }
  // Row y of the rectangle, from its first pixel on, with at least 32 readable bytes after the last one;
  // nullptr if rows are not kept.
  virtual const uint8_t* kept(int) noexcept { return nullptr; }
  // Checks the rest of the file, up to its end, if the rectangle reaches the end of the image.
  virtual Status finish() noexcept { return Status::kOk; }
  virtual size_t stride() const noexcept = 0;
  virtual int skip() const noexcept = 0;
};

}  // namespace tarpeg
