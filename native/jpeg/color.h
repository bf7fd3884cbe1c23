#pragma once

#include <cstddef>
#include <cstdint>

namespace tarpeg {

// One row of subsampled chroma and the row that it is mixed with. The samples before and after it are read.
struct ChromaRow {
  const uint8_t *near, *far;
  int count;
};

// libjpeg's "fancy" (triangle) upsampling, bit for bit (jdsample.c), if the image's outermost samples are
// repeated beyond its edges. `out`: count (or 2 * count) bytes, and room for 64 more. `sums`: count + 64
// numbers of scratch.
void upsample_h2v1(const ChromaRow& row, uint8_t* out) noexcept;
void upsample_h2v2(const ChromaRow& row, int16_t* sums, uint8_t* out) noexcept;
void upsample_h1v2(const ChromaRow& row, bool is_lower, uint8_t* out) noexcept;
// Plain replication, `times` across.
void replicate(const ChromaRow& row, int times, uint8_t* out) noexcept;

// A row of RGB: pixel by pixel, or, unless `plane` is 0, a row of each channel, `plane` bytes after the one
// before.
struct RgbLine {
  uint8_t* out;
  ptrdiff_t plane;
};

// YCbCr to RGB (BT.601, full range) with libjpeg's rounding (jdcolor.c).
void ycc_to_rgb(const uint8_t* luma, const uint8_t* cb, const uint8_t* cr, int count, RgbLine rgb) noexcept;
// Upsample the chroma of pixels [left, left + count) of a row and convert them to RGB, in one pass: the
// result of upsample_h2v2() (upsample_h2v1() if not `mixes_rows`) and ycc_to_rgb(). `luma` points to pixel
// `left`, and the chroma rows begin at the edge of the image. Returns false, and writes nothing, if this
// processor has no vector code for it.
bool upsample_to_rgb(const uint8_t* luma, const ChromaRow& cb, const ChromaRow& cr, bool mixes_rows, int left,
                     int count, RgbLine rgb) noexcept;
// Gray as Pillow's convert("L") computes it from RGB; `gray` may be `rgb`.
void rgb_to_gray(const uint8_t* rgb, int count, uint8_t* gray) noexcept;
void gray_to_rgb(const uint8_t* luma, int count, RgbLine rgb) noexcept;

}  // namespace tarpeg
