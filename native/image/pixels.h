#pragma once

#include <cstddef>
#include <cstdint>

// Between pixels and lines of one channel each, of 16-bit numbers.
namespace tarpeg {

// The bytes of RGB pixels, to three lines that are `step` apart. Vector code reads and writes fewer than
// kSplitBeyond pixels past the end.
constexpr int kSplitBeyond = 16;
void split_rgb(const uint8_t* pixels, int width, uint8_t* red, ptrdiff_t step) noexcept;

// Pixels of 1 or 3 bytes from the last to the first, written in ascending order.
void reverse_pixels(const uint8_t* pixels, int count, size_t pixel_bytes, uint8_t* out) noexcept;

// Whole levels, which may be beyond 0 and 255.
void levels_to_gray(const int16_t* levels, int width, uint8_t* gray) noexcept;
void levels_to_rgb(const int16_t* red, const int16_t* green, const int16_t* blue, int width,
                   uint8_t* rgb) noexcept;
// Y, Cb and Cr minus 128, of seven fractional bits (BT.601, full range): Note [planes].
void planes_to_rgb(const int16_t* luma, const int16_t* cb, const int16_t* cr, int width,
                   uint8_t* rgb) noexcept;

}  // namespace tarpeg
