#pragma once

#include "gather/plan.h"
#include "jpeg/zigzag.h"

// The data between two restart markers, without their stuffing: coefficients of a tile, by one thread. The
// same values and the same verdict as in jpeg/entropy.cpp and jpeg/planes.cpp.
namespace tarpeg::gather {

// A Huffman code for decoding.
struct Code {
  static constexpr int kLookahead = 9;

  uint32_t limits[17];  // left-aligned to 32 bits: codes of length n are below limits[n]
  int offsets[17];
  uint8_t symbols[256];
  int count;
  uint16_t quick[1 << kLookahead];  // by the next bits: length << 8 | symbol; 0 if the code is longer

  // HuffmanCode::build() of jpeg/huffman.cpp; `quick` is filled afterwards.
  TARPEG_HD bool build(const Table& table) {
    uint32_t code = 0;
    int index = 0;
    for (int length = 1; length <= 16; ++length) {
      const int here = table.counts[length - 1];
      if (index + here > 256) return false;
      if (here > 0 && code + here > (1u << length) - 1) return false;
      offsets[length] = index - static_cast<int>(code);
      for (int i = 0; i < here; ++i, ++code, ++index) symbols[index] = table.symbols[index];
      limits[length] = code << (32 - length);
      code <<= 1;
    }
    limits[0] = 0;
    count = index;
    return index > 0;
  }
  // Whether all symbols are those of such a code; see is_known_symbol() there.
  TARPEG_HD bool is_known(bool is_dc) const {
    for (int i = 0; i < count; ++i) {
      const int run = symbols[i] >> 4, size = symbols[i] & 15;
      if (is_dc ? symbols[i] > 11 : size == 0 ? run != 0 && run != 15 : size > 10) return false;
    }
    return true;
  }
  // 0 if the bits are not a code.
  TARPEG_HD int find(uint32_t bits) const {
    int length = 1;
    for (int n = 1; n <= 16; ++n) length += bits >= limits[n];
    if (length > 16) return 0;
    const int index = offsets[length] + static_cast<int>(bits >> (32 - length));
    return index >= 0 && index < count ? length << 8 | symbols[index] : 0;
  }
  TARPEG_HD void fill_quick(int index) {
    const int found = find(static_cast<uint32_t>(index) << (32 - kLookahead));
    quick[index] = static_cast<uint16_t>(found >> 8 <= kLookahead ? found : 0);
  }
  // Length << 8 | symbol of the code that the next 32 bits begin with; 0 if there is none.
  TARPEG_HD int next(uint32_t bits) const {
    const int found = quick[bits >> (32 - kLookahead)];
    return found != 0 ? found : find(bits);
  }
};

// Bits of a piece that begins at a multiple of four bytes; ones follow its end.
class Bits {
 public:
  TARPEG_HD Bits(const uint8_t* data, uint32_t size) : data_(data), size_(size), all_(8 * uint64_t{size}) {}
  // The next 32.
  TARPEG_HD uint32_t peek() {
    if (held_ < 32) {
      buffer_ |= static_cast<uint64_t>(word()) << (32 - held_);
      held_ += 32;
    }
    return static_cast<uint32_t>(buffer_ >> 32);
  }
  // Not more than 32.
  TARPEG_HD void drop(int count) {
    buffer_ <<= count;
    held_ -= count;
    used_ += static_cast<uint64_t>(count);
  }
  // Bits that are left; negative beyond the end.
  TARPEG_HD int64_t left() const { return static_cast<int64_t>(all_) - static_cast<int64_t>(used_); }

 private:
  TARPEG_HD uint32_t word() {
    uint32_t bytes = 0xFFFFFFFF;
    if (at_ + 4 <= size_) {
      __builtin_memcpy(&bytes, __builtin_assume_aligned(data_ + at_, 4), 4);
      bytes = bytes >> 24 | (bytes >> 8 & 0xFF00) | (bytes << 8 & 0xFF0000) | bytes << 24;
    } else {
      for (uint32_t i = at_; i < size_; ++i) {
        const int shift = static_cast<int>(24 - 8 * (i - at_));
        bytes = (bytes & ~(0xFFu << shift)) | static_cast<uint32_t>(data_[i]) << shift;
      }
    }
    if (at_ < size_) at_ += 4;
    return bytes;
  }

  const uint8_t* data_;
  uint32_t size_, at_ = 0;
  uint64_t all_, used_ = 0, buffer_ = 0;
  int held_ = 0;  // bits of the buffer
};

// extended() of jpeg/huffman.h. `bits`: the next 32.
TARPEG_HD int value_of(uint32_t bits, int size) {
  const int value = static_cast<int>(bits >> 1 >> (31 - size));
  const int is_negative = static_cast<int>(~bits >> 31);
  return value - (-is_negative & ((1 << size) - 1));
}

TARPEG_HD void clear_block(int16_t* block) {
  for (int k = 0; k < 64; ++k) block[k] = 0;
}

// The coefficients of a block, in natural order; of none if `block` is null. False on damage.
TARPEG_HD bool decode_block(Bits* bits, const Code& dc_code, const Code& ac_code, const uint8_t* zigzag,
                            int* dc, int16_t* block) {
  uint32_t next = bits->peek();
  int found = dc_code.next(next), size = found & 255, length = found >> 8;
  if (found == 0) return false;
  // At most 16 bits of a code and 11 of a value.
  const int difference = value_of(next << length, size);
  *dc = static_cast<int>(static_cast<uint32_t>(*dc) + static_cast<uint32_t>(difference));
  bits->drop(length + size);
  if (block != nullptr) block[0] = static_cast<int16_t>(*dc);
  for (int k = 1; k < 64;) {
    next = bits->peek();
    found = ac_code.next(next);
    if (found == 0) return false;
    length = found >> 8;
    const int run = found >> 4 & 15;
    size = found & 15;
    bits->drop(length + size);
    if ((found & 255) == 0) break;
    if (k + run > 63) return false;
    if (block != nullptr) block[zigzag[k + run]] = static_cast<int16_t>(value_of(next << length, size));
    k += run + 1;
  }
  return bits->left() >= 0;
}

// See Note [padding] in jpeg/entropy.h.
TARPEG_HD bool is_end(const uint8_t* data, uint32_t size, int64_t left) {
  constexpr int64_t kMost = 15;
  const int64_t surplus = left / 8;
  if (left < 0 || surplus > kMost) return false;
  for (int64_t i = 0; i < surplus; ++i) {
    const uint8_t byte = data[size - 1 - i];
    if (byte != 0x00 && byte != 0x7F && byte != 0xFF) return false;
  }
  return true;
}

// Where the coefficients of a block go; null if it is not decoded.
TARPEG_HD int16_t* block_at(const Plane& plane, int row, int column, uint8_t* memory) {
  if (row < plane.first_row || row > plane.last_row || column < plane.first_column ||
      column > plane.last_column) {
    return nullptr;
  }
  const int across = plane.last_column - plane.first_column + 1;
  const int64_t number = static_cast<int64_t>(row - plane.first_row) * across + column - plane.first_column;
  return reinterpret_cast<int16_t*>(memory + plane.coefficients) + 64 * number;
}

// Piece `index` of the image. `codes`: its tables. False if it is damaged.
TARPEG_HD bool decode_segment(const Gathered& all, const Plan& plan, int index, const Code* codes,
                              const uint8_t* zigzag, uint8_t* memory) {
  const Piece piece = all.piece(plan.image.first_piece + static_cast<uint64_t>(index));
  const int row = plan.first_row + index / plan.tiles;
  const int begin = (plan.first_tile + index % plan.tiles) * plan.image.tile;
  const int end = begin + plan.image.tile, stop = least(end, plan.last_column + 1);
  const uint8_t* const data = all.data + kUnit * piece.at;
  Bits bits(data, piece.size);
  int dc[3] = {0, 0, 0};
  for (int column = begin; column < stop; ++column) {
    for (int i = 0; i < plan.components; ++i) {
      const Plane& plane = plan.planes[i];
      const Code &dc_code = codes[plan.image.dc_table[i]], &ac_code = codes[plan.image.ac_table[i]];
      for (int k = 0; k < plane.down * plane.across; ++k) {
        int16_t* block = nullptr;
        if (i < plan.wanted) {
          block = block_at(plane, row * plane.down + k / plane.across,
                           column * plane.across + k % plane.across, memory);
        }
        if (block != nullptr) clear_block(block);
        if (!decode_block(&bits, dc_code, ac_code, zigzag, dc + i, block)) return false;
      }
    }
  }
  return stop < end || is_end(data, piece.size, bits.left());
}

}  // namespace tarpeg::gather
