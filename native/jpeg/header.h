#pragma once

#include <cstddef>
#include <cstdint>

#include "base/status.h"

namespace tarpeg {

enum class Format { kJpeg, kPpm, kPacked };

// The header of an image. Sizes are as stored, before `orientation` is applied.
struct Header {
  Status status = Status::kNotAnImage;
  Format format = Format::kJpeg;
  int height = 0, width = 0;
  int orientation = 1;  // EXIF, 1 to 8
  size_t body = 0;      // JPEG: the first SOS marker; PPM: the first pixel; packed: 0

  int upright_height() const noexcept { return orientation >= 5 ? width : height; }
  int upright_width() const noexcept { return orientation >= 5 ? height : width; }
};

// Reads the header of a JPEG, which begins with FF D8 FF. Never reads past `size`, never allocates.
// With a status other than kOk, height and width may be unset or those of a broken header.
Header read_jpeg_header(const uint8_t* data, size_t size) noexcept;

// Whether an EOI marker follows the first scan. Its absence means that the file was cut.
bool has_end_marker(const uint8_t* data, size_t size, size_t first_scan) noexcept;

}  // namespace tarpeg
