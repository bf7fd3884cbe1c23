#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "base/rows.h"
#include "jpeg/baseline.h"

// libjpeg-turbo, for the files that are not regular baseline streams: see Note [two decoders].
namespace tarpeg {

// libjpeg-turbo, reading one rectangle of one JPEG. Identical to decoding everything and cropping.
class JpegReader final : public RowSource {
 public:
  JpegReader();
  ~JpegReader() override;
  JpegReader(const JpegReader&) = delete;
  JpegReader& operator=(const JpegReader&) = delete;

  // Rows are gray or RGB. `data` must outlive the reader; `box` is in stored pixels and inside the stored
  // size, which must be `height` x `width`. `is_checked`: PlaneReader::check() has judged it down to the box.
  // To be called once.
  Status open(const uint8_t* data, size_t size, int height, int width, const Box& box, bool is_gray,
              bool is_checked) noexcept;
  Status next(uint8_t* row) noexcept override;
  Status finish() noexcept override;
  size_t stride() const noexcept override;
  int skip() const noexcept override;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// libjpeg-turbo, reading the samples of a whole image before upsampling and colour conversion, one row of
// MCUs at a time. For files that are not regular baseline streams, such as progressive ones.
class RawReader {
 public:
  RawReader();
  ~RawReader();
  RawReader(const RawReader&) = delete;
  RawReader& operator=(const RawReader&) = delete;

  // Fills `frame`; blocks are halved if frame->is_halved() for `reduction`. `luma_only`: no other component
  // is transformed. kUnsupported for colours other than gray and YCbCr, or a frame that cannot be derived.
  Status open(const uint8_t* data, size_t size, int height, int width, int reduction, bool luma_only,
              bool is_checked, Frame* frame);
  // Reads the next row of MCUs.
  Status next() noexcept;
  // Checks the rest of the file, after the last row.
  Status finish() noexcept;
  // The first sample of block (y, x) of a component within the row of MCUs, and the distance of its rows.
  const uint8_t* block(int component, int y, int x) const noexcept;
  ptrdiff_t stride(int component) const noexcept;
  // How many rows of the frame's MCUs one next() reads: 1 except for gray images with sampling factors
  // above 1.
  int blocks_down() const noexcept;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace tarpeg
