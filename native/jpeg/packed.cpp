#include "jpeg/packed.h"

#include <algorithm>
#include <cstring>

#include "base/crc.h"

namespace tarpeg {
namespace {

using Layout = PackedLayout;

constexpr size_t kTableBytes = 64 * 2;

template <typename Number>
Number number(const uint8_t* at) noexcept {
  static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "the format is little-endian");
  Number value;
  std::memcpy(&value, at, sizeof value);
  return value;
}

}  // namespace

uint32_t packed_sum(const uint8_t* data, size_t size) noexcept {
  const size_t at = std::min(size, Layout::kChecksum + 4);
  return crc32(data + at, size - at);
}

bool is_packed_sum_correct(const uint8_t* data, size_t size) noexcept {
  return size >= Layout::kTables && number<uint32_t>(data + Layout::kChecksum) == packed_sum(data, size);
}

Header read_packed_header(const uint8_t* data, size_t size) noexcept {
  Header header;
  header.format = Format::kPacked;
  header.status = Status::kTruncated;
  if (size < Layout::kTables) return header;
  const int version = number<uint16_t>(data + Layout::kVersionAt);
  header.status = version > Layout::kVersion ? Status::kLaterVersion : Status::kCorrupt;
  if (version != Layout::kVersion) return header;
  const int orientation = data[Layout::kOrientation];
  const int height = number<uint16_t>(data + Layout::kHeight),
            width = number<uint16_t>(data + Layout::kWidth);
  if (orientation < 1 || orientation > 8 || height == 0 || width == 0) return header;
  header.orientation = orientation;
  header.height = orientation >= 5 ? width : height;
  header.width = orientation >= 5 ? height : width;
  header.status = Status::kOk;
  return header;
}

Status PackedImage::parse(const uint8_t* data, size_t size, const Header& header) noexcept {
  if (size < Layout::kTables + kTileMargin) return Status::kTruncated;
  uint8_t head[Layout::kTables];
  std::memcpy(head, data, sizeof head);
  data_ = data;
  size_ = size;
  height = header.height;
  width = header.width;
  component_count = head[Layout::kComponentCount];
  tile_mcus = number<uint16_t>(head + Layout::kTileMcus);
  unit_ = head[Layout::kUnit];
  table_count = head[Layout::kTableCount];
  if ((component_count != 1 && component_count != 3) || tile_mcus == 0 || unit_ > 16 || table_count > 4) {
    return Status::kCorrupt;
  }
  for (int i = 0; i < component_count; ++i) {
    const uint8_t* field = head + Layout::kComponents + 4 * i;
    Component& component = components[i];
    ids[i] = field[0];
    component.across = field[1] >> 4;
    component.down = field[1] & 15;
    tables[i] = field[2];
    dc_bytes_[i] = field[3];
    if (component.across < 1 || component.across > 4 || component.down < 1 || component.down > 4 ||
        tables[i] >= table_count || dc_bytes_[i] < 1 || dc_bytes_[i] > 2) {
      return Status::kCorrupt;
    }
  }
  if (!derive() || tile_mcus * blocks > kMostTileBlocks) return Status::kCorrupt;
  tiles = (mcu_columns + tile_mcus - 1) / tile_mcus;
  // Every block has at least four bits: no memory is allocated for impossible sizes.
  if (static_cast<size_t>(mcu_rows) * mcu_columns * blocks > 2 * size) return Status::kTruncated;
  rows_ = Layout::kTables + kTableBytes * table_count;
  ends_ = rows_ + 4 * static_cast<size_t>(mcu_rows);
  const size_t first = ends_ + 2 * static_cast<size_t>(mcu_rows) * tiles;
  const size_t at = number<uint32_t>(head + Layout::kMetadata);
  metadata_size = number<uint32_t>(head + Layout::kMetadataSize);
  if (at < first) return Status::kCorrupt;
  if (at + metadata_size + kTileMargin != size)
    return at + metadata_size + kTileMargin > size ? Status::kTruncated : Status::kCorrupt;
  metadata = data + at;
  for (int i = 0; i < component_count; ++i)
    std::memcpy(components[i].quantisers, data + Layout::kTables + kTableBytes * tables[i], kTableBytes);
  return Status::kOk;
}

TileShape PackedImage::shape(int tile) const noexcept {
  TileShape shape;
  shape.components = component_count;
  shape.mcus = std::min(tile_mcus, mcu_columns - tile * tile_mcus);
  for (int i = 0; i < component_count; ++i) {
    shape.counts[i] = components[i].across * components[i].down;
    shape.dc_bytes[i] = dc_bytes_[i];
  }
  return shape;
}

PackedImage::Extent PackedImage::extent(int row, int tile) const noexcept {
  const size_t start = number<uint32_t>(data_ + rows_ + 4 * static_cast<size_t>(row));
  const uint8_t* ends = data_ + ends_ + 2 * (static_cast<size_t>(row) * tiles + tile);
  const size_t begin = tile == 0 ? 0 : number<uint16_t>(ends - 2), end = number<uint16_t>(ends);
  return {start + (begin << unit_), start + (end << unit_)};
}

void PackedImage::prefetch(int row, int tile) const noexcept {
  constexpr size_t kLine = 64, kMost = 16 * kLine;
  const Extent bytes = extent(row, tile);
  const size_t end = std::min({bytes.end, bytes.begin + kMost, size_});
  for (size_t at = bytes.begin; at < end; at += kLine) __builtin_prefetch(data_ + at);
}

int PackedImage::unit() const noexcept { return unit_; }

bool PackedImage::find(int row, int tile, const uint8_t** data, uint32_t* size) const noexcept {
  const Extent bytes = extent(row, tile);
  if (bytes.begin > bytes.end || bytes.end + kTileMargin > size_) return false;
  *data = data_ + bytes.begin;
  *size = static_cast<uint32_t>(bytes.end - bytes.begin);
  return true;
}

bool PackedImage::unpack(int row, int tile, int wanted, TileScratch* scratch, Block* blocks) const noexcept {
  const uint8_t* data;
  uint32_t size;
  return find(row, tile, &data, &size) &&
         unpack_tile(data, size, size_t{1} << unit_, shape(tile), wanted, scratch, blocks);
}

}  // namespace tarpeg
