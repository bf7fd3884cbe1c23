#pragma once

#include <cstddef>
#include <cstdint>

namespace tarpeg {

// Rows of a mask as runs of equal pixels, from the chunk tpRL (docs/formats.md), one after another. The data
// stays where it is while this is used.
//
// Note [runs]. A row of a mask has few runs, and most of their ends move by a few pixels from row to row. To
// add these numbers takes a fifth of the time in which DEFLATE writes the pixels; the pixels of a crop are
// then written once, in the size of the result.
class Runs {
 public:
  static constexpr int kMost = 254;  // runs of a row

  // False if the chunk is not one of such an image. sum: Adler-32 of the rows in the file's zlib stream,
  // which are others if a program changed the pixels and kept the chunk.
  bool open(const uint8_t* data, size_t size, int height, int width, uint32_t sum) noexcept;

  // Goes to a row, which is not above the one before. False if the data is damaged.
  bool go(int row) noexcept;
  // Goes to the next row.
  bool next() noexcept;

  // How the row that was gone to differs from the one before: not at all, in the ends of its runs alone, or
  // in any way.
  enum Change { kSame, kMoved, kOther };
  Change change = kOther;
  // Its runs.
  int count = 0;
  int32_t ends[kMost];
  uint8_t values[kMost];

 private:
  bool seek(int band) noexcept;
  bool read_runs(int runs) noexcept;
  bool read_moves() noexcept;

  const uint8_t *sizes_ = nullptr, *data_ = nullptr, *end_ = nullptr, *next_ = nullptr;
  int height_ = 0, width_ = 0, band_ = 0, row_ = 0;
  int last_ = 0;  // row of the band
};

}  // namespace tarpeg
