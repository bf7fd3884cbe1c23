#include "png/runs.h"

#include <algorithm>

namespace tarpeg {
namespace {

constexpr uint8_t kVersion = 1;
constexpr size_t kHead = 9;  // version, sum, rows of a band
constexpr size_t kSize = 4;  // of the size of a band
constexpr uint8_t kAsAbove = 0, kMovedRuns = 255;

uint32_t big_endian(const uint8_t* at) noexcept {
  return static_cast<uint32_t>(at[0]) << 24 | at[1] << 16 | at[2] << 8 | at[3];
}

}  // namespace

bool Runs::open(const uint8_t* data, size_t size, int height, int width, uint32_t sum) noexcept {
  if (size < kHead || data[0] != kVersion || big_endian(data + 1) != sum || width > 0xFFFF) return false;
  const uint32_t band = big_endian(data + 5);
  if (band < 1 || band > 0xFFFFFF) return false;
  const size_t bands = (static_cast<size_t>(height) + band - 1) / band;
  if ((size - kHead) / kSize < bands) return false;
  sizes_ = data + kHead;
  data_ = sizes_ + kSize * bands;
  end_ = data + size;
  height_ = height, width_ = width, band_ = static_cast<int>(band);
  return seek(0);
}

bool Runs::seek(int band) noexcept {
  next_ = data_;
  for (int i = 0; i < band; ++i) {
    const uint32_t size = big_endian(sizes_ + kSize * static_cast<size_t>(i));
    if (size > static_cast<size_t>(end_ - next_)) return false;
    next_ += size;
  }
  row_ = band * band_ - 1;
  last_ = std::min(row_ + band_, height_ - 1);
  count = 0;
  return true;
}

bool Runs::go(int row) noexcept {
  Change found = kSame;
  if (row > last_) {
    if (!seek(row / band_)) return false;
    found = kOther;
  }
  while (row_ < row) {
    if (!next()) return false;
    found = std::max(found, change);
  }
  change = found;
  return true;
}

bool Runs::next() noexcept {
  if (next_ == end_ || row_ + 1 >= height_) return false;
  if (++row_ > last_) {
    last_ = std::min(last_ + band_, height_ - 1);
    count = 0;  // a band refers to nothing before it
  }
  const uint8_t kind = *next_++;
  if (kind == kAsAbove) {
    change = kSame;
    return count > 0;
  }
  change = kind == kMovedRuns ? kMoved : kOther;
  return kind == kMovedRuns ? read_moves() : read_runs(kind);
}

bool Runs::read_runs(int runs) noexcept {
  const size_t size = 3 * static_cast<size_t>(runs) - 2;
  if (static_cast<size_t>(end_ - next_) < size) return false;
  int32_t before = 0;
  bool is_right = true;
  for (int i = 0; i < runs - 1; ++i, next_ += 3) {
    values[i] = next_[0];
    ends[i] = next_[1] << 8 | next_[2];
    is_right &= ends[i] > before;
    before = ends[i];
  }
  values[runs - 1] = *next_++;
  ends[runs - 1] = width_;
  count = runs;
  return is_right && before < width_;
}

bool Runs::read_moves() noexcept {
  const int inner = count - 1;
  if (inner < 1 || end_ - next_ < inner) return false;
  int32_t before = 0;
  bool is_right = true;
  for (int i = 0; i < inner; ++i) {
    ends[i] += static_cast<int8_t>(next_[i]);
    is_right &= ends[i] > before;
    before = ends[i];
  }
  next_ += inner;
  return is_right && before < width_;
}

}  // namespace tarpeg
