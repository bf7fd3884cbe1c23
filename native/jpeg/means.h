#pragma once

#include <cstddef>
#include <cstdint>

namespace tarpeg {

// The side of the dense block of samples for reduce_block().
constexpr int kBlockSide = 8;

// Means of down_by x across_by samples (1, 2, 4 or 8 each), rounded to nearest, halves alternately up and
// down, of the first `side` rows and columns (4 or 8, at least the side of a mean) of a dense 8x8 block.
void reduce_block(const uint8_t* block, int side, int down_by, int across_by, uint8_t* out,
                  ptrdiff_t stride) noexcept;

}  // namespace tarpeg
