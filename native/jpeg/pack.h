#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "jpeg/packed.h"

namespace tarpeg {

// What a packed image consists of, except for its coefficients.
struct PackedSource {
  Frame frame;  // one or three components, with their quantisers
  int orientation = 1;
  uint8_t ids[3] = {};
  std::vector<uint8_t> metadata;  // marker segments
};

// Collects the blocks of an image, MCU by MCU, and makes a packed image of them.
class PackedWriter {
 public:
  PackedWriter(const PackedSource& source, int tile);

  // The memory for the blocks of the next MCU, in the order of a JPEG's scan; then takes them.
  Block* next() noexcept { return blocks_->data + filled_ * source_.frame.blocks; }
  void add();
  // False if the coefficients do not fit in a baseline JPEG without restart markers, or the file is too large
  // for its offsets.
  bool finish(std::vector<uint8_t>* out) const;

 private:
  struct Blocks {
    TileScratch scratch;
    Block data[kMostTileBlocks];
  };

  const PackedSource& source_;
  TileShape shape_;
  int tile_mcus_, tiles_, filled_ = 0, column_ = 0;
  int dc_[3] = {};
  bool fits_ = true, is_small_[3] = {true, true, true};
  std::unique_ptr<Blocks> blocks_;
  std::vector<int16_t> first_;  // DC value of each component in each tile
  std::vector<uint8_t> tile_bytes_;
  std::vector<size_t> ends_;  // of the tiles in tile_bytes_
};

}  // namespace tarpeg
