#pragma once

#include <cstddef>
#include <cstdint>

#include "jpeg/baseline.h"
#include "jpeg/packed_tile.h"

namespace tarpeg {

// Where things are in a packed image; docs/formats.md describes every byte.
struct PackedLayout {
  static constexpr uint8_t kMagic[4] = {0x89, 'T', 'P', 'J'};
  static constexpr int kVersion = 1;
  static constexpr size_t kVersionAt = 4, kOrientation = 6, kComponentCount = 7, kChecksum = 8, kHeight = 12,
                          kWidth = 14, kTileMcus = 16, kUnit = 18, kTableCount = 19, kComponents = 20,
                          kMetadata = 32, kMetadataSize = 36, kTables = 40;
};

// The header of a packed image. Never reads past `size`.
Header read_packed_header(const uint8_t* data, size_t size) noexcept;

// CRC-32 (that of zlib and PNG) of everything after the field of the checksum; false if the field differs.
bool is_packed_sum_correct(const uint8_t* data, size_t size) noexcept;
uint32_t packed_sum(const uint8_t* data, size_t size) noexcept;

// A JPEG's quantised coefficients in tiles, for vector instructions: see Note [packed tiles]. The file may be
// mapped and change while it is read: every length is read once, and checked where it is used.
struct PackedImage : Frame {
  // Only the header and the directory's bounds are checked. `header` is that of the same data.
  Status parse(const uint8_t* data, size_t size, const Header& header) noexcept;

  // The blocks of the first `wanted` components of a tile. False if it is damaged.
  bool unpack(int row, int tile, int wanted, TileScratch* scratch, Block* blocks) const noexcept;
  TileShape shape(int tile) const noexcept;
  // The bytes of a tile, after which kTileMargin more can be read. False if it is not within the file.
  bool find(int row, int tile, const uint8_t** data, uint32_t* size) const noexcept;
  int unit() const noexcept;  // log2
  // Requests the bytes of a tile from memory: rows of tiles are too short for the processor's own prefetcher.
  void prefetch(int row, int tile) const noexcept;

  int tile_mcus = 0, tiles = 0;  // MCUs of a tile, except for the last of a row; tiles of a row
  int table_count = 0;
  uint8_t ids[3], tables[3];  // of the components: JPEG's identifier, index of the quantisers
  const uint8_t* metadata = nullptr;
  size_t metadata_size = 0;

 private:
  // Where the bytes of a tile begin and end; beyond the data if the directory is damaged.
  struct Extent {
    size_t begin, end;
  };
  Extent extent(int row, int tile) const noexcept;

  const uint8_t* data_ = nullptr;
  size_t size_ = 0, rows_ = 0, ends_ = 0;  // the directory: offsets of rows, ends of tiles
  int unit_ = 0, dc_bytes_[3] = {};
};

}  // namespace tarpeg
