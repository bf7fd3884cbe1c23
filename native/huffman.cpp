#include "huffman.h"

#include <cstring>

namespace tarpeg {
namespace {

bool is_known_symbol(int symbol, bool is_dc) noexcept {
  if (is_dc) return symbol <= 11;
  const int run = symbol >> 4, size = symbol & 15;
  return size == 0 ? run == 0 || run == 15 : size <= 10;
}

}  // namespace

// Fills `entries` in order: the codes of a canonical code come in order.
bool HuffmanTable::build(const uint8_t* counts, const uint8_t* values, size_t available,
                         bool is_dc) noexcept {
  uint32_t code = 0;
  int index = 0;
  size_t filled = 0;
  for (int length = 1; length <= 16; ++length) {
    const int here = counts[length - 1];
    if (static_cast<size_t>(index) + here > available || index + here > 256) return false;
    // The code of all ones is reserved: a code that needs it, or more, is damaged.
    if (here > 0 && code + here > (1u << length) - 1) return false;
    offsets[length] = index - static_cast<int>(code);
    for (int i = 0; i < here; ++i, ++code, ++index) {
      const int symbol = values[index];
      if (!is_known_symbol(symbol, is_dc)) return false;
      symbols[index] = static_cast<uint8_t>(symbol);
      if (length > kLookahead) continue;
      const int size = symbol & 15, spare = kLookahead - length;
      const uint8_t run = !is_dc && symbol == 0 ? kEndOfBlock : static_cast<uint8_t>(symbol >> 4);
      const bool whole = size <= spare;
      if (!whole) {
        const Entry entry{static_cast<int16_t>(size), run, static_cast<int8_t>(-length)};
        for (int rest = 1 << spare; rest > 0; --rest) entries[filled++] = entry;
        continue;
      }
      // Coefficients in the order of their bits: first the negative ones, from the most negative on.
      const int repeat = 1 << (spare - size);
      for (int bits = 0; bits < 1 << size; ++bits) {
        const int value = size > 0 && bits < 1 << (size - 1) ? bits + 1 - (1 << size) : bits;
        const Entry entry{static_cast<int16_t>(value), run, static_cast<int8_t>(length + size)};
        for (int rest = repeat; rest > 0; --rest) entries[filled++] = entry;
      }
    }
    limits[length] = code << (32 - length);
    code <<= 1;
  }
  while (filled < 1 << kLookahead) entries[filled++] = {0, 0, 0};
  count = index;
  return index > 0;
}

}  // namespace tarpeg
