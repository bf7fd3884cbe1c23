#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "image/resample.h"
#include "jpeg/header.h"
#include "jpeg/planes.h"

namespace tarpeg {

// Reads the header of a JPEG or a binary PPM. Never reads past `size`, never allocates. kNotAnImage if it is
// neither.
Header read_header(const uint8_t* data, size_t size) noexcept;

// A crop and its resizing.
struct Request {
  Box box;  // upright pixels
  int height, width;
  bool mirror;
  Filter filter;
  bool exact;  // otherwise strong reductions may use means of 2, 4 or 8 samples
  int64_t max_pixels;
  bool is_gray = false;  // one channel: luma alone, or Pillow's convert("L")
};

// Decodes `box` of one image, resized to height x width, upright, RGB or gray, into
// out[height][width][3 or 1].
// Each thread keeps its memory from image to image, up to kMostKept bytes. Throws only if memory runs out.
// `header` is set, with the image's size, even if the status is not kOk.
Status decode_image(const uint8_t* data, size_t size, const Request& request, Header* header, uint8_t* out);

}  // namespace tarpeg
