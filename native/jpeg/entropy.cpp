#include "jpeg/entropy.h"

#include <array>
#include <cstring>

#include "base/simd.h"
#include "jpeg/zigzag.h"

namespace tarpeg {
namespace {

// Zigzag to natural order; coefficients beyond the block go to the element after it. The farthest is an end
// of block after a damaged run.
constexpr int kFarthest = 64 + 16 + AcTable::kEndOfBlock + 1;
constexpr std::array<uint8_t, kFarthest> natural_order() {
  std::array<uint8_t, kFarthest> order{};
  for (size_t k = 0; k < order.size(); ++k) order[k] = k < 64 ? kZigzag[k] : 64;
  return order;
}
constexpr auto kNatural = natural_order();

inline bool next_dc(BitReader* reader, const DcTable& table, int* dc) noexcept {
  const DcTable::Entry entry = table.entries[reader->bits() >> (64 - DcTable::kLookahead)];
  HuffmanCode::Symbol symbol{entry.length, entry.size};
  int total = entry.total;
  if (__builtin_expect(symbol.length == 0, 0)) {
    symbol = table.find(static_cast<uint32_t>(reader->bits() >> 32));
    if (symbol.length == 0) return false;
    total = symbol.length + symbol.value;
  }
  const int difference = extended(reader->bits() << symbol.length, symbol.value);
  *dc = static_cast<int>(static_cast<unsigned>(*dc) + static_cast<unsigned>(difference));
  reader->drop(static_cast<uint64_t>(total));
  // At least 36 of 56 bits are left, except after the longest codes.
  if (__builtin_expect(total > 20, 0)) reader->refill();
  return true;
}

// One AC coefficient of any length; `known`: its entry in the table. Returns the position after it, or
// nullptr.
inline const uint8_t* next_single(BitReader* reader, const AcTable& table, AcTable::Entry known,
                                  const uint8_t* at, int16_t* block) noexcept {
  int run = known.first(), length = known.advance(), size = known.value();
  if (length == 0) {
    const HuffmanCode::Symbol symbol = table.find(static_cast<uint32_t>(reader->bits() >> 32));
    if (symbol.length == 0) return nullptr;
    length = symbol.length;
    run = symbol.value == 0 ? AcTable::kEndOfBlock : symbol.value >> 4;
    size = symbol.value & 15;
  }
  block[at[run]] = static_cast<int16_t>(extended(reader->bits() << length, size));
  reader->drop(static_cast<uint64_t>(length + size));
  return at + run + 1;
}

// The AC coefficients of a block, with at least 36 bits at hand. False on damage.
inline bool next_ac(BitReader* reader, const AcTable& table, int16_t* block) noexcept {
  const uint8_t* at = kNatural.data() + 1;  // where the next coefficient goes
  const uint8_t* const end = kNatural.data() + 64;
  while (true) {
    for (int times = 0; times < 3; ++times) {
      const uint64_t bits = reader->bits();
      const AcTable::Entry entry = table.entries[bits >> (64 - AcTable::kLookahead)];
      if (__builtin_expect(entry.bits() == 0, 0)) {
        reader->refill();
        at = next_single(reader, table, entry, at, block);
        if (at == nullptr) return false;
        if (at >= end) return at == end || at > end + AcTable::kEndOfBlock - 64;
        break;
      }
      reader->drop(entry.word());
      block[at[entry.first()]] = entry.value();
      block[at[entry.second()]] = entry.second_value();
      at += entry.advance();
      if (at < end) continue;
      // The second of a pair may belong to the next block already.
      const uint8_t* const behind = at - entry.advance() + entry.first() + 1;
      if (__builtin_expect(behind >= end && entry.is_pair(), 0)) {
        reader->restore(bits, entry.word());
        at = next_single(reader, table, AcTable::Entry(), at - entry.advance(), block);
      }
      return at == end || at > end + AcTable::kEndOfBlock - 64;
    }
    reader->refill();
  }
}

#if defined(TARPEG_AVX2)

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
#if defined(TARPEG_AVX2)
    if (has_avx2()) {
      const size_t plain = copy_plain_avx2(data, static_cast<size_t>(end - data), out);
      data += plain;
      out += plain;
    }
#endif
    const void* found = data == end ? nullptr : std::memchr(data, 0xFF, static_cast<size_t>(end - data));
    const uint8_t* const stop = found == nullptr ? end : static_cast<const uint8_t*>(found);
    std::memcpy(out, data, static_cast<size_t>(stop - data));
    out += stop - data;
    data = stop;
    if (data == end) break;
    if (end - data < 2 || data[1] != 0x00) return -1;
    *out++ = 0xFF;
    data += 2;
  }
  std::memset(out, 0, kReadAhead);
  return out - begin;
}

bool decode_blocks(BitReader* reader, const BlockPlan* plans, int count, int* dc, Block* blocks) noexcept {
  BitReader local = *reader;  // in registers, whatever is written to the blocks
  for (int i = 0; i < count; ++i) {
    const BlockPlan& plan = plans[i];
    local.refill();
    if (!next_dc(&local, *plan.dc, dc + plan.component)) return false;
    blocks[i][0] = static_cast<int16_t>(dc[plan.component]);
    if (!next_ac(&local, *plan.ac, blocks[i]) || local.overrun()) return false;
  }
  *reader = local;
  return true;
}

}  // namespace tarpeg
