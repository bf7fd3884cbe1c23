#pragma once

#include "jpeg/libjpeg.h"

namespace tarpeg {

// A rectangle of a binary PPM, straight from its bytes.
class PpmReader final : public RowSource {
 public:
  PpmReader(const uint8_t* pixels, int image_width, const Box& box, Layout layout) noexcept;
  Status next(uint8_t* row) noexcept override;
  size_t stride() const noexcept override;
  int skip() const noexcept override { return 0; }

 private:
  const uint8_t* row_;
  size_t step_;
  int width_;
  Layout layout_;
};

}  // namespace tarpeg
