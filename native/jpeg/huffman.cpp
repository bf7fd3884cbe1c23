#include "jpeg/huffman.h"

#include <algorithm>

namespace tarpeg {
namespace {

bool is_known_symbol(int symbol, bool is_dc) noexcept {
  if (is_dc) return symbol <= 11;
  const int run = symbol >> 4, size = symbol & 15;
  return size == 0 ? run == 0 || run == 15 : size <= 10;
}

}  // namespace

bool HuffmanCode::build(const uint8_t* counts, const uint8_t* values, size_t available, bool is_dc) noexcept {
  uint32_t code = 0;
  int index = 0;
  for (int length = 1; length <= 16; ++length) {
    const int here = counts[length - 1];
    if (static_cast<size_t>(index) + here > available || index + here > 256) return false;
    // The code of all ones is reserved: a table that needs it, or more, is damaged.
    if (here > 0 && code + here > (1u << length) - 1) return false;
    offsets[length] = index - static_cast<int>(code);
    for (int i = 0; i < here; ++i, ++code, ++index) {
      if (!is_known_symbol(values[index], is_dc)) return false;
      symbols[index] = values[index];
    }
    limits[length] = code << (32 - length);
    code <<= 1;
  }
  limits[0] = 0;
  count = index;
  return index > 0;
}

HuffmanCode::Symbol HuffmanCode::find(uint32_t bits) const noexcept {
  int length = 1;
  while (length <= 16 && bits >= limits[length]) ++length;
  if (length > 16) return {0, 0};
  const int index = offsets[length] + static_cast<int>(bits >> (32 - length));
  return index >= 0 && index < count ? Symbol{length, symbols[index]} : Symbol{0, 0};
}

int HuffmanCode::codes(int length) const noexcept {
  return static_cast<int>((limits[length] - limits[length - 1]) >> (32 - length));
}

// Canonical codes are in ascending order, and so are the entries.
void DcTable::fill() noexcept {
  Entry* next = entries;
  const uint8_t* symbol = symbols;
  for (int length = 1; length <= kLookahead; ++length) {
    for (int i = codes(length); i > 0; --i, ++symbol) {
      const int total = length + *symbol;
      const Entry entry{static_cast<uint8_t>(length), *symbol, static_cast<uint8_t>(total)};
      next = std::fill_n(next, 1 << (kLookahead - length), entry);
    }
  }
  std::fill(next, entries + (1 << kLookahead), Entry{0, 0, 0});
}

void AcTable::fill() noexcept {
  Entry single[1 << kLookahead];
  Entry* next = single;
  const uint8_t* symbol = symbols;
  for (int length = 1; length <= kLookahead; ++length) {
    for (int i = codes(length); i > 0; --i, ++symbol) {
      const int size = *symbol & 15, run = *symbol == 0 ? kEndOfBlock : *symbol >> 4;
      const int spare = kLookahead - length;
      if (size > spare) {
        next = std::fill_n(next, 1 << spare, Entry::partial(length, run, size));
        continue;
      }
      for (int bits = 0; bits < 1 << size; ++bits) {
        const int value = size == 0 ? 0 : extended(static_cast<uint64_t>(bits) << (64 - size), size);
        next = std::fill_n(next, 1 << (spare - size), Entry(length + size, run, value));
      }
    }
  }
  std::fill(next, single + (1 << kLookahead), Entry());
  for (int i = 0; i < 1 << kLookahead; ++i) {
    const Entry entry = single[i];
    entries[i] = entry;
    if (entry.bits() == 0 || entry.first() == kEndOfBlock) continue;
    const Entry follower = single[i << entry.bits() & ((1 << kLookahead) - 1)];
    if (follower.bits() == 0 || entry.bits() + follower.bits() > kLookahead) continue;
    entries[i] = entry.followed_by(follower);
  }
}

}  // namespace tarpeg
