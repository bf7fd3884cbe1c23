#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "jpeg/entropy.h"

namespace tarpeg {

// A tile has at most so many blocks, and then less than 64 KB.
constexpr int kMostTileBlocks = 256;
// Bytes after a tile that vector code may read, but does not use.
constexpr size_t kTileMargin = 64;

// The blocks of a tile: `mcus` MCUs of a row, each with counts[i] blocks of component i.
struct TileShape {
  int components = 0, mcus = 0;
  int counts[3] = {};
  int dc_bytes[3] = {};  // 1 or 2: of the first DC value of each component

  int mcu_blocks() const noexcept { return counts[0] + counts[1] + counts[2]; }
  bool operator==(const TileShape& other) const noexcept {
    return components == other.components && mcus == other.mcus && counts[0] == other.counts[0] &&
           counts[1] == other.counts[1] && counts[2] == other.counts[2];
  }
  size_t head() const noexcept { return static_cast<size_t>(dc_bytes[0] + dc_bytes[1] + dc_bytes[2]); }
};

// Memory for the steps between the bytes of a tile and its coefficients.
struct TileScratch {
  TileShape shape;
  const uint8_t* streams = nullptr;  // what is read next
  const uint8_t* end = nullptr;
  int block_count = 0, value_count = 0, wide_count = 0;
  uint16_t order[kMostTileBlocks];  // the block of each mask, for `shape`
  uint64_t masks[kMostTileBlocks];
  alignas(64) int8_t values[kMostTileBlocks * 64 + 64];
};

// Note [packed tiles]
// The quantised coefficients of a tile, for vector instructions; docs/formats.md describes the bytes. Each
// block is a mask of its nonzero coefficients in zigzag order, cut after the last of them, and their values:
// four bits each, a byte where four bits are too few, two bytes where one is. Lengths, masks, values and the
// two kinds of longer values are five streams, one after the other: no block waits until the end of the
// previous one is known, only for sums of counted bits. The components follow each other, so that gray images
// skip chroma. DC values are differences within the tile.
//
// Appends everything but the first DC values, which are unpack_tile()'s `head`, to `out`. `blocks` are those
// of the MCUs in turn, in natural order.
void pack_tile(const TileShape& shape, const Block* blocks, TileScratch* scratch, std::vector<uint8_t>* out);

// The reverse, for the first `wanted` components; every coefficient of their blocks is written. Reads nothing
// beyond data + size + kTileMargin. False if the data do not end in the last `unit` bytes.
bool unpack_tile(const uint8_t* data, size_t size, size_t unit, const TileShape& shape, int wanted,
                 TileScratch* scratch, Block* blocks) noexcept;

}  // namespace tarpeg
