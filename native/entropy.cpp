#include "entropy.h"

#include <array>
#include <cstring>

#include "simd.h"
#include "zigzag.h"

namespace tarpeg {
namespace {

// Zigzag to natural order; whatever leads out of the block goes to the number behind it.
constexpr std::array<uint8_t, 64 + HuffmanTable::kEndOfBlock> natural_order() {
  std::array<uint8_t, 64 + HuffmanTable::kEndOfBlock> order{};
  for (size_t k = 0; k < order.size(); ++k) order[k] = k < 64 ? kZigzag[k] : 64;
  return order;
}
constexpr auto kNatural = natural_order();

// The value of `size` more bits (0 to 11), as T.81 F.2.2.1 extends it.
inline int next_value(BitReader* reader, int size) noexcept {
  if (size == 0) return 0;
  const int value = static_cast<int>(reader->peek(size));
  reader->drop(size);
  return value < 1 << (size - 1) ? value + 1 - (1 << size) : value;
}

// A symbol whose code is longer than the lookahead, or -1 where the bits are no code.
inline int long_symbol(BitReader* reader, const HuffmanTable& table) noexcept {
  const uint32_t bits = reader->peek(32);
  int length = HuffmanTable::kLookahead + 1;
  while (length <= 16 && bits >= table.limits[length]) ++length;
  if (length > 16) return -1;
  const int index = table.offsets[length] + static_cast<int>(bits >> (32 - length));
  reader->drop(length);
  return index >= 0 && index < table.count ? table.symbols[index] : -1;
}

inline bool next_dc(BitReader* reader, const HuffmanTable& table, int* dc) noexcept {
  reader->refill();
  const HuffmanTable::Entry entry = table.entries[reader->peek(HuffmanTable::kLookahead)];
  int size = entry.value;
  if (entry.bits > 0) {
    reader->drop(entry.bits);
    *dc = static_cast<int>(static_cast<unsigned>(*dc) + static_cast<unsigned>(entry.value));
    return true;
  }
  if (entry.bits < 0) {
    reader->drop(-entry.bits);
  } else {
    size = long_symbol(reader, table);
    if (size < 0) return false;
  }
  *dc = static_cast<int>(static_cast<unsigned>(*dc) + static_cast<unsigned>(next_value(reader, size)));
  return true;
}

// Runs through the AC coefficients; calls keep(k, value) for each, and for some zeros. Returns the k behind
// the last: 64, or more than kEndOfBlock after an end-of-block code; everything else is damage.
template <class Keep>
inline int next_ac(BitReader* reader, const HuffmanTable& table, const Keep& keep) noexcept {
  int k = 1;
  while (k < 64) {
    reader->refill();  // 56 bits: enough for two short codes, or for the longest one with its value
    const HuffmanTable::Entry entry = table.entries[reader->peek(HuffmanTable::kLookahead)];
    if (__builtin_expect(entry.bits > 0, 1)) {
      reader->drop(entry.bits);
      k += entry.run;
      keep(k++, entry.value);
      if (k >= 64) break;
      const HuffmanTable::Entry second = table.entries[reader->peek(HuffmanTable::kLookahead)];
      if (second.bits > 0) {
        reader->drop(second.bits);
        k += second.run;
        keep(k++, second.value);
      }
      continue;
    }
    int run = entry.run, size = entry.value;
    if (entry.bits < 0) {
      reader->drop(-entry.bits);
    } else {
      const int symbol = long_symbol(reader, table);
      if (symbol < 0) return 0;
      run = symbol == 0 ? HuffmanTable::kEndOfBlock : symbol >> 4;
      size = symbol & 15;
    }
    k += run;
    keep(k++, static_cast<int16_t>(next_value(reader, size)));
  }
  return k;
}

inline bool is_end(int k) noexcept { return k == 64 || k > HuffmanTable::kEndOfBlock; }

#if defined(TARPEG_X86)

// Copies up to the first 0xFF, 32 bytes at a time.
TARPEG_AVX2 size_t copy_plain_avx2(const uint8_t* data, size_t size, uint8_t* out) noexcept {
  const __m256i ones = _mm256_set1_epi8(-1);
  size_t at = 0;
  for (; at + 32 <= size; at += 32) {
    const __m256i bytes = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(data + at));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + at), bytes);
    const unsigned mask = static_cast<unsigned>(_mm256_movemask_epi8(_mm256_cmpeq_epi8(bytes, ones)));
    if (mask != 0) return at + static_cast<size_t>(__builtin_ctz(mask));
  }
  return at;
}

#endif

}  // namespace

ptrdiff_t remove_stuffing(const uint8_t* data, size_t size, uint8_t* out) noexcept {
  uint8_t* const begin = out;
  const uint8_t* const end = data + size;
  while (data < end) {
#if defined(TARPEG_X86)
    if (has_avx2()) {
      const size_t plain = copy_plain_avx2(data, static_cast<size_t>(end - data), out);
      data += plain;
      out += plain;
    }
#endif
    for (; data < end && *data != 0xFF; ++data) *out++ = *data;
    if (data == end) break;
    if (end - data < 2 || data[1] != 0x00) return -1;
    *out++ = 0xFF;
    data += 2;
  }
  std::memset(out, 0, kReadAhead);
  return out - begin;
}

bool decode_block(BitReader* reader, const HuffmanTable& dc_table, const HuffmanTable& ac_table, int* dc,
                  int16_t* block) noexcept {
  BitReader local = *reader;  // in registers, whatever is written to the block
  if (!next_dc(&local, dc_table, dc)) return false;
  block[0] = static_cast<int16_t>(*dc);
  const int k = next_ac(&local, ac_table, [block](int at, int16_t value) { block[kNatural[at]] = value; });
  *reader = local;
  return is_end(k) && !local.overrun();
}

bool skip_block(BitReader* reader, const HuffmanTable& dc_table, const HuffmanTable& ac_table,
                int* dc) noexcept {
  BitReader local = *reader;
  if (!next_dc(&local, dc_table, dc)) return false;
  const int k = next_ac(&local, ac_table, [](int, int16_t) {});
  *reader = local;
  return is_end(k) && !local.overrun();
}

}  // namespace tarpeg
