#pragma once

#include "gather/entropy.h"

// A packed tile: see Note [packed tiles] in jpeg/packed_tile.h. In steps whose blocks do not depend on each
// other, with sums over the blocks between them: a warp has a tile.
namespace tarpeg::gather {

constexpr int kMostBlocks = 256;  // of a tile

// Of the blocks of a tile in the order of its masks: all of a component, then those of the next.
struct TileState {
  uint64_t masks[kMostBlocks];
  uint16_t codes[kMostBlocks];  // first: where the mask begins, in units of four bits; then: the values
  uint16_t bytes[kMostBlocks];  // escaped values before it
  uint16_t wides[kMostBlocks];  // values of two bytes before it
  int16_t dc[kMostBlocks];      // differences
  uint32_t nibbles_at, bytes_at, wides_at;  // streams, in bytes
};

// The bytes of a piece; zeros follow its end.
struct Bytes {
  const uint8_t* data;
  uint32_t size;

  TARPEG_HD uint32_t operator[](uint64_t at) const { return at < size ? data[at] : 0u; }
  TARPEG_HD int nibble(uint64_t begin, uint32_t index) const {
    return static_cast<int>((*this)[begin + index / 2] >> (4 * (index & 1)) & 15);
  }
  TARPEG_HD int half(uint64_t at) const { return static_cast<int16_t>((*this)[at] | (*this)[at + 1] << 8); }
};

struct Tile {
  Bytes bytes;
  int row, first_mcu, mcus, blocks;
  uint32_t head;
};

TARPEG_HD Tile tile_of(const Gathered& all, const Plan& plan, int index) {
  const Piece piece = all.piece(plan.image.first_piece + static_cast<uint64_t>(index));
  const int number = plan.first_tile + index % plan.tiles;
  Tile tile{{all.data + kUnit * piece.at, piece.size}, plan.first_row + index / plan.tiles, 0, 0, 0, 0};
  tile.first_mcu = number * plan.image.tile;
  tile.mcus = plan.tile_mcus(number);
  tile.blocks = tile.mcus * plan.mcu_blocks;
  for (int i = 0; i < plan.components; ++i) tile.head += plan.image.dc_bytes[i];
  return tile;
}

TARPEG_HD int count_bits(uint64_t mask) {
#if defined(__CUDA_ARCH__)
  return __popcll(mask);
#else
  return __builtin_popcountll(mask);
#endif
}

TARPEG_HD int lowest_bit(uint64_t mask) {
#if defined(__CUDA_ARCH__)
  return __ffsll(static_cast<long long>(mask)) - 1;
#else
  return __builtin_ctzll(mask);
#endif
}

TARPEG_HD uint16_t mask_nibbles(const Tile& tile, int block) {
  const int code = tile.bytes.nibble(tile.head, static_cast<uint32_t>(block));
  return static_cast<uint16_t>(code == 15 ? 16 : code);
}

// Replaces numbers by the sums of those before them; returns the sum of all.
TARPEG_HD uint32_t sum_up(uint16_t* numbers, int count) {
  uint32_t sum = 0;
  for (int i = 0; i < count; ++i) {
    const uint32_t number = numbers[i];
    numbers[i] = static_cast<uint16_t>(sum);
    sum += number;
  }
  return sum;
}

// Step 1, of a block.
TARPEG_HD void find_length(const Tile& tile, int block, TileState* state) {
  state->codes[block] = mask_nibbles(tile, block);
}
// Step 2, of a tile.
TARPEG_HD void find_masks(const Tile& tile, TileState* state) {
  const uint32_t lengths = static_cast<uint32_t>(tile.blocks + 1) / 2;
  const uint32_t nibbles = sum_up(state->codes, tile.blocks);
  state->nibbles_at = tile.head + lengths + (nibbles + 1) / 2;
}
// Step 3, of a block.
TARPEG_HD void read_mask(const Tile& tile, int block, TileState* state) {
  const uint32_t masks_at = tile.head + static_cast<uint32_t>(tile.blocks + 1) / 2;
  const uint32_t first = state->codes[block];
  uint64_t mask = 0;
  const int length = mask_nibbles(tile, block);
  for (int i = 0; i < length; ++i) {
    mask |= static_cast<uint64_t>(tile.bytes.nibble(masks_at, first + static_cast<uint32_t>(i))) << (4 * i);
  }
  state->masks[block] = mask;
  state->codes[block] = static_cast<uint16_t>(count_bits(mask));
}
// Step 4, of a tile.
TARPEG_HD void find_values(const Tile& tile, TileState* state) {
  const uint32_t values = sum_up(state->codes, tile.blocks);
  state->bytes_at = state->nibbles_at + (values + 1) / 2;
}
// Step 5, of a block.
TARPEG_HD void count_escapes(const Tile& tile, int block, TileState* state) {
  const int count = count_bits(state->masks[block]);
  uint16_t escapes = 0;
  for (int i = 0; i < count; ++i)
    escapes += tile.bytes.nibble(state->nibbles_at, state->codes[block] + static_cast<uint32_t>(i)) == 0;
  state->bytes[block] = escapes;
  state->wides[block] = escapes;
}
// Step 6, of a tile.
TARPEG_HD void find_bytes(const Tile& tile, TileState* state) {
  state->wides_at = state->bytes_at + sum_up(state->bytes, tile.blocks);
}
// Step 7, of a block.
TARPEG_HD void count_wides(const Tile& tile, int block, TileState* state) {
  const uint32_t begin = state->bytes_at + state->bytes[block];
  uint16_t wides = 0;
  for (uint32_t i = 0; i < state->wides[block]; ++i) wides += tile.bytes[begin + i] == 0x80;
  state->wides[block] = wides;
}
// Step 8, of a tile. False if it does not end in the last `unit` bytes.
TARPEG_HD bool find_wides(const Plan& plan, const Tile& tile, TileState* state) {
  const uint32_t end = state->wides_at + 2 * sum_up(state->wides, tile.blocks);
  return end <= tile.bytes.size && tile.bytes.size - end < (1u << plan.image.unit);
}

// A block of a tile: its component, and which of its component's.
struct BlockPlace {
  int component, number;
};
TARPEG_HD BlockPlace place_of(const Plan& plan, const Tile& tile, int block) {
  int component = 0;
  for (; component + 1 < plan.components; ++component) {
    const int count = tile.mcus * plan.planes[component].across * plan.planes[component].down;
    if (block < count) break;
    block -= count;
  }
  return {component, block};
}
TARPEG_HD int16_t* block_of(const Plan& plan, const Tile& tile, int block, uint8_t* memory) {
  const BlockPlace place = place_of(plan, tile, block);
  if (place.component >= plan.wanted) return nullptr;
  const Plane& plane = plan.planes[place.component];
  const int of_mcu = plane.across * plane.down, mcu = place.number / of_mcu, k = place.number % of_mcu;
  return block_at(plane, tile.row * plane.down + k / plane.across,
                  (tile.first_mcu + mcu) * plane.across + k % plane.across, memory);
}

// Step 9, of a block: its coefficients, the first of which is a difference.
TARPEG_HD void place_values(const Plan& plan, const Tile& tile, int block, const uint8_t* zigzag,
                            TileState* state, uint8_t* memory) {
  int16_t* const out = block_of(plan, tile, block, memory);
  const uint64_t mask = state->masks[block];
  state->dc[block] = 0;
  if (out != nullptr) clear_block(out);
  if (out == nullptr && (mask & 1) == 0) return;
  uint32_t code = state->codes[block], byte = state->bytes_at + state->bytes[block];
  uint32_t wide = state->wides_at + 2u * state->wides[block];
  for (uint64_t left = mask; left != 0; left &= left - 1) {
    int value = (tile.bytes.nibble(state->nibbles_at, code++) ^ 8) - 8;
    if (value == 0) {
      value = static_cast<int8_t>(tile.bytes[byte++]);
      if (value == -128) {
        value = tile.bytes.half(wide);
        wide += 2;
      }
    }
    const int k = lowest_bit(left);
    if (k == 0) state->dc[block] = static_cast<int16_t>(value);
    if (out == nullptr) return;
    out[zigzag[k]] = static_cast<int16_t>(value);
  }
}

// Step 10, of a component.
TARPEG_HD void sum_differences(const Plan& plan, const Tile& tile, int component, TileState* state) {
  uint32_t at = 0;
  int first = 0;
  for (int i = 0; i < component; ++i) {
    at += plan.image.dc_bytes[i];
    first += tile.mcus * plan.planes[i].across * plan.planes[i].down;
  }
  const int count = tile.mcus * plan.planes[component].across * plan.planes[component].down;
  int dc = tile.bytes.half(at);
  if (plan.image.dc_bytes[component] == 1) dc = static_cast<int8_t>(tile.bytes[at]);
  for (int i = first; i < first + count; ++i) {
    dc = static_cast<int16_t>(dc + state->dc[i]);
    state->dc[i] = static_cast<int16_t>(dc);
  }
}

// Step 11, of a block.
TARPEG_HD void place_dc(const Plan& plan, const Tile& tile, int block, const TileState& state,
                        uint8_t* memory) {
  int16_t* const out = block_of(plan, tile, block, memory);
  if (out != nullptr) out[0] = state.dc[block];
}

}  // namespace tarpeg::gather
