#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "image/resample.h"
#include "jpeg/header.h"
#include "jpeg/planes.h"

namespace tarpeg {

struct Request {
  Box box;  // upright pixels
  int height, width;
  bool mirror;
  Filter filter;
  bool exact;  // otherwise strong reductions may go by way of means of 2, 4 or 8 samples
  int64_t max_pixels;
};

// Decodes `box` of one image, resized to height x width, upright RGB, into out[height][width][3].
// Keeps its memory from image to image, for each thread, but for that of very large boxes. Throws for want of
// memory only; `header` tells the size even where the status is not kOk.
Status decode_sample(const uint8_t* data, size_t size, const Request& request, Header* header, uint8_t* out);

}  // namespace tarpeg
