#pragma once

#include "gather/plan.h"
#include "jpeg/zigzag.h"

// The data between two restart markers, without their stuffing: coefficients of a tile, by one thread. The
// same values and the same verdict as in jpeg/entropy.cpp and jpeg/planes.cpp.
namespace tarpeg::gather {

// What a thread does for a symbol: bits of the code and of the value, coefficients to go on, bits of the
// value, bits of the code. 0: there is no symbol.
struct Entry {
  static constexpr int kEnd = 64;  // to go on from the last coefficient of a block

  uint32_t word;

  TARPEG_HD static Entry of(int length, int symbol) {
    const int size = symbol & 15, step = symbol == 0 ? kEnd : (symbol >> 4) + 1;
    return {static_cast<uint32_t>(length + size | step << 8 | size << 16 | length << 24)};
  }
  TARPEG_HD int bits() const { return static_cast<int>(word & 255); }
  TARPEG_HD int step() const { return static_cast<int>(word >> 8 & 255); }
  TARPEG_HD int size() const { return static_cast<int>(word >> 16 & 255); }
  TARPEG_HD int length() const { return static_cast<int>(word >> 24); }
};

// A Huffman code for decoding.
struct Code {
  static constexpr int kLookahead = 9;

  uint32_t limits[17];  // left-aligned to 32 bits: codes of length n are below limits[n]
  int offsets[17];
  uint8_t symbols[256];
  int count;
  Entry quick[1 << kLookahead];  // by the next bits; 0 if the code is longer

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
  TARPEG_HD Entry find(uint32_t bits, int shortest) const {
    int length = shortest;
    for (int n = shortest; n <= 16; ++n) length += bits >= limits[n];
    if (length > 16) return {0};
    const int index = offsets[length] + static_cast<int>(bits >> (32 - length));
    return index >= 0 && index < count ? Entry::of(length, symbols[index]) : Entry{0};
  }
  TARPEG_HD void fill_quick(int index) {
    const Entry found = find(static_cast<uint32_t>(index) << (32 - kLookahead), 1);
    quick[index] = found.length() <= kLookahead ? found : Entry{0};
  }
  // Of the code that the next 32 bits begin with.
  TARPEG_HD Entry next(uint32_t bits) const {
    const Entry found = quick[bits >> (32 - kLookahead)];
    return found.word != 0 ? found : find(bits, kLookahead + 1);
  }
};

TARPEG_HD uint32_t big_endian(uint32_t word) {
#if defined(__CUDA_ARCH__)
  return __byte_perm(word, 0, 0x0123);
#else
  return __builtin_bswap32(word);
#endif
}

// Bits of a piece, in words that are within the tensor; ones follow its end.
class Bits {
 public:
  TARPEG_HD Bits(const uint8_t* data, uint32_t size) : data_(data), size_(size), whole_(size / 4) {
    high_ = ordered(load(0), 0);
    low_ = ordered(load(1), 1);
    next_ = load(index_);
  }
  // The next 32.
  TARPEG_HD uint32_t peek() const {
    return static_cast<uint32_t>((static_cast<uint64_t>(high_) << 32 | low_) << shift_ >> 32);
  }
  // Not more than 32.
  TARPEG_HD void drop(int count) {
    shift_ += count;
    if (shift_ < 32) return;
    shift_ -= 32;
    high_ = low_;
    low_ = ordered(next_, index_);
    next_ = load(++index_);
  }
  // Bits that are left; negative beyond the end.
  TARPEG_HD int64_t left() const { return 8 * int64_t{size_} - 32 * (int64_t{index_} - 2) - shift_; }

 private:
  TARPEG_HD uint32_t load(uint32_t index) const {
    uint32_t word = ~0u;
    if (index < whole_ || (index == whole_ && size_ % 4 != 0))
      read_aligned<4>(data_ + 4 * uint64_t{index}, &word);
    return word;
  }
  // Of such a word, the first of its bits being the highest.
  TARPEG_HD uint32_t ordered(uint32_t word, uint32_t index) const {
    return big_endian(word) | (index == whole_ ? ~0u >> (8 * (size_ % 4)) : 0);
  }

  const uint8_t* data_;
  uint32_t size_, whole_;  // bytes; words
  uint32_t high_, low_;
  uint32_t next_;       // as loaded: nothing waits for it before it is needed
  uint32_t index_ = 2;  // of that word
  int shift_ = 0;       // bits of `high_` that are dropped
};

// extended() of jpeg/huffman.h. `bits`: the next 32.
TARPEG_HD int value_of(uint32_t bits, int size) {
  const int is_negative = static_cast<int>(~bits) >> 31;  // -1 or 0
  const uint64_t magnitude = bits ^ static_cast<uint32_t>(is_negative);
  return (static_cast<int>(magnitude << size >> 32) ^ is_negative) - is_negative;
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
  int blocks = (stop - begin) * plan.mcu_blocks, unit = 0;
  int16_t* block = first_block(plan, row, begin, memory) - 64;
  const Code* code = codes;
  int at = 63;  // the last coefficient that is known
  for (;;) {
    if (at >= 63) {
      if (bits.left() < 0) return false;
      if (blocks-- == 0) break;
      block += 64;
      clear_block(block);
      const int component = plan.units[unit];
      unit = unit + 1 == plan.mcu_blocks ? 0 : unit + 1;
      const uint32_t next = bits.peek();
      const Entry found = codes[plan.image.dc_table[component]].next(next);
      if (found.word == 0) return false;
      bits.drop(found.bits());
      const uint32_t value = static_cast<uint32_t>(value_of(next << found.length(), found.size()));
      dc0 += component == 0 ? value : 0;
      dc1 += component == 1 ? value : 0;
      dc2 += component == 2 ? value : 0;
      uint32_t sum = component == 1 ? dc1 : dc2;
      if (component == 0) sum = dc0;
      block[0] = static_cast<int16_t>(sum);
      code = codes + plan.image.ac_table[component];
      at = 0;
    }
    // At most 16 bits of a code and 11 of a value.
    const uint32_t next = bits.peek();
    const Entry found = code->next(next);
    if (found.word == 0) return false;
    bits.drop(found.bits());
    at += found.step();
    if (at <= 63) {
      block[at] = static_cast<int16_t>(value_of(next << found.length(), found.size()));
    } else if (found.step() != Entry::kEnd) {
      return false;
    }
  }
  return stop < end || is_end(data, piece.size, bits.left());
}

}  // namespace tarpeg::gather
