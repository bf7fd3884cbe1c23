#pragma once

#include <cstddef>
#include <cstdint>

#include "jpeg/huffman.h"

namespace tarpeg {

// Entropy-coded bytes without their stuffing, followed by zeros: the input of BitReader.
// Writes at most `size` + kReadAhead bytes to `out` and returns how many of them are data; -1 if a 0xFF is
// followed by anything but 0x00.
constexpr size_t kReadAhead = 320;
ptrdiff_t remove_stuffing(const uint8_t* data, size_t size, uint8_t* out) noexcept;

// Note [padding]
// A decoder that has lost its place still finds codes, and often the right number of blocks: the only trace
// is that data are left over before the next marker, or that they are too short. So a segment whose blocks do
// not end in its last byte is damaged, unless the bytes after them are padding of an encoder: webcams add a
// byte of ones before restart markers, cameras and two files of ImageNet add bytes 00 or 7F before EOI.
// libjpeg only warns, counts wrongly with restart markers, and keeps silent about up to 7 bytes: its report
// counts only for files that PlaneReader cannot parse, such as progressive ones (libjpeg_errors.cpp).
constexpr size_t kMostPadding = 15;
inline bool is_padding(const uint8_t* bytes, size_t count) noexcept {
  if (count > kMostPadding) return false;
  for (size_t i = 0; i < count; ++i) {
    if (bytes[i] != 0x00 && bytes[i] != 0x7F && bytes[i] != 0xFF) return false;
  }
  return true;
}

// Reads bits from the output of remove_stuffing(). Beyond the end the bits are zero, and overrun() is true.
// Call it at least once per block: a block has at most 64 * 27 bits, kReadAhead holds more.
class BitReader {
 public:
  BitReader() noexcept = default;
  BitReader(const uint8_t* data, ptrdiff_t size) noexcept : at_(data), end_(data + size) {}

  static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "refill() reads words of a little-endian machine");
  // At least 56 bits from here on.
  void refill() noexcept {
    const int left = count();
    uint64_t word;
    __builtin_memcpy(&word, at_, 8);
    buffer_ |= __builtin_bswap64(word) >> left;
    at_ += (63 - left) >> 3;
    count_ = static_cast<uint64_t>(left) | 56;
  }
  // The next bits, the first of them the highest.
  uint64_t bits() const noexcept { return buffer_; }
  // Only the lowest six bits of `count` matter.
  void drop(uint64_t count) noexcept {
    buffer_ <<= count & 63;
    count_ -= count;
  }
  // Undoes the last drop(): `bits` is the state before it.
  void restore(uint64_t bits, uint64_t count) noexcept {
    buffer_ = bits;
    count_ += count;
  }
  bool overrun() const noexcept { return at_ - (count() >> 3) > end_; }
  // Number of bits that are left; negative beyond the end.
  ptrdiff_t left() const noexcept { return 8 * (end_ - at_) + count(); }

 private:
  int count() const noexcept { return static_cast<int>(count_ & 63); }

  const uint8_t* at_ = nullptr;
  const uint8_t* end_ = nullptr;
  uint64_t buffer_ = 0;
  uint64_t count_ = 0;  // how many bits of the buffer are filled, in the lowest six bits
};

// A block of coefficients in natural order, and room for damaged runs beyond its end.
constexpr int kBlockSize = 72;
using Block = int16_t[kBlockSize];

// The tables of a block, and the index of its DC prediction.
struct BlockPlan {
  const DcTable* dc;
  const AcTable* ac;
  int component;
};

// Decodes blocks one after another, not yet multiplied by the quantisers; writes only nonzero ones. False if
// the data are damaged.
bool decode_blocks(BitReader* reader, const BlockPlan* plans, int count, int* dc, Block* blocks) noexcept;

}  // namespace tarpeg
