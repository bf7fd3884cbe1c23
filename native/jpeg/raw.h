#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "base/status.h"
#include "jpeg/baseline.h"

namespace tarpeg {

// libjpeg-turbo, reading the samples of a whole image before upsampling and colour conversion, one row of
// MCUs at a time. For files that are no regular baseline stream, such as progressive ones.
class RawReader {
 public:
  RawReader();
  ~RawReader();
  RawReader(const RawReader&) = delete;
  RawReader& operator=(const RawReader&) = delete;

  // Fills `frame`; blocks are halved as it says for `reduction`. kUnsupported for colours other than gray and
  // YCbCr, or a frame that cannot be derived.
  Status open(const uint8_t* data, size_t size, int height, int width, int reduction, Frame* frame);
  // Reads the next row of MCUs.
  Status next() noexcept;
  // The first sample of block (y, x) of a component within the row of MCUs, and the distance of its rows.
  const uint8_t* block(int component, int y, int x) const noexcept;
  ptrdiff_t stride(int component) const noexcept;
  // How many rows of the frame's MCUs one next() reads: 1 but for gray images that claim sampling factors.
  int blocks_down() const noexcept;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace tarpeg
