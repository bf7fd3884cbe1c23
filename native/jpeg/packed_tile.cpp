#include "jpeg/packed_tile.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <numeric>

#include "base/simd.h"
#include "jpeg/zigzag.h"

namespace tarpeg {
namespace {

constexpr int kEscape = 0;      // the four bits that stand for a byte
constexpr int8_t kWide = -128;  // the byte that stands for two

// The mask that each code of a length allows: so many times four bits, but all 64 for 15.
constexpr std::array<uint64_t, 16> allowed_masks() {
  std::array<uint64_t, 16> masks{};
  for (size_t code = 0; code < 15; ++code) masks[code] = (uint64_t{1} << (4 * code)) - 1;
  masks[15] = ~uint64_t{0};
  return masks;
}
constexpr auto kAllowed = allowed_masks();

inline size_t nibbles_of(int code) noexcept { return static_cast<size_t>(code + (code + 1) / 16); }

inline int nibble(const uint8_t* data, int index) noexcept {
  return data[index / 2] >> (4 * (index & 1)) & 15;
}

inline int16_t half(const uint8_t* at) noexcept { return static_cast<int16_t>(at[0] | at[1] << 8); }

inline uint64_t word(const uint8_t* at) noexcept {
  static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "the format is little-endian");
  uint64_t value;
  std::memcpy(&value, at, sizeof value);
  return value;
}

// Byte i of the result is the number of bits in the bytes 0 to i of the mask.
inline uint64_t sums_of_bits(uint64_t mask) noexcept {
  uint64_t bits = mask - (mask >> 1 & 0x5555555555555555);
  bits = (bits & 0x3333333333333333) + (bits >> 2 & 0x3333333333333333);
  bits = (bits + (bits >> 4)) & 0x0F0F0F0F0F0F0F0F;
  return bits * 0x0101010101010101;
}

inline int count_bits(uint64_t mask) noexcept { return static_cast<int>(sums_of_bits(mask) >> 56); }

// Step 1: the masks. False if they do not end in the tile.
bool read_masks(int blocks, TileScratch* tile) noexcept {
  const uint8_t* const lengths = tile->streams;
  if (tile->end - lengths < (blocks + 1) / 2) return false;
  const uint8_t* const masks = lengths + (blocks + 1) / 2;
  size_t at = 0;
  for (int block = 0; block < blocks; ++block) {
    const uint8_t* const here = masks + at / 2;
    if (here > tile->end) return false;
    const int code = nibble(lengths, block), shift = 4 * static_cast<int>(at & 1);
    // Without a branch, which nothing could predict.
    const uint64_t last = static_cast<uint64_t>(here[8]) << 1 << (63 - shift);
    tile->masks[block] = (word(here) >> shift | last) & kAllowed[static_cast<size_t>(code)];
    at += nibbles_of(code);
  }
  tile->streams = masks + (at + 1) / 2;
  tile->block_count = blocks;
  return tile->streams <= tile->end;
}

// Step 2: all values, as bytes. False if they do not end in the tile.
bool read_values_portable(TileScratch* tile) noexcept {
  int count = 0, wide = 0;
  for (int i = 0; i < tile->block_count; ++i) count += count_bits(tile->masks[i]);
  const uint8_t* const nibbles = tile->streams;
  if (tile->end - nibbles < (count + 1) / 2) return false;
  const uint8_t* bytes = nibbles + (count + 1) / 2;
  for (int i = 0; i < count; ++i) {
    const int code = nibble(nibbles, i);
    const bool is_escaped = code == kEscape;
    if (bytes > tile->end) return false;
    const int8_t byte = static_cast<int8_t>(*bytes);
    tile->values[i] = is_escaped ? byte : static_cast<int8_t>((code ^ 8) - 8);
    bytes += is_escaped;
    wide += is_escaped && byte == kWide;
  }
  tile->value_count = count;
  tile->wide_count = wide;
  tile->streams = bytes;
  return bytes <= tile->end;
}

// Step 3: the blocks, whose DC values are still differences, and whose values of two bytes are kWide.
void place_blocks_portable(const TileScratch& tile, int count, Block* blocks) noexcept {
  const int8_t* value = tile.values;
  for (int i = 0; i < count; ++i) {
    int16_t* const block = blocks[tile.order[i]];
    std::memset(block, 0, 64 * sizeof *block);
    for (uint64_t mask = tile.masks[i]; mask != 0; mask &= mask - 1)
      block[kZigzag[__builtin_ctzll(mask)]] = *value++;
  }
}

#if defined(TARPEG_AVX2)

// From which of the next bytes each of eight coefficients comes, by their mask; 0x80: it is zero.
constexpr std::array<std::array<uint8_t, 8>, 256> sources_by_mask() {
  std::array<std::array<uint8_t, 8>, 256> sources{};
  for (size_t mask = 0; mask < 256; ++mask) {
    uint8_t next = 0;
    for (size_t i = 0; i < 8; ++i) sources[mask][i] = (mask >> i & 1) != 0 ? next++ : uint8_t{0x80};
  }
  return sources;
}
alignas(64) constexpr auto kSources = sources_by_mask();

constexpr std::array<uint8_t, 64> zigzag_positions() {
  std::array<uint8_t, 64> positions{};
  for (size_t k = 0; k < 64; ++k) positions[kZigzag[k]] = static_cast<uint8_t>(k);
  return positions;
}
alignas(64) constexpr auto kPositions = zigzag_positions();

// [i]: where each coefficient comes from, if it is among the i-th 16 in zigzag order.
constexpr std::array<std::array<uint8_t, 64>, 4> zigzag_sources() {
  std::array<std::array<uint8_t, 64>, 4> sources{};
  for (size_t i = 0; i < 4; ++i) {
    for (size_t k = 0; k < 64; ++k)
      sources[i][k] = kPositions[k] / 16 == i ? static_cast<uint8_t>(kPositions[k] % 16) : uint8_t{0x80};
  }
  return sources;
}
alignas(64) constexpr auto kZigzagSources = zigzag_sources();

TARPEG_AVX2 int count_values_avx2(const TileScratch& tile) noexcept {
  int count = 0;
  for (int i = 0; i < tile.block_count; ++i) count += __builtin_popcountll(tile.masks[i]);
  return count;
}

TARPEG_AVX2 bool read_values_avx2(TileScratch* tile) noexcept {
  const int count = count_values_avx2(*tile);
  const uint8_t* const nibbles = tile->streams;
  if (tile->end - nibbles < (count + 1) / 2) return false;
  const uint8_t* bytes = nibbles + (count + 1) / 2;
  const __m256i low = _mm256_set1_epi8(15), eight = _mm256_set1_epi8(8), zero = _mm256_setzero_si256();
  int wide = 0;
  for (int i = 0; i < count; i += 32) {
    const __m256i pairs =
        _mm256_cvtepu8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(nibbles + i / 2)));
    const __m256i codes = _mm256_and_si256(_mm256_or_si256(pairs, _mm256_slli_epi16(pairs, 4)), low);
    const __m256i values = _mm256_sub_epi8(_mm256_xor_si256(codes, eight), eight);
    _mm256_store_si256(reinterpret_cast<__m256i*>(tile->values + i), values);
    uint32_t escaped = static_cast<uint32_t>(_mm256_movemask_epi8(_mm256_cmpeq_epi8(codes, zero)));
    escaped &= ~0u >> (32 - std::min(count - i, 32));
    if (tile->end - bytes < __builtin_popcount(escaped)) return false;
    for (; escaped != 0; escaped &= escaped - 1) {
      const int8_t byte = static_cast<int8_t>(*bytes++);
      tile->values[i + __builtin_ctz(escaped)] = byte;
      wide += byte == kWide;
    }
  }
  tile->value_count = count;
  tile->wide_count = wide;
  tile->streams = bytes;
  return true;
}

TARPEG_AVX2 inline __m128i load8(const void* at) noexcept {
  return _mm_loadl_epi64(static_cast<const __m128i*>(at));
}

// 16 coefficients in zigzag order, from their mask; the lower bytes of `before` are the numbers of values
// before each eight of them.
TARPEG_AVX2 inline __m128i expanded(uint64_t mask, uint64_t before, const int8_t* values) noexcept {
  const __m128i low = _mm_shuffle_epi8(load8(values + (before & 255)), load8(kSources[mask & 255].data()));
  const __m128i high =
      _mm_shuffle_epi8(load8(values + (before >> 8 & 255)), load8(kSources[mask >> 8 & 255].data()));
  return _mm_unpacklo_epi64(low, high);
}

// Those of 16 coefficients in zigzag order, in both halves, that belong to one half of a block.
TARPEG_AVX2 inline __m256i placed(__m256i zigzag, size_t group, int half) noexcept {
  const __m256i* sources = reinterpret_cast<const __m256i*>(kZigzagSources[group].data());
  return _mm256_shuffle_epi8(zigzag, _mm256_load_si256(sources + half));
}

TARPEG_AVX2 inline void store_words(__m256i bytes, int16_t* out) noexcept {
  __m256i* const to = reinterpret_cast<__m256i*>(out);
  _mm256_storeu_si256(to, _mm256_cvtepi8_epi16(_mm256_castsi256_si128(bytes)));
  _mm256_storeu_si256(to + 1, _mm256_cvtepi8_epi16(_mm256_extracti128_si256(bytes, 1)));
}

TARPEG_AVX2 void place_blocks_avx2(const TileScratch& tile, int count, Block* blocks) noexcept {
  const int8_t* values = tile.values;
  for (int i = 0; i < count; ++i) {
    const uint64_t mask = tile.masks[i], sums = sums_of_bits(mask), before = sums << 8;
    const __m256i a = _mm256_broadcastsi128_si256(expanded(mask, before, values));
    const __m256i b = _mm256_broadcastsi128_si256(expanded(mask >> 16, before >> 16, values));
    __m256i top = _mm256_or_si256(placed(a, 0, 0), placed(b, 1, 0));
    __m256i bottom = _mm256_or_si256(placed(a, 0, 1), placed(b, 1, 1));
    if (mask >> 32 != 0) {
      const __m256i c = _mm256_broadcastsi128_si256(expanded(mask >> 32, before >> 32, values));
      const __m256i d = _mm256_broadcastsi128_si256(expanded(mask >> 48, before >> 48, values));
      top = _mm256_or_si256(top, _mm256_or_si256(placed(c, 2, 0), placed(d, 3, 0)));
      bottom = _mm256_or_si256(bottom, _mm256_or_si256(placed(c, 2, 1), placed(d, 3, 1)));
    }
    int16_t* const block = blocks[tile.order[i]];
    store_words(top, block);
    store_words(bottom, block + 32);
    values += sums >> 56;
  }
}

#endif

#if defined(TARPEG_AVX512)

TARPEG_AVX512 bool read_values_avx512(TileScratch* tile) noexcept {
  const int count = count_values_avx2(*tile);
  const uint8_t* const nibbles = tile->streams;
  if (tile->end - nibbles < (count + 1) / 2) return false;
  const uint8_t* bytes = nibbles + (count + 1) / 2;
  const __m512i low = _mm512_set1_epi8(15), eight = _mm512_set1_epi8(8);
  int wide = 0;
  for (int i = 0; i < count; i += 64) {
    const __m512i pairs =
        _mm512_cvtepu8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(nibbles + i / 2)));
    const __m512i codes = _mm512_and_si512(_mm512_or_si512(pairs, _mm512_slli_epi16(pairs, 4)), low);
    const __m512i values = _mm512_sub_epi8(_mm512_xor_si512(codes, eight), eight);
    const __mmask64 used = ~uint64_t{0} >> (64 - std::min(count - i, 64));
    const __mmask64 escaped = _mm512_mask_testn_epi8_mask(used, codes, codes);
    if (bytes > tile->end) return false;
    const __m512i all = _mm512_mask_expand_epi8(values, escaped, _mm512_loadu_si512(bytes));
    _mm512_store_si512(tile->values + i, all);
    bytes += __builtin_popcountll(escaped);
    wide += __builtin_popcountll(_mm512_mask_cmpeq_epi8_mask(escaped, all, _mm512_set1_epi8(kWide)));
  }
  tile->value_count = count;
  tile->wide_count = wide;
  tile->streams = bytes;
  return bytes <= tile->end;
}

// Expanding a whole vector takes five cycles of Zen 4, and 16 bytes two, but more if they come from memory.
TARPEG_AVX512 inline __m128i expanded_16(uint64_t mask, const int8_t* values) noexcept {
  __m128i next = _mm_loadu_si128(reinterpret_cast<const __m128i*>(values));
  __asm__("" : "+v"(next));
  return _mm_maskz_expand_epi8(static_cast<__mmask16>(mask), next);
}

TARPEG_AVX512 inline __m256i expanded_32(uint64_t mask, const int8_t* values) noexcept {
  const __m128i low = expanded_16(mask, values);
  return _mm256_inserti128_si256(_mm256_castsi128_si256(low),
                                 expanded_16(mask >> 16, values + __builtin_popcount(mask & 0xFFFF)), 1);
}

TARPEG_AVX512 inline void store_words_avx512(__m512i bytes, int16_t* out) noexcept {
  _mm512_storeu_si512(out, _mm512_cvtepi8_epi16(_mm512_castsi512_si256(bytes)));
  _mm512_storeu_si512(out + 32, _mm512_cvtepi8_epi16(_mm512_extracti64x4_epi64(bytes, 1)));
}

TARPEG_AVX512 void place_blocks_avx512(const TileScratch& tile, int count, Block* blocks) noexcept {
  const __m512i positions = _mm512_load_si512(kPositions.data());
  const __mmask64 first_half = _mm512_cmplt_epu8_mask(positions, _mm512_set1_epi8(32));
  const int8_t* values = tile.values;
  for (int i = 0; i < count; ++i) {
    const uint64_t mask = tile.masks[i];
    const __m512i low = _mm512_castsi256_si512(expanded_32(mask, values));
    if (mask >> 32 == 0) {
      store_words_avx512(_mm512_maskz_permutexvar_epi8(first_half, positions, low), blocks[tile.order[i]]);
    } else {
      const int8_t* const rest = values + __builtin_popcount(static_cast<uint32_t>(mask));
      const __m512i zigzag = _mm512_inserti64x4(low, expanded_32(mask >> 32, rest), 1);
      store_words_avx512(_mm512_permutexvar_epi8(positions, zigzag), blocks[tile.order[i]]);
    }
    values += __builtin_popcountll(mask);
  }
}

#endif

// Steps 2 and 3.
bool read_blocks(TileScratch* tile, int count, Block* blocks) noexcept {
#if defined(TARPEG_AVX512)
  if (has_avx512()) return read_values_avx512(tile) && (place_blocks_avx512(*tile, count, blocks), true);
#endif
#if defined(TARPEG_AVX2)
  if (has_avx2()) return read_values_avx2(tile) && (place_blocks_avx2(*tile, count, blocks), true);
#endif
  return read_values_portable(tile) && (place_blocks_portable(*tile, count, blocks), true);
}

// Step 4: the values of two bytes. No other value is kWide: four bits cannot be.
void place_wide(const TileScratch& tile, int count, Block* blocks) noexcept {
  const int8_t* first = tile.values;  // of block i
  const int8_t* at = first;
  int i = 0;
  for (int wide = 0; wide < tile.wide_count; ++wide, ++at) {
    const size_t left = static_cast<size_t>(tile.values + tile.value_count - at);
    at = static_cast<const int8_t*>(std::memchr(at, kWide, left));
    for (; i < count && at - first >= count_bits(tile.masks[i]); ++i) first += count_bits(tile.masks[i]);
    if (i == count) return;
    uint64_t mask = tile.masks[i];
    for (ptrdiff_t before = at - first; before > 0; --before) mask &= mask - 1;
    blocks[tile.order[i]][kZigzag[__builtin_ctzll(mask)]] = half(tile.streams + 2 * wide);
  }
}

// The order of the masks: all blocks of a component, then those of the next.
void set_order(const TileShape& shape, TileScratch* tile) noexcept {
  if (shape == tile->shape) return;
  tile->shape = shape;
  uint16_t* next = tile->order;
  for (int component = 0, offset = 0; component < shape.components; offset += shape.counts[component++]) {
    for (int mcu = 0; mcu < shape.mcus; ++mcu) {
      for (int i = 0; i < shape.counts[component]; ++i)
        *next++ = static_cast<uint16_t>(mcu * shape.mcu_blocks() + offset + i);
    }
  }
}

// Four bits each, the lower ones first.
class Nibbles {
 public:
  explicit Nibbles(std::vector<uint8_t>* out) : out_(out) {}
  void put(unsigned value) {
    if (is_odd_) {
      out_->back() = static_cast<uint8_t>(out_->back() | value << 4);
    } else {
      out_->push_back(static_cast<uint8_t>(value));
    }
    is_odd_ = !is_odd_;
  }

 private:
  std::vector<uint8_t>* out_;
  bool is_odd_ = false;
};

}  // namespace

bool unpack_tile(const uint8_t* data, size_t size, size_t unit, const TileShape& shape, int wanted,
                 TileScratch* scratch, Block* blocks) noexcept {
  TileScratch& tile = *scratch;
  tile.streams = data + shape.head();
  tile.end = data + size;
  if (size < shape.head() || !read_masks(shape.mcus * shape.mcu_blocks(), &tile)) return false;
  set_order(shape, &tile);
  const int count = shape.mcus * std::accumulate(shape.counts, shape.counts + wanted, 0);
  if (!read_blocks(&tile, count, blocks)) return false;
  const ptrdiff_t left = tile.end - tile.streams - 2 * tile.wide_count;
  if (left < 0 || left >= static_cast<ptrdiff_t>(unit)) return false;
  const uint16_t* place = tile.order;
  if (tile.wide_count > 0) place_wide(tile, count, blocks);
  for (int component = 0; component < wanted; ++component) {
    int dc = shape.dc_bytes[component] == 1 ? static_cast<int8_t>(*data) : half(data);
    data += shape.dc_bytes[component];
    for (int i = shape.mcus * shape.counts[component]; i > 0; --i) {
      int16_t* const block = blocks[*place++];
      dc += block[0];
      block[0] = static_cast<int16_t>(dc);
    }
  }
  return true;
}

void pack_tile(const TileShape& shape, const Block* blocks, TileScratch* scratch, std::vector<uint8_t>* out) {
  set_order(shape, scratch);
  const int count = shape.mcus * shape.mcu_blocks();
  int16_t values[kMostTileBlocks * 64];
  int16_t* end = values;
  for (int component = 0, i = 0; component < shape.components; ++component) {
    int16_t dc = blocks[scratch->order[i]][0];
    for (const int last = i + shape.mcus * shape.counts[component]; i < last; ++i) {
      const int16_t* const block = blocks[scratch->order[i]];
      const int16_t difference = static_cast<int16_t>(block[0] - dc);
      dc = block[0];
      uint64_t mask = difference != 0;
      *end = difference;
      end += mask;
      for (int k = 1; k < 64; ++k) {
        *end = block[kZigzag[k]];
        mask |= static_cast<uint64_t>(*end != 0) << k;
        end += *end != 0;
      }
      scratch->masks[i] = mask;
    }
  }
  const auto code_of = [scratch](int i) {
    const uint64_t mask = scratch->masks[i];
    return mask == 0 ? 0 : std::min((67 - __builtin_clzll(mask)) / 4, 15);
  };
  Nibbles lengths(out);
  for (int i = 0; i < count; ++i) lengths.put(static_cast<unsigned>(code_of(i)));
  Nibbles masks(out);
  for (int i = 0; i < count; ++i) {
    for (size_t k = 0; k < nibbles_of(code_of(i)); ++k) masks.put(scratch->masks[i] >> (4 * k) & 15);
  }
  const auto has_nibble = [](int value) { return value >= -8 && value <= 7; };
  const auto has_byte = [](int value) { return value > kWide && value <= 127; };
  Nibbles codes(out);
  for (const int16_t* v = values; v < end; ++v) codes.put(has_nibble(*v) ? *v & 15u : unsigned{kEscape});
  for (const int16_t* v = values; v < end; ++v) {
    if (!has_nibble(*v)) out->push_back(static_cast<uint8_t>(has_byte(*v) ? *v : kWide));
  }
  for (const int16_t* v = values; v < end; ++v) {
    if (has_byte(*v)) continue;
    out->push_back(static_cast<uint8_t>(*v));
    out->push_back(static_cast<uint8_t>(*v >> 8));
  }
}

}  // namespace tarpeg
