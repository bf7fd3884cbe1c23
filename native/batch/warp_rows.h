#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "batch/rows.h"

// Warps on the CPU: spans of a row of the target, up to kSpan pixels each.
namespace tarpeg {

using In = const uint8_t* __restrict;
using Out = uint8_t* __restrict;

// A rectangle of the target.
struct Tile {
  int64_t left, top, width, height;
};

// Calls make(tile) for rows [begin, end) of a target, in tiles of a span's width.
template <class Make>
void over_tiles(int64_t width, int64_t begin, int64_t end, const Make& make) {
  constexpr int64_t kRows = 256;
  for (int64_t y = begin; y < end; y += kRows) {
    for (int64_t x = 0; x < width; x += kSpan) {
      make(Tile{x, y, std::min<int64_t>(kSpan, width - x), std::min(kRows, end - y)});
    }
  }
}

// A half-open range of rows or columns.
struct Range {
  int64_t begin, end;

  int64_t size() const { return end - begin; }
};

// A part of an image, copied to where its pixels are quick to find and to blend: four bytes each, red, green,
// blue and 1, between black pixels of four zeros. Its first pixel is (left, top) of the image.
struct Patch {
  int64_t left = 0, top = 0, width = 0, height = 0;
  const uint8_t* four = nullptr;  // null: nothing is copied
  std::vector<uint8_t> memory;

  int64_t stride() const { return width + 2; }
  void copy(const Picture<uint8_t>& from, const Range& columns, const Range& rows);
  // What a tile needs, unless the image shrinks so much that most of that would not be used.
  void copy_under(const Picture<uint8_t>& from, const Affine& map, const Tile& tile);
};

// Fills the first n of `row` with interpolated or nearest values of `from`, whose patch is copied if it is
// worth it. fill: a number for each channel.
void fetch_warped(const Picture<uint8_t>& from, const Patch& patch, const Span& span, bool nearest,
                  const float* fill, int n, Row* row);

// For policies: levels as torchvision computes them. fill: three levels, or null for black; outside: the four
// bytes of a pixel there.
void warp_levels(const Patch& patch, const Span& span, const float* fill, int n, Out r, Out g, Out b);
void pick_levels(Patch& patch, const Span& span, uint32_t outside, int n, Out r, Out g, Out b);

}  // namespace tarpeg
