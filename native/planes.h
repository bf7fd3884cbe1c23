#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "baseline.h"
#include "entropy.h"
#include "jpeg.h"

namespace tarpeg {

// The decoded samples of one component around a box: sample (y, x) of the whole component, for
// top <= y < top + rows and left <= x < left + columns, is row(y)[x].
struct Plane {
  // Vector code may read, never use, a few bytes before the first and behind the last.
  static constexpr int kMargin = 64;

  std::vector<uint8_t> data;
  ptrdiff_t stride = 0;
  int top = 0, left = 0, rows = 0, columns = 0;

  const uint8_t* row(int y) const noexcept { return data.data() + kMargin + (y - top) * stride - left; }
};

// Decodes the MCUs of a regular stream that a box and its margin touch, and hands out RGB rows, identical to
// libjpeg's. Only the segments in question are read. Keeps its memory from image to image.
class PlaneReader final : public RowSource {
 public:
  // False where the data turn out irregular: libjpeg has the last word on the file.
  bool decode(const BaselineStream& stream, const Box& box);

  // Rows of `box`, which must be the one decoded, from now on.
  void begin(const Box& box, Layout layout);
  Status next(uint8_t* row) noexcept override;
  size_t stride() const noexcept override { return static_cast<size_t>(layout_) * box_.width; }
  int skip() const noexcept override { return 0; }

 private:
  bool decode_segment(const BaselineStream& stream, size_t segment);
  bool decode_mcu(const BaselineStream& stream, BitReader* reader, int* dc, int row, int column);
  const uint8_t* upsampled(int component, int y);

  const BaselineStream* stream_ = nullptr;
  Plane planes_[3];
  int first_row_ = 0, last_row_ = 0, first_column_ = 0, last_column_ = 0;  // MCUs, inclusive
  alignas(32) int16_t blocks_[10][kBlockSize];
  std::vector<uint8_t> segment_;  // without its stuffing
  Box box_{};
  Layout layout_ = Layout::kRgb;
  int y_ = 0;
  std::vector<int16_t> sums_;
  std::vector<uint8_t> lines_[3];
};

}  // namespace tarpeg
