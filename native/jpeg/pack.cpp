#include "jpeg/pack.h"

#include <algorithm>
#include <cstring>

namespace tarpeg {
namespace {

using Layout = PackedLayout;

// The largest values that baseline JPEGs may code (T.81 F.1.2).
constexpr int kMostDifference = 2047, kMostAc = 1023;

template <typename Number>
void put(Number value, uint8_t* at) noexcept {
  for (size_t i = 0; i < sizeof value; ++i) at[i] = static_cast<uint8_t>(value >> (8 * i));
}

bool is_ac_small(const Block& block) noexcept {
  int largest = 0;
  for (int k = 1; k < 64; ++k) largest |= block[k] < 0 ? ~block[k] : block[k];
  if (largest <= kMostAc) return std::find(block + 1, block + 64, -kMostAc - 1) == block + 64;
  return false;
}

}  // namespace

PackedWriter::PackedWriter(const PackedSource& source, int tile) : source_(source), blocks_(new Blocks) {
  const Frame& frame = source.frame;
  const int wanted = (tile + frame.mcu_width - 1) / frame.mcu_width;
  tile_mcus_ = std::min({wanted, frame.mcu_columns, kMostTileBlocks / frame.blocks});
  tiles_ = (frame.mcu_columns + tile_mcus_ - 1) / tile_mcus_;
  shape_.components = frame.component_count;
  for (int i = 0; i < frame.component_count; ++i)
    shape_.counts[i] = frame.components[i].across * frame.components[i].down;
}

void PackedWriter::add() {
  const Block* block = next();
  for (int i = 0; i < shape_.components; ++i) {
    if (filled_ == 0) {
      first_.push_back((*block)[0]);
      is_small_[i] &= (*block)[0] == static_cast<int8_t>((*block)[0]);
    }
    for (int k = 0; k < shape_.counts[i]; ++k, ++block) {
      fits_ &= std::abs((*block)[0] - dc_[i]) <= kMostDifference && is_ac_small(*block);
      dc_[i] = (*block)[0];
    }
  }
  ++filled_;
  if (++column_ == source_.frame.mcu_columns) column_ = 0;
  if (filled_ < tile_mcus_ && column_ != 0) return;
  shape_.mcus = filled_;
  pack_tile(shape_, blocks_->data, &blocks_->scratch, &tile_bytes_);
  ends_.push_back(tile_bytes_.size());
  filled_ = 0;
}

bool PackedWriter::finish(std::vector<uint8_t>* out) const {
  const Frame& frame = source_.frame;
  if (!fits_) return false;
  size_t dc_bytes = 0;
  for (int i = 0; i < shape_.components; ++i) dc_bytes += is_small_[i] ? 1 : 2;
  // Tiles begin at multiples of a unit, so that two bytes hold the end of any tile of a row.
  int unit = 0;
  const auto rounded = [&unit](size_t size) { return (size + (size_t{1} << unit) - 1) >> unit << unit; };
  const auto tile_size = [&](size_t tile) {
    return rounded(dc_bytes + ends_[tile] - (tile == 0 ? 0 : ends_[tile - 1]));
  };
  size_t largest, total;
  do {
    largest = total = 0;
    for (size_t row = 0; row < static_cast<size_t>(frame.mcu_rows); ++row) {
      size_t sum = 0;
      for (size_t tile = 0; tile < static_cast<size_t>(tiles_); ++tile) sum += tile_size(row * tiles_ + tile);
      largest = std::max(largest, sum);
      total += sum;
    }
  } while (largest >> unit > UINT16_MAX && ++unit);

  std::vector<const uint16_t*> tables;  // of the components, each once
  uint8_t fields[12] = {};
  for (int i = 0; i < shape_.components; ++i) {
    const Component& component = frame.components[i];
    size_t table = 0;
    const auto is_same = [&](const uint16_t* known) {
      return std::memcmp(known, component.quantisers, sizeof component.quantisers) == 0;
    };
    while (table < tables.size() && !is_same(tables[table])) ++table;
    if (table == tables.size()) tables.push_back(component.quantisers);
    uint8_t* field = fields + 4 * i;
    field[0] = source_.ids[i];
    field[1] = static_cast<uint8_t>(component.across << 4 | component.down);
    field[2] = static_cast<uint8_t>(table);
    field[3] = is_small_[i] ? 1 : 2;
  }
  const size_t rows_at = Layout::kTables + 128 * tables.size();
  const size_t ends_at = rows_at + 4 * static_cast<size_t>(frame.mcu_rows);
  const size_t tiles_at = ends_at + 2 * ends_.size(), metadata_at = tiles_at + total;
  if (metadata_at + source_.metadata.size() + kTileMargin > UINT32_MAX) return false;
  out->assign(metadata_at + source_.metadata.size() + kTileMargin, 0);
  uint8_t* const data = out->data();

  std::copy(std::begin(Layout::kMagic), std::end(Layout::kMagic), data);
  put(static_cast<uint16_t>(Layout::kVersion), data + Layout::kVersionAt);
  data[Layout::kOrientation] = static_cast<uint8_t>(source_.orientation);
  data[Layout::kComponentCount] = static_cast<uint8_t>(shape_.components);
  const bool is_turned = source_.orientation >= 5;
  put(static_cast<uint16_t>(is_turned ? frame.width : frame.height), data + Layout::kHeight);
  put(static_cast<uint16_t>(is_turned ? frame.height : frame.width), data + Layout::kWidth);
  put(static_cast<uint16_t>(tile_mcus_), data + Layout::kTileMcus);
  data[Layout::kUnit] = static_cast<uint8_t>(unit);
  data[Layout::kTableCount] = static_cast<uint8_t>(tables.size());
  std::copy(std::begin(fields), std::end(fields), data + Layout::kComponents);
  put(static_cast<uint32_t>(metadata_at), data + Layout::kMetadata);
  put(static_cast<uint32_t>(source_.metadata.size()), data + Layout::kMetadataSize);
  for (size_t i = 0; i < tables.size(); ++i) std::memcpy(data + Layout::kTables + 128 * i, tables[i], 128);

  size_t at = tiles_at, begin = 0;
  const int16_t* dc = first_.data();
  for (size_t tile = 0; tile < ends_.size(); ++tile) {
    const size_t row = tile / tiles_;
    if (tile % tiles_ == 0) {
      begin = at;
      put(static_cast<uint32_t>(begin), data + rows_at + 4 * row);
    }
    uint8_t* to = data + at;
    for (int i = 0; i < shape_.components; ++i) {
      *to++ = static_cast<uint8_t>(*dc);
      if (!is_small_[i]) *to++ = static_cast<uint8_t>(*dc >> 8);
      ++dc;
    }
    const size_t from = tile == 0 ? 0 : ends_[tile - 1];
    std::copy(tile_bytes_.data() + from, tile_bytes_.data() + ends_[tile], to);
    at += tile_size(tile);
    put(static_cast<uint16_t>((at - begin) >> unit), data + ends_at + 2 * tile);
  }
  std::copy(source_.metadata.begin(), source_.metadata.end(), data + metadata_at);
  put(packed_sum(data, out->size()), data + Layout::kChecksum);
  return true;
}

}  // namespace tarpeg
