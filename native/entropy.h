#pragma once

#include <cstddef>
#include <cstdint>

#include "huffman.h"

namespace tarpeg {

// Entropy-coded bytes without their stuffing, and zeros behind them: what BitReader reads.
// Writes at most `size` + kReadAhead bytes to `out` and returns how many of them are data; -1 where a 0xFF is
// followed by anything but 0x00.
constexpr size_t kReadAhead = 320;
ptrdiff_t remove_stuffing(const uint8_t* data, size_t size, uint8_t* out) noexcept;

// Reads bits from what remove_stuffing() wrote. Taking more than there is gives zeros; overrun() tells. It
// must be asked at least once a block: a block takes at most 64 * 27 bits, kReadAhead holds more.
class BitReader {
 public:
  BitReader() noexcept = default;
  BitReader(const uint8_t* data, ptrdiff_t size) noexcept : at_(data), end_(data + size) {}

  // At least 56 bits from here on.
  void refill() noexcept {
    uint64_t word;
    __builtin_memcpy(&word, at_, 8);
    buffer_ |= __builtin_bswap64(word) >> bits_;
    at_ += (63 - bits_) >> 3;
    bits_ |= 56;
  }
  uint32_t peek(int count) const noexcept { return static_cast<uint32_t>(buffer_ >> (64 - count)); }
  void drop(int count) noexcept {
    buffer_ <<= count;
    bits_ -= count;
  }
  bool overrun() const noexcept { return at_ - (bits_ >> 3) > end_; }
  // Whether all is used up but for the padding of the last byte.
  bool finished() const noexcept {
    const ptrdiff_t left = 8 * (end_ - at_) + bits_;
    return left >= 0 && left < 8;
  }

 private:
  const uint8_t* at_ = nullptr;
  const uint8_t* end_ = nullptr;
  uint64_t buffer_ = 0;
  int bits_ = 0;
};

// A block of coefficients in natural order, and room for what leads out of it.
constexpr int kBlockSize = 72;

// Decodes one block into 64 zeroed coefficients, not yet multiplied by the quantisers; `dc` is the running
// prediction. False on damage.
bool decode_block(BitReader* reader, const HuffmanTable& dc_table, const HuffmanTable& ac_table, int* dc,
                  int16_t* block) noexcept;

// The same without keeping the coefficients.
bool skip_block(BitReader* reader, const HuffmanTable& dc_table, const HuffmanTable& ac_table,
                int* dc) noexcept;

}  // namespace tarpeg
