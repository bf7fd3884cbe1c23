#pragma once

#include <cstddef>
#include <cstdint>

#include "base/status.h"

namespace tarpeg {

enum class Format { kJpeg, kPpm };

// What can be told of an image without decoding it. Sizes are as stored, before `orientation` is applied.
struct Header {
  Status status = Status::kNotAnImage;
  Format format = Format::kJpeg;
  int height = 0, width = 0;
  int orientation = 1;  // EXIF, 1 to 8
  size_t body = 0;      // JPEG: the first SOS marker; PPM: the first pixel

  int upright_height() const noexcept { return orientation >= 5 ? width : height; }
  int upright_width() const noexcept { return orientation >= 5 ? height : width; }
};

// Reads the header of a JPEG or a binary PPM (P6, 8 bits). Never reads past `size`, never allocates.
// A status other than kOk leaves height and width at what was found, if anything.
Header read_header(const uint8_t* data, size_t size) noexcept;

// Whether an EOI marker follows the first scan. Its absence means that the file was cut.
bool has_end_marker(const uint8_t* data, size_t size, size_t first_scan) noexcept;

}  // namespace tarpeg
