#pragma once

#include <cstddef>
#include <cstdint>

namespace tarpeg {

// Decoding tables of one Huffman code, for a bit buffer whose next bit is its highest.
struct HuffmanTable {
  static constexpr int kLookahead = 10;
  // The run that stands for the end of a block: it leads out of any block, farther than a damaged run could.
  static constexpr int kEndOfBlock = 128;

  // What the next kLookahead bits begin with.
  struct Entry {
    int16_t value;  // the coefficient, where its bits are among them; otherwise how many bits it takes
    uint8_t run;    // zeros before it
    int8_t bits;    // bits used up; negative, or 0 for a code that is longer or none, where it is not the
                    // coefficient
  };

  alignas(64) Entry entries[1 << kLookahead];
  uint32_t limits[17];  // left-aligned to 32 bits: codes of length n are below limits[n]
  int offsets[17];
  uint8_t symbols[256];
  int count;

  // From a DHT segment's 16 counts and the symbols behind them. False where the code is overfull, or has a
  // symbol that no sequential 8-bit JPEG needs: a DC size above 11, an AC size above 10 or an odd run of
  // zeros.
  bool build(const uint8_t* counts, const uint8_t* values, size_t available, bool is_dc) noexcept;
};

}  // namespace tarpeg
