#pragma once

#include <cstddef>
#include <cstdint>

#include "base/device.h"
#include "base/status.h"

// The interface between the decoders and the resampling: a rectangle of an image, row by row.
namespace tarpeg {

// A rectangle in pixels.
struct Box {
  int top, left, height, width;

  // Whether it has pixels, all of them in an image of that size.
  TARPEG_HD bool is_inside(int64_t image_height, int64_t image_width) const {
    return top >= 0 && left >= 0 && height > 0 && width > 0 && top <= image_height - height &&
           left <= image_width - width;
  }
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

// Of the rows of a source: gray; RGB pixel by pixel; or a row of red, one of green and one of blue.
enum class PixelFormat { kGray, kRgb, kPlanar };

// A rectangle of an image, row by row, from the top.
class RowSource {
 public:
  virtual ~RowSource() = default;
  // Writes the next row, of `stride()` bytes; the rectangle begins `skip()` pixels into it.
  virtual Status next(uint8_t* row) noexcept = 0;
  // Skips a row that is not needed; `row` may be written to.
  virtual Status pass(uint8_t* row) noexcept { return next(row); }
  // Row y of the rectangle, from its first pixel on; nullptr if rows are not kept. If they are, all are.
  // After its last pixel at least kReadable bytes can be read, and unless it is RGB as many as it has pixels
  // besides.
  static constexpr int kReadable = 256;
  virtual const uint8_t* kept(int) noexcept { return nullptr; }
  // Checks the rest of the file, up to its end, if the rectangle reaches the end of the image.
  virtual Status finish() noexcept { return Status::kOk; }
  virtual size_t stride() const noexcept = 0;
  virtual int skip() const noexcept = 0;
  // If rows are planar: bytes from the first pixel's red to its green, of the rows that are kept, if they
  // are.
  virtual ptrdiff_t plane() const noexcept { return 0; }
};

}  // namespace tarpeg
