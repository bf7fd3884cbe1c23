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
};

// The body of a DHT segment with the tables of T.81 K.3: DC 0, AC 0, DC 1, AC 1.
constexpr size_t kStandardDc = 17 + 12, kStandardAc = 17 + 162;
extern const uint8_t kStandardTables[2 * (kStandardDc + kStandardAc)];

// DC codes by the next kLookahead bits, the first of which is the highest.
struct DcTable : HuffmanCode {
  static constexpr int kLookahead = 9;

  struct Entry {
    uint8_t length, size,
        total;  // bits of the code, of the difference, of both; 0 for a longer code, or none
  };
  Entry entries[1 << kLookahead];

  void fill() noexcept;
};

// Note [pairs]
// Decoding is a chain of lookups, each of which depends on the previous one. Most AC codes are short,
// so most entries of a small table hold two of them, including their values.
struct AcTable : HuffmanCode {
  static constexpr int kLookahead = 10;
  // The run that represents the end of a block: it leads out of any block, farther than a damaged run could.
  static constexpr int kEndOfBlock = 128;

  // The first one or two coefficients in the next bits. In an entry of one coefficient the fields of both
  // describe it.
  class Entry {
   public:
    Entry() noexcept = default;
    // A coefficient after `run` zeros, in `bits` bits.
    Entry(int bits, int run, int value) noexcept
        : word_(byte(bits) | byte(run) << 8 | byte(run) << 16 | byte(run + 1) << 24 | half(value) << 32 |
                half(value) << 48) {}
    // A code of `length` bits whose coefficient has `size` more, too many for the table.
    static Entry partial(int length, int run, int size) noexcept {
      Entry entry;
      entry.word_ = byte(run) << 8 | byte(length) << 24 | half(size) << 32;
      return entry;
    }
    // This coefficient, then that of `next`, is the entry word() + added() + next.follower(): no field of a
    // sum carries into the next one.
    uint64_t added() const noexcept {
      const uint64_t both = byte(bits()) | byte(advance()) << 16 | byte(advance()) << 24;
      return (both | (word_ & 0xFFFF0000FF00)) - word_;
    }
    uint64_t follower() const noexcept {
      return byte(bits()) | byte(first()) << 16 | byte(advance()) << 24 | half(value()) << 48;
    }
    static Entry of(uint64_t word) noexcept {
      Entry entry;
      entry.word_ = word;
      return entry;
    }

    uint64_t word() const noexcept { return word_; }
    int bits() const noexcept { return word_ & 0xFF; }  // 0: the table does not hold the whole coefficient
    int first() const noexcept { return word_ >> 8 & 0xFF; }     // zeros before the first
    int second() const noexcept { return word_ >> 16 & 0xFF; }   // distance of the second from the start
    int advance() const noexcept { return word_ >> 24 & 0xFF; }  // to the start of the next
    int16_t value() const noexcept { return static_cast<int16_t>(word_ >> 32); }
    int16_t second_value() const noexcept { return static_cast<int16_t>(word_ >> 48); }
    bool is_pair() const noexcept { return first() != second(); }

   private:
    static uint64_t byte(int value) noexcept { return static_cast<uint8_t>(value); }
    static uint64_t half(int value) noexcept { return static_cast<uint16_t>(value); }

    uint64_t word_ = 0;
  };
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
