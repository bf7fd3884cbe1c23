#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "image/resample.h"
#include "jpeg/header.h"
#include "jpeg/planes.h"

namespace tarpeg {

// Reads the header of a JPEG, a packed image or a binary PPM. Never reads past `size`, never allocates.
// kNotAnImage if it is none of them.
Header read_header(const uint8_t* data, size_t size) noexcept;

// A crop and its resizing.
struct Request {
  Box box;  // upright pixels
  int height, width;
  bool mirror;
  Filter filter;
  bool exact;  // otherwise strong reductions may use means of 2, 4 or 8 samples
  int64_t max_pixels;
  bool is_gray = false;    // one channel: luma alone, or Pillow's convert("L")
  ptrdiff_t row_step = 0;  // bytes from row to row of the result; 0: rows are dense
};

// Whether an image with that header can be decoded for the request: its status, its size, and the box.
Status check_request(const Request& request, const Header& header) noexcept;

// A crop of an image, where it goes, and its result.
struct View {
  Request request;
  uint8_t* out;
  Status status;
};

// Decodes the boxes of one image, each resized to height x width, upright, RGB or gray, into
// out[height][width][3 or 1], and nothing between rows that are apart. What several boxes share is decoded
// once, if that is less work; the results are those of each box alone. Each thread keeps its memory from
// image to image, up to kMostKept bytes. Throws only if memory runs out. `header` is set, with the image's
// size, even if the status is not kOk.
void decode_views(const uint8_t* data, size_t size, View* views, int count, Header* header);

// The same for one box.
inline Status decode_image(const uint8_t* data, size_t size, const Request& request, Header* header,
                           uint8_t* out) {
  View view{request, out, Status::kOk};
  decode_views(data, size, &view, 1, header);
  return view.status;
}

}  // namespace tarpeg
