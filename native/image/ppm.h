#pragma once

#include "base/rows.h"
#include "jpeg/header.h"

namespace tarpeg {

// Reads the header of a binary PPM (P6, 8 bits), which begins with "P6". Never reads past `size`.
Header read_ppm_header(const uint8_t* data, size_t size) noexcept;

// A rectangle of a binary PPM, straight from its bytes.
class PpmReader final : public RowSource {
 public:
  PpmReader(const uint8_t* pixels, int image_width, const Box& box, PixelFormat format) noexcept;
  Status next(uint8_t* row) noexcept override;
  size_t stride() const noexcept override;
  int skip() const noexcept override { return 0; }

 private:
  const uint8_t* row_;
  size_t step_;
  int width_;
  PixelFormat format_;
};

}  // namespace tarpeg
