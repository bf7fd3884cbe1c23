#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "base/status.h"
#include "image/orientation.h"

namespace tarpeg {

// Bytes a pixel of the rows that a source hands out: RGB, or RGB and a byte to ignore.
enum class Layout { kRgb = 3, kRgbx = 4 };

// A rectangle of an image, row by row, from the top.
class RowSource {
 public:
  virtual ~RowSource() = default;
  // Writes the next row, of `stride()` bytes; the rectangle begins `skip()` pixels into it.
  virtual Status next(uint8_t* row) noexcept = 0;
  // Goes past a row that nobody looks at; `row` may be written to.
  virtual Status pass(uint8_t* row) noexcept { return next(row); }
  virtual size_t stride() const noexcept = 0;
  virtual int skip() const noexcept = 0;
};

// libjpeg-turbo, reading one rectangle of one JPEG. Identical to decoding everything and cropping.
class JpegReader final : public RowSource {
 public:
  JpegReader();
  ~JpegReader() override;
  JpegReader(const JpegReader&) = delete;
  JpegReader& operator=(const JpegReader&) = delete;

  // `data` must outlive the reader; `box` is in stored pixels and inside the stored size, which must be
  // `height` x `width`. To be called once.
  Status open(const uint8_t* data, size_t size, int height, int width, const Box& box,
              Layout layout) noexcept;
  Status next(uint8_t* row) noexcept override;
  size_t stride() const noexcept override;
  int skip() const noexcept override;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace tarpeg
