#pragma once

#include "gather/entropy.h"

// A packed tile: see Note [packed tiles] in jpeg/packed_tile.h. One thread finds its blocks, which do not
// depend on each other then.
namespace tarpeg::gather {

// The bytes of a piece, which begin at a multiple of four; zeros follow its end. Positions in units of four
// bits, of which the lower ones of a byte come first.
struct Nibbles {
  const uint8_t* data;
  uint32_t size;  // in bytes

  TARPEG_HD uint32_t byte(uint32_t at) const { return at < size ? data[at] : 0u; }
  // The eight from a multiple of eight on.
  TARPEG_HD uint32_t word(uint32_t at) const {
    uint32_t bytes = 0;
    const uint32_t first = at / 2;
    if (first + 4 <= size) {
      read_aligned<4>(data + first, &bytes);
    } else {
      for (uint32_t i = 0; i < 4; ++i) bytes |= byte(first + i) << (8 * i);
    }
    return bytes;
  }
  // The eight from `at` on.
  TARPEG_HD uint32_t eight(uint32_t at) const {
    const uint64_t both = word(at / 8 * 8) | static_cast<uint64_t>(word(at / 8 * 8 + 8)) << 32;
    return static_cast<uint32_t>(both >> (4 * (at % 8)));
  }
  TARPEG_HD uint32_t one(uint32_t at) const { return byte(at / 2) >> (4 * (at % 2)) & 15; }
  // The sum of what `count_in` returns for the next `count`, in words of eight; `rest` is what words end
  // with.
  template <class CountIn>
  TARPEG_HD uint32_t sum(uint32_t at, uint32_t count, uint32_t rest, const CountIn& count_in) const {
    uint32_t sum = 0;
    for (; count >= 8; count -= 8, at += 8) sum += count_in(eight(at));
    const uint32_t valid = (1u << (4 * count)) - 1;
    return sum + count_in((eight(at) & valid) | (rest & ~valid));
  }
};

TARPEG_HD uint32_t count_bits(uint32_t word) {
#if defined(__CUDA_ARCH__)
  return static_cast<uint32_t>(__popc(word));
#else
  return static_cast<uint32_t>(__builtin_popcount(word));
#endif
}

TARPEG_HD int lowest_bit(uint64_t mask) {
#if defined(__CUDA_ARCH__)
  return __ffsll(static_cast<long long>(mask)) - 1;
#else
  return __builtin_ctzll(mask);
#endif
}

// Of eight codes: how many nibbles their masks have; code 15 stands for 16.
TARPEG_HD uint32_t mask_lengths(uint32_t codes) {
  const uint32_t bytes = (codes & 0x0F0F0F0F) + (codes >> 4 & 0x0F0F0F0F);
  const uint32_t ones = codes & codes >> 1 & codes >> 2 & codes >> 3 & 0x11111111;
  return (bytes * 0x01010101 >> 24) + count_bits(ones);
}

TARPEG_HD uint32_t zero_nibbles(uint32_t word) {
  word |= word >> 1;
  word |= word >> 2;
  return count_bits(~word & 0x11111111);
}

// Of four bytes: how many are `kWide`.
constexpr uint32_t kWide = 0x80;
TARPEG_HD uint32_t wide_bytes(uint32_t word) {
  word ^= kWide * 0x01010101;
  return count_bits(~(((word & 0x7F7F7F7F) + 0x7F7F7F7F) | word) & 0x80808080);
}

// Where the streams of a tile begin, all but the last two in nibbles.
struct Streams {
  uint32_t lengths, masks, codes, bytes, wides;
};

// False if the tile does not end in the last `unit` bytes.
TARPEG_HD bool find_streams(const Nibbles& tile, int blocks, uint32_t head, uint32_t unit, Streams* found) {
  const auto whole = [](uint32_t nibbles) { return (nibbles + 1) / 2 * 2; };
  const uint32_t count = static_cast<uint32_t>(blocks);
  if (tile.size < head) return false;
  found->lengths = 2 * head;
  found->masks = found->lengths + whole(count);
  const uint32_t nibbles = tile.sum(found->lengths, count, 0, mask_lengths);
  found->codes = found->masks + whole(nibbles);
  const uint32_t values = tile.sum(found->masks, nibbles, 0, count_bits);
  found->bytes = (found->codes + whole(values)) / 2;
  const uint32_t escaped = tile.sum(found->codes, values, ~0u, zero_nibbles);
  found->wides = found->bytes + escaped;
  const uint32_t end = found->wides + 2 * tile.sum(2 * found->bytes, 2 * escaped, 0, wide_bytes);
  return end <= tile.size && tile.size - end < unit;
}

struct Tile {
  Nibbles bytes;
  int row, first_mcu, mcus, blocks;
};

TARPEG_HD Tile tile_of(const Gathered& all, const Plan& plan, int index) {
  const Piece piece = all.piece(plan.image.first_piece + static_cast<uint64_t>(index));
  const int number = plan.first_tile + index % plan.tiles, mcus = plan.tile_mcus(number);
  return {{all.data + kUnit * piece.at, piece.size},
          plan.first_row + index / plan.tiles,
          number * plan.image.tile,
          mcus,
          mcus * plan.mcu_blocks};
}

// Of a block: its mask, where its values begin in each stream, and its DC value.
struct BlockValues {
  uint64_t mask;
  uint32_t code;
  uint16_t byte, wide;
  int16_t dc;
};

// The next value of a block, at `codes`, eight of which `held` are. A tile has less than 64 KB.
TARPEG_HD int next_value(const Nibbles& tile, uint32_t held, BlockValues* at) {
  int value = (static_cast<int>(held >> (4 * (at->code++ % 8)) & 15) ^ 8) - 8;
  if (value == 0) {
    value = static_cast<int8_t>(tile.byte(at->byte++));
    if (value == -128) {
      value = static_cast<int16_t>(tile.byte(at->wide) | tile.byte(at->wide + 1u) << 8);
      at->wide = static_cast<uint16_t>(at->wide + 2);
    }
  }
  return value;
}

// The blocks of a tile, all of a component, then those of the next; without values if the tile is damaged,
// for which it returns false.
TARPEG_HD bool find_blocks(const Plan& plan, const Tile& tile, BlockValues* blocks) {
  uint32_t head = 0, dc_at = 0;
  for (int i = 0; i < plan.components; ++i) head += plan.image.dc_bytes[i];
  Streams at;
  if (!find_streams(tile.bytes, tile.blocks, head, 1u << plan.image.unit, &at)) {
    for (int i = 0; i < tile.blocks; ++i) blocks[i] = {};
    return false;
  }
  BlockValues next{0, at.codes, static_cast<uint16_t>(at.bytes), static_cast<uint16_t>(at.wides), 0};
  for (int component = 0; component < plan.wanted; ++component) {
    next.dc = static_cast<int16_t>(tile.bytes.byte(dc_at) | tile.bytes.byte(dc_at + 1) << 8);
    if (plan.image.dc_bytes[component] == 1) next.dc = static_cast<int8_t>(next.dc);
    dc_at += plan.image.dc_bytes[component];
    const int count = tile.mcus * plan.planes[component].down * plan.planes[component].across;
    for (int i = 0; i < count; ++i) {
      const uint32_t code = tile.bytes.one(at.lengths++), length = code == 15 ? 16 : code;
      next.mask = tile.bytes.eight(at.masks) | static_cast<uint64_t>(tile.bytes.eight(at.masks + 8)) << 32;
      if (length < 16) next.mask &= (uint64_t{1} << (4 * length)) - 1;
      at.masks += length;
      if ((next.mask & 1) != 0) {
        BlockValues first = next;
        next.dc = static_cast<int16_t>(next.dc +
                                       next_value(tile.bytes, tile.bytes.word(first.code / 8 * 8), &first));
      }
      *blocks++ = next;
      const uint32_t values =
          count_bits(static_cast<uint32_t>(next.mask)) + count_bits(static_cast<uint32_t>(next.mask >> 32));
      const uint32_t escaped = tile.bytes.sum(next.code, values, ~0u, zero_nibbles);
      const uint32_t wides = tile.bytes.sum(2u * next.byte, 2 * escaped, 0, wide_bytes);
      next.code += values;
      next.byte = static_cast<uint16_t>(next.byte + escaped);
      next.wide = static_cast<uint16_t>(next.wide + 2 * wides);
    }
  }
  return true;
}

// The coefficients of block `number` of a tile that find_blocks() found.
TARPEG_HD void place_values(const Plan& plan, const Tile& tile, int number, BlockValues values,
                            uint8_t* memory) {
  int16_t* const block = first_block(plan, tile.row, tile.first_mcu, memory) + 64 * number;
  clear_block(block);
  uint32_t held = tile.bytes.word(values.code / 8 * 8);
  for (uint64_t left = values.mask; left != 0; left &= left - 1) {
    block[lowest_bit(left)] = static_cast<int16_t>(next_value(tile.bytes, held, &values));
    if (values.code % 8 == 0) held = tile.bytes.word(values.code);
  }
  block[0] = values.dc;
}

// How many blocks of a tile find_blocks() finds.
TARPEG_HD int wanted_blocks(const Plan& plan, const Tile& tile) {
  return plan.wanted == plan.components ? tile.blocks : tile.mcus * plan.planes[plan.wanted].first_unit;
}

}  // namespace tarpeg::gather
