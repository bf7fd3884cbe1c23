#pragma once

#include <cstddef>
#include <cstdint>

#include "jpeg/huffman.h"

namespace tarpeg {

// Entropy-coded bytes without their stuffing, followed by ones, which begin no code: no decoder reads on in
// them. The longest code and its value have 27 bits, and words of 8 bytes are read: kReadAhead holds more.
// Writes at most `size` + kReadAhead bytes to `out` and returns how many of them are data; -1 if a 0xFF is
// followed by anything but 0x00.
constexpr size_t kReadAhead = 32;
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

// Reads bits from the output of remove_stuffing(). overrun() is true beyond its end.
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

// A block of coefficients in natural order, and one for runs beyond its end; LanePair uses the rest.
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

// Note [lanes]
// Each lookup depends on the previous one, and the branch at the end of a block is mispredicted: most of the
// time the processor waits. So two segments are decoded at a time, two lookups of each in turn, and blocks
// end without a branch: conditional moves select the next block and its table. On photographs of q85 to q95 a
// block takes 0.7 of the time. Three segments are slower: registers do not suffice. If anything is irregular,
// decode_blocks() decides.
class LanePair {
 public:
  static constexpr int kLanes = 2, kMostBlocks = 64;

  static bool is_available() noexcept;
  // The blocks of an MCU, whose tables lie behind `tables`, in one object of less than 2 GiB.
  void plan(const BlockPlan* plans, int count, const DcTable* tables) noexcept;
  // Begins a segment: output of remove_stuffing() that is to be decoded up to block `count`. Those before
  // `first` are not needed.
  void start(int lane, const uint8_t* data, ptrdiff_t size, int first, int count) noexcept;
  // Decodes until a lane has all its blocks, and returns its number; -1 if the data are irregular.
  int run() noexcept;
  const Block* blocks(int lane) const noexcept { return blocks_[lane]; }
  // Number of bits behind the last block.
  ptrdiff_t left(int lane) const noexcept {
    return lanes_[lane].size - static_cast<ptrdiff_t>(lanes_[lane].at);
  }

  struct Lane {
    const uint8_t* data;
    ptrdiff_t size;           // bits
    uint64_t at;              // the next of them
    Block* block;             // which is being decoded
    Block* end;               // behind the last
    const uint8_t* position;  // of the next coefficient, in the natural order
    uint32_t table;           // where it is looked up
    bool is_active;
  };

 private:
  bool decode_one(Lane* lane, int number) noexcept;

  const BlockPlan* plans_;
  int count_;
  const DcTable* tables_;
  Lane lanes_[kLanes];
  alignas(64) Block blocks_[kLanes][kMostBlocks + 1];
};

}  // namespace tarpeg
