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

// How the pixels of an axis come from the samples of a component: each sample is `times` pixels, or, if
// `is_mixed`, two: three quarters of it and a quarter of its neighbour on that side; at the image's end, all.
struct Upsampling {
  int times = 1;
  bool is_mixed = false;

  bool operator==(const Upsampling& other) const noexcept {
    return times == other.times && is_mixed == other.is_mixed;
  }
};

// The samples of one component of an image, as far as they are decoded, with 64 readable bytes after each
// row.
struct Samples {
  const uint8_t* first;  // sample (top, left)
  ptrdiff_t stride;
  int top, left;
  int height, width;  // of the component in the whole image
  Upsampling down, across;

  const uint8_t* at(int y, int x) const noexcept { return first + (y - top) * stride + (x - left); }
  bool has_geometry_of(const Samples& other) const noexcept {
    return top == other.top && left == other.left && height == other.height && width == other.width &&
           down == other.down && across == other.across;
  }
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
  // Bytes per pixel of the rows that are kept, if the source keeps other ones than next() writes; or 0.
  virtual int kept_bytes() const noexcept { return 0; }
  // Checks the rest of the file, up to its end, if the rectangle reaches the end of the image.
  virtual Status finish() noexcept { return Status::kOk; }
  virtual size_t stride() const noexcept = 0;
  virtual int skip() const noexcept = 0;
};

}  // namespace tarpeg
