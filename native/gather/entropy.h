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

  // HuffmanCode::build() of jpeg/huffman.cpp; `symbols` and `quick` are filled apart from it.
  TARPEG_HD bool build(const uint8_t* counts) {
    uint32_t code = 0;
    int index = 0;
    limits[0] = 0;
    for (int length = 1; length <= 16; ++length) {
      const int here = counts[length - 1];
      if (index + here > 256) return false;
      if (here > 0 && code + here > (1u << length) - 1) return false;
      offsets[length] = index - static_cast<int>(code);
      code += here;
      index += here;
      limits[length] = code << (32 - length);
      code <<= 1;
    }
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
  // 0 if the bits are not a code of at least `shortest` bits, and begin with none that is shorter.
  TARPEG_HD int find(uint32_t bits, int shortest) const {
    int length = shortest;
    for (int n = shortest; n <= 16; ++n) length += bits >= limits[n];
    if (length > 16) return 0;
    const int index = offsets[length] + static_cast<int>(bits >> (32 - length));
    return index >= 0 && index < count ? length << 8 | symbols[index] : 0;
  }
  TARPEG_HD void fill_quick(int index) {
    const int found = find(static_cast<uint32_t>(index) << (32 - kLookahead), 1);
    quick[index] = static_cast<uint16_t>(found >> 8 <= kLookahead ? found : 0);
  }
  // Length << 8 | symbol of the code that the next 32 bits begin with; 0 if there is none.
  TARPEG_HD int next(uint32_t bits) const {
    const int found = quick[bits >> (32 - kLookahead)];
    return found != 0 ? found : find(bits, kLookahead + 1);
  }
};

// Bits of a piece that begins at a multiple of four bytes; ones follow its end.
class Bits {
 public:
  TARPEG_HD Bits(const uint8_t* data, uint32_t size) : data_(data), size_(size), left_(8 * int64_t{size}) {
    next_ = word();
  }
  // The next 32.
  TARPEG_HD uint32_t peek() {
    if (held_ < 32) {
      buffer_ |= static_cast<uint64_t>(next_) << (32 - held_);
      held_ += 32;
      next_ = word();
    }
    return static_cast<uint32_t>(buffer_ >> 32);
  }
  // Not more than 32.
  TARPEG_HD void drop(int count) {
    buffer_ <<= count;
    held_ -= count;
    left_ -= count;
  }
  // Bits that are left; negative beyond the end.
  TARPEG_HD int64_t left() const { return left_; }

 private:
  TARPEG_HD uint32_t word() {
    uint32_t bytes = 0xFFFFFFFF;
    if (at_ + 4 <= size_) {
      read_aligned<4>(data_ + at_, &bytes);
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
  int64_t left_;
  uint64_t buffer_ = 0;
  uint32_t next_;  // loaded before it is needed
  int held_ = 0;   // bits of the buffer
};

// extended() of jpeg/huffman.h. `bits`: the next 32.
TARPEG_HD int value_of(uint32_t bits, int size) {
  const int value = static_cast<int>(bits >> 1 >> (31 - size));
  const int is_negative = static_cast<int>(~bits >> 31);
  return value - (-is_negative & ((1 << size) - 1));
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

TARPEG_HD void clear_block(int16_t* block) {
  struct {
    uint32_t words[4];
  } zeros = {};
  for (int i = 0; i < 64; i += 8) write_aligned<16>(zeros, block + i);
}

// The coefficients, in zigzag order, of the first block of a piece that begins with that MCU of a row.
TARPEG_HD int16_t* first_block(const Plan& plan, int row, int mcu, uint8_t* memory) {
  const int64_t before = int64_t{row - plan.first_row} * plan.row_mcus + mcu - plan.first_mcu;
  return reinterpret_cast<int16_t*>(memory + plan.coefficients) + 64 * before * plan.mcu_blocks;
}

// Piece `index` of the image. `codes`: its tables. False if it is damaged. A loop over symbols, not over
// blocks: the threads of a warp would wait in each block for the longest of theirs.
TARPEG_HD bool decode_segment(const Gathered& all, const Plan& plan, int index, const Code* codes,
                              uint8_t* memory) {
  const Piece piece = all.piece(plan.image.first_piece + static_cast<uint64_t>(index));
  const int row = plan.first_row + index / plan.tiles;
  const int begin = (plan.first_tile + index % plan.tiles) * plan.image.tile;
  const int end = begin + plan.image.tile, stop = least(end, plan.last_column + 1);
  const uint8_t* const data = all.data + kUnit * piece.at;
  Bits bits(data, piece.size);
  uint32_t dc0 = 0, dc1 = 0, dc2 = 0;  // in registers, which an array that is indexed is not
  int blocks = (stop - begin) * plan.mcu_blocks, unit = 0, component = 0, at = 0;
  int16_t* block = first_block(plan, row, begin, memory);
  const Code* code = codes + plan.image.dc_table[0];
  clear_block(block);
  for (;;) {
    const uint32_t next = bits.peek();
    const int found = code->next(next);
    if (found == 0) return false;
    // At most 16 bits of a code and 11 of a value.
    const int length = found >> 8, run = found >> 4 & 15, size = found & 15;
    bits.drop(length + size);
    int value = value_of(next << length, size);
    bool is_done = false;
    if (at == 0) {
      dc0 += component == 0 ? static_cast<uint32_t>(value) : 0;
      dc1 += component == 1 ? static_cast<uint32_t>(value) : 0;
      dc2 += component == 2 ? static_cast<uint32_t>(value) : 0;
      uint32_t sum = component == 1 ? dc1 : dc2;
      if (component == 0) sum = dc0;
      value = static_cast<int>(sum);
      code = codes + plan.image.ac_table[component];
    } else {
      is_done = (found & 255) == 0;
    }
    if (!is_done) {
      at += run;
      if (at > 63) return false;
      block[at] = static_cast<int16_t>(value);
      is_done = ++at == 64;
    }
    if (is_done) {
      if (bits.left() < 0) return false;
      if (--blocks == 0) break;
      block += 64;
      clear_block(block);
      unit = unit + 1 == plan.mcu_blocks ? 0 : unit + 1;
      component = plan.units[unit];
      code = codes + plan.image.dc_table[component];
      at = 0;
    }
  }
  return stop < end || is_end(data, piece.size, bits.left());
}

}  // namespace tarpeg::gather
