#pragma once

#include <cstddef>
#include <cstdint>

namespace tarpeg {

// A canonical Huffman code of a JPEG.
struct HuffmanCode {
  uint32_t limits[17];  // left-aligned to 32 bits: codes of length n are below limits[n]
  int offsets[17];
  uint8_t symbols[256];
  int count;

  // The code that the next bits begin with; its length is 0 if they are not a code.
  struct Symbol {
    int length, value;
  };

  // From a DHT segment's 16 counts and the symbols after them. False if the code is overfull, or has a
  // symbol that no sequential 8-bit JPEG needs: a DC size above 11, an AC size above 10 or an odd run of
  // zeros.
  bool build(const uint8_t* counts, const uint8_t* values, size_t available, bool is_dc) noexcept;

  // Slow, for every length of code. `bits`: the next 32.
  Symbol find(uint32_t bits) const noexcept;

 protected:
  // How many codes have `length` bits, at most 16.
  int codes(int length) const noexcept;
  // Entries of one coefficient by the next `lookahead` bits.
  void fill(int lookahead, bool is_dc, struct Entry* entries) const noexcept;
};

// The body of a DHT segment with the tables of T.81 K.3: DC 0, AC 0, DC 1, AC 1.
constexpr size_t kStandardDc = 17 + 12, kStandardAc = 17 + 162;
extern const uint8_t kStandardTables[2 * (kStandardDc + kStandardAc)];

// The first one or two coefficients in the next bits. The same steps apply to every entry, without a branch:
// the first value is `value` plus the next bits shifted right by `shift`, which completes values whose end is
// beyond the lookahead. For a value that the entry holds as a whole, `shift` leaves the first bit, which is
// subtracted in `value`.
struct Entry {
  // The distance that represents the end of a block, and that of no entry: see behind() in entropy.cpp.
  static constexpr int kEndOfBlock = 128, kNone = 64;

  uint8_t bits;    // of all that is in it
  uint8_t first;   // zeros before the first coefficient
  uint8_t second;  // distance of the second from the start; `first` if there is one coefficient
  uint8_t shift;
  int16_t second_value, value;
};
static_assert(sizeof(Entry) == 8, "AcTable::fill() adds entries as words");

// DC codes, with the difference, by the next kLookahead bits, the first of which is the highest.
struct DcTable : HuffmanCode {
  static constexpr int kLookahead = 8;

  alignas(64) Entry entries[1 << kLookahead];
  alignas(64) Entry none[2];  // a table of one bit without any code

  void fill() noexcept;
};

// Note [pairs]
// Decoding is a chain of lookups, each of which depends on the previous one. Most AC codes are short,
// so most entries of a small table hold two of them, including their values.
struct AcTable : HuffmanCode {
  static constexpr int kLookahead = 10;

  alignas(64) Entry entries[1 << kLookahead];

  void fill() noexcept;
};

// The coefficient or difference that `size` bits encode (T.81 F.2.2.1), beginning at the highest of `bits`.
inline int extended(uint64_t bits, int size) noexcept {
  const int value = static_cast<int>(bits >> 1 >> (63 - size));
  const int is_negative = static_cast<int>(~bits >> 63);
  return value - (-is_negative & ((1 << size) - 1));
}

}  // namespace tarpeg
