#include "jpeg/entropy.h"

#include <array>
#include <cstring>

#include "base/simd.h"
#include "jpeg/zigzag.h"

namespace tarpeg {
namespace {

// Zigzag to natural order of AC coefficients, from the second half on; coefficients beyond the block go to
// the element after it. The byte before it is the DC coefficient's. The lowest byte of a pointer into the
// second half is the position: how many AC coefficients are behind it.
struct Order {
  alignas(256) uint8_t bytes[512];
};
constexpr Order natural_order() {
  Order order{};
  for (int k = 0; k < 256; ++k) order.bytes[256 + k] = k < 63 ? kZigzag[k + 1] : 64;
  return order;
}
constexpr Order kOrder = natural_order();
const uint8_t* const kFirstAc = kOrder.bytes + 256;
const uint8_t* const kDc = kFirstAc - 1;
constexpr uintptr_t kEnd = 63;

// The position behind an entry's coefficients: below kEnd there are more, kEnd is a full block, and 129 to
// 191 are one with an end. Damaged runs, and pairs whose second belongs to the next block, lead to 64 and
// more or to 192 and more; so does Entry::kNone.
inline const uint8_t* behind(const uint8_t* at, const Entry& entry) noexcept { return at + entry.second + 1; }
inline uintptr_t position(const uint8_t* at) noexcept { return reinterpret_cast<uintptr_t>(at) & 0xFF; }
inline bool is_irregular(const uint8_t* at) noexcept { return (reinterpret_cast<uintptr_t>(at) & 64) != 0; }

// One AC coefficient of any length. Returns the position after it, or nullptr on damage.
inline const uint8_t* next_single(const AcTable& table, uint64_t bits, const uint8_t* at, int16_t* block,
                                  int* total) noexcept {
  const HuffmanCode::Symbol symbol = table.find(static_cast<uint32_t>(bits >> 32));
  if (symbol.length == 0) return nullptr;
  const int run = symbol.value >> 4, size = symbol.value & 15;
  *total = symbol.length + size;
  if (symbol.value == 0) return kFirstAc + kEnd;
  if (position(at) + run >= kEnd) return nullptr;
  block[at[run]] = static_cast<int16_t>(extended(bits << symbol.length, size));
  return at + run + 1;
}

inline bool next_dc(BitReader* reader, const DcTable& table, int* dc) noexcept {
  const uint64_t bits = reader->bits();
  const Entry& entry = table.entries[bits >> (64 - DcTable::kLookahead)];
  int total = entry.bits;
  int16_t difference = static_cast<int16_t>(entry.value + static_cast<int>(bits >> entry.shift));
  if (__builtin_expect(total == 0, 0)) {
    const HuffmanCode::Symbol symbol = table.find(static_cast<uint32_t>(bits >> 32));
    if (symbol.length == 0) return false;
    total = symbol.length + symbol.value;
    difference = static_cast<int16_t>(extended(bits << symbol.length, symbol.value));
  }
  *dc = static_cast<int>(static_cast<unsigned>(*dc) + static_cast<unsigned>(difference));
  reader->drop(static_cast<uint64_t>(total));
  // At least 38 of 56 bits are left, except after the longest codes.
  if (__builtin_expect(total > 18, 0)) reader->refill();
  return true;
}

// The AC coefficients of a block, with at least 38 bits at hand. False on damage.
inline bool next_ac(BitReader* reader, const AcTable& table, int16_t* block) noexcept {
  const uint8_t* at = kFirstAc;  // where the next coefficient goes
  while (true) {
    // An entry has at most 19 bits: 9 of a code, of which the next bit shows the sign, and a value of 10.
    for (int times = 0; times < 2; ++times) {
      const uint64_t bits = reader->bits();
      const Entry& entry = table.entries[bits >> (64 - AcTable::kLookahead)];
      const uint8_t* next = behind(at, entry);
      if (__builtin_expect(is_irregular(next), 0)) {
        reader->refill();
        int total;
        at = next_single(table, reader->bits(), at, block, &total);
        if (at == nullptr) return false;
        reader->drop(static_cast<uint64_t>(total));
        if (position(at) >= kEnd) return true;
        break;
      }
      reader->drop(entry.bits);
      block[at[entry.second]] = entry.second_value;
      block[at[entry.first]] = static_cast<int16_t>(entry.value + static_cast<int>(bits >> entry.shift));
      if (position(next) >= kEnd) return true;
      at = next;
    }
    reader->refill();
  }
}

// Two words at the end of a block are the tables of its DC and its AC coefficients: places behind those of
// the image, with 64 - lookahead in the six bits that are zero.
enum { kDcWord = 66, kAcWord = 68 };
inline uint32_t word_at(const int16_t* at) noexcept {
  uint32_t word;
  std::memcpy(&word, at, sizeof word);
  return word;
}

inline void set_word(int16_t* at, uint32_t word) noexcept { std::memcpy(at, &word, sizeof word); }
inline uint32_t place_of(const Entry* entries, int lookahead, const DcTable* tables) noexcept {
  const auto* const base = reinterpret_cast<const uint8_t*>(tables);
  return static_cast<uint32_t>(reinterpret_cast<const uint8_t*>(entries) - base) |
         static_cast<uint32_t>(64 - lookahead);
}

#if defined(__x86_64__)
#define TARPEG_LANES __attribute__((target("avx2,bmi,bmi2")))

// Decodes `kLanes` lanes until one finds an irregular entry, or the end: its number.
template <int kLanes>
TARPEG_LANES int advance(LanePair::Lane* lanes, const DcTable* tables) noexcept {
  const uint8_t *data[kLanes], *at[kLanes], *const base = reinterpret_cast<const uint8_t*>(tables);
  uint64_t place[kLanes];
  int16_t* block[kLanes];
  uint32_t table[kLanes];
  for (int i = 0; i < kLanes; ++i) {
    data[i] = lanes[i].data;
    place[i] = lanes[i].at;
    block[i] = *lanes[i].block;
    at[i] = lanes[i].position;
    table[i] = lanes[i].table;
  }
  int stopped = -1;
  while (stopped < 0) {
#pragma GCC unroll 2
    for (int i = 0; i < kLanes; ++i) {
      uint64_t bits;
      std::memcpy(&bits, data[i] + (place[i] >> 3), sizeof bits);
      bits = __builtin_bswap64(bits) << (place[i] & 7);
#pragma GCC unroll 2
      for (int times = 0; times < 2; ++times) {
        const Entry* const entries = reinterpret_cast<const Entry*>(base + (table[i] & ~63u));
        const Entry& entry = entries[bits >> (table[i] & 63)];
        const uint8_t* next = behind(at[i], entry);
        if (__builtin_expect(is_irregular(next), 0)) {
          stopped = i;
          goto out;
        }
        const auto value = static_cast<int16_t>(entry.value + static_cast<int>(bits >> (entry.shift & 63)));
        place[i] += entry.bits;
        bits <<= entry.bits & 63;
        block[i][at[i][entry.second]] = entry.second_value;
        block[i][at[i][entry.first]] = value;
        int16_t* const after = block[i] + kBlockSize;
        uint32_t following = word_at(block[i] + kAcWord);
        const uint8_t* start = kDc;
        // In C++ compilers make a branch of it.
        asm("cmpb %[end], %b[next]\n\t"
            "cmovae %[start], %[next]\n\t"
            "cmovae %[after], %[block]\n\t"
            "cmovae %[dc], %[table]"
            : [next] "+&q"(next), [block] "+&r"(block[i]), [table] "+&r"(following)
            : [end] "i"(kEnd), [start] "r"(start), [after] "r"(after), [dc] "r"(word_at(after + kDcWord))
            : "cc");
        at[i] = next;
        table[i] = following;
      }
    }
  }
out:
  for (int i = 0; i < kLanes; ++i) {
    lanes[i].at = place[i];
    lanes[i].block = reinterpret_cast<Block*>(block[i]);
    lanes[i].position = at[i];
    lanes[i].table = table[i];
  }
  return stopped;
}

// memset() calls a function, or worse, `rep stos`.
TARPEG_LANES void clear(Block* begin, Block* end) noexcept {
  for (Block* block = begin; block < end; ++block) {
    auto* const to = reinterpret_cast<__m256i*>(*block);
    for (int k = 0; k < 4; ++k) _mm256_storeu_si256(to + k, _mm256_setzero_si256());
  }
}
#endif

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
  std::memset(out, 0xFF, kReadAhead);
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

bool LanePair::is_available() noexcept {
#if defined(__x86_64__)
  return has_avx2() && __builtin_cpu_supports("bmi2");
#else
  return false;
#endif
}

void LanePair::plan(const BlockPlan* plans, int count, const DcTable* tables) noexcept {
  plans_ = plans;
  count_ = count;
  tables_ = tables;
  for (Lane& lane : lanes_) {
    lane.end = nullptr;
    lane.is_active = false;
  }
  for (int i = 0; i < count; ++i) {
    const uint32_t dc = place_of(plans[i].dc->entries, DcTable::kLookahead, tables);
    const uint32_t ac = place_of(plans[i].ac->entries, AcTable::kLookahead, tables);
    for (int k = i; k <= kMostBlocks; k += count) {
      for (auto& blocks : blocks_) {
        set_word(blocks[k] + kDcWord, dc);
        set_word(blocks[k] + kAcWord, ac);
      }
    }
  }
}

void LanePair::start(int number, const uint8_t* data, ptrdiff_t size, [[maybe_unused]] int first,
                     int count) noexcept {
  Lane& lane = lanes_[number];
  Block* const blocks = blocks_[number];
  // The block behind the last has a table without codes.
  if (lane.end != nullptr)
    set_word(*lane.end + kDcWord, word_at(blocks[(lane.end - blocks) % count_] + kDcWord));
  lane = {data, 8 * size, 0, blocks, blocks + count, kDc, word_at(blocks[0] + kDcWord), true};
  set_word(*lane.end + kDcWord, place_of(plans_->dc->none, 1, tables_));
#if defined(__x86_64__)
  clear(blocks + first, lane.end);
#endif
}

// A code that is longer than the lookahead, or a pair of which the second belongs to the next block. False on
// damage.
bool LanePair::decode_one(Lane* lane, int number) noexcept {
  const BlockPlan& plan = plans_[(lane->block - blocks_[number]) % count_];
  uint64_t bits;
  std::memcpy(&bits, lane->data + (lane->at >> 3), sizeof bits);
  bits = __builtin_bswap64(bits) << (lane->at & 7);
  int16_t* const block = *lane->block;
  int total;
  if (lane->position == kDc) {
    const HuffmanCode::Symbol symbol = plan.dc->find(static_cast<uint32_t>(bits >> 32));
    if (symbol.length == 0) return false;
    total = symbol.length + symbol.value;
    block[0] = static_cast<int16_t>(extended(bits << symbol.length, symbol.value));
    lane->position = kFirstAc;
  } else {
    lane->position = next_single(*plan.ac, bits, lane->position, block, &total);
    if (lane->position == nullptr) return false;
  }
  lane->at += static_cast<uint64_t>(total);
  const bool is_end = position(lane->position) >= kEnd;
  if (is_end) {
    ++lane->block;
    lane->position = kDc;
  }
  lane->table = word_at(*lane->block + (is_end ? kDcWord : kAcWord));
  return true;
}

int LanePair::run() noexcept {
  while (true) {
    int number = 0;
#if defined(__x86_64__)
    if (lanes_[0].is_active && lanes_[1].is_active) {
      number = advance<2>(lanes_, tables_);
    } else {
      number = lanes_[0].is_active ? 0 : 1;
      advance<1>(lanes_ + number, tables_);
    }
#endif
    Lane& lane = lanes_[number];
    if (lane.block < lane.end) {
      if (!decode_one(&lane, number)) return -1;
      continue;
    }
    lane.is_active = false;
    if (left(number) < 0) return -1;
    // Differences become coefficients, one component after the other: sums stay in a register.
    for (int begin = 0, end = 0; begin < count_; begin = end) {
      while (end < count_ && plans_[end].component == plans_[begin].component) ++end;
      int sum = 0;
      for (Block* mcu = blocks_[number]; mcu < lane.end; mcu += count_) {
        for (int i = begin; i < end; ++i) {
          sum += mcu[i][0];
          mcu[i][0] = static_cast<int16_t>(sum);
        }
      }
    }
    return number;
  }
}

}  // namespace tarpeg
