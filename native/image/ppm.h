#pragma once

#include <vector>

#include "base/rows.h"
#include "jpeg/header.h"

namespace tarpeg {

// Reads the header of a binary PPM (P6, 8 bits), which begins with "P6". Never reads past `size`.
Header read_ppm_header(const uint8_t* data, size_t size) noexcept;

// A rectangle of a binary PPM, gray or RGB, straight from its bytes: RGB is kept where it lies. Reads no row
// outside of the rectangle, and no byte from `end` on.
class PpmReader final : public RowSource {
 public:
  PpmReader(const uint8_t* pixels, const uint8_t* end, int image_width, const Box& box, bool is_gray);
  Status next(uint8_t* row) noexcept override;
  Status pass(uint8_t*) noexcept override {
    ++y_;
    return Status::kOk;
  }
  const uint8_t* kept(int y) noexcept override;
  size_t stride() const noexcept override;
  int skip() const noexcept override { return 0; }

 private:
  void prefetch(int y) const noexcept;

  const uint8_t* first_;
  size_t step_;
  int height_, width_;
  bool is_gray_;
  int y_ = 0;                  // the next row
  int whole_ = 0;              // rows that have readable bytes after them
  std::vector<uint8_t> tail_;  // copies of the others
};

}  // namespace tarpeg
