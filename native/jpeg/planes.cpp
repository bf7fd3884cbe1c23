#include "jpeg/planes.h"

#include <algorithm>
#include <cstring>

#include "base/pages.h"
#include "jpeg/entropy.h"
#include "jpeg/idct.h"
#include "jpeg/libjpeg.h"
#include "jpeg/means.h"

namespace tarpeg {

namespace {

// A segment that is corrupt decides, also after one that is irregular: libjpeg may keep silent about both.
Status worse(Status status, Status next) { return next == Status::kOk ? status : next; }

}  // namespace

// Note [margin]
// Chroma upsampling mixes each sample with its neighbours, so the pixels next to the box contribute: the MCUs
// that contain them are decoded too.
void PlaneReader::prepare(const Frame& frame, const Box& box, int reduction, PixelFormat format) {
  component_count_ = format == PixelFormat::kGray ? 1 : frame.component_count;
  reduction_ = reduction;
  format_ = format;
  box_ = reduced(box, reduction);
  all_ = {};
  y_ = box_.top;
  // Every sample of a reduced pixel counts, whether it is in the box or next to it.
  const RowRange needed = rows_of(box, reduction);
  const int right = std::min(frame.width, (box_.left + box_.width) * reduction);
  own_.first_column = std::max(0, box_.left * reduction - 1) / frame.mcu_width;
  own_.last_column = std::min(frame.width - 1, right) / frame.mcu_width;
  own_.first_row = std::max(0, needed.top) / frame.mcu_height;
  own_.last_row = (std::min(frame.height, needed.bottom) - 1) / frame.mcu_height;
  is_direct_ = true;
  for (int i = 0; i < component_count_; ++i) {
    const Component& component = frame.components[i];
    Plane& plane = planes_[i];
    const int across = frame.across / component.across, down = frame.down / component.down;
    plane.across_by = std::max(1, reduction / across);
    plane.down_by = std::max(1, reduction / down);
    plane.side = frame.is_halved(i, reduction, component_count_) ? kBlockSide / 2 : kBlockSide;
    plane.block_rows = kBlockSide / plane.down_by;
    plane.block_columns = kBlockSide / plane.across_by;
    plane.across = std::max(1, across / reduction);
    plane.down = std::max(1, down / reduction);
    is_direct_ &= plane.is_direct();
    // Upsampling mixes with the samples of the next pixel.
    const int margin = plane.across > 1 || plane.down > 1;
    const int down_to_block = plane.down * plane.block_rows,
              across_to_block = plane.across * plane.block_columns;
    plane.needed = {std::max(0, box_.top - margin) / down_to_block,
                    (box_.top + box_.height - 1 + margin) / down_to_block,
                    std::max(0, box_.left - margin) / across_to_block,
                    (box_.left + box_.width - 1 + margin) / across_to_block};
    plane.width = (component.width + plane.across_by - 1) / plane.across_by;
    plane.height = (component.height + plane.down_by - 1) / plane.down_by;
    plane.top = own_.first_row * component.down * plane.block_rows;
    plane.left = own_.first_column * component.across * plane.block_columns;
    plane.columns = (own_.last_column - own_.first_column + 1) * component.across * plane.block_columns;
    plane.stride = (plane.columns + 2 * Plane::kGap - 1) / Plane::kGap * Plane::kGap;
    plane.rows = (own_.last_row - own_.first_row + 1) * component.down * plane.block_rows;
    const size_t bytes = static_cast<size_t>(plane.rows) * plane.stride + 2 * Plane::kMargin;
    if (plane.data.size() < bytes) plane.data.resize(bytes);
    const size_t length = static_cast<size_t>(plane.columns) * plane.across + 64;
    if (lines_[i].size() < length) lines_[i].resize(length);
    if (sums_.size() < length) sums_.resize(length);
  }
}

void PlaneReader::plan_blocks(const BaselineStream& stream) noexcept {
  BlockPlan* plan = plans_;
  for (int i = 0; i < stream.component_count; ++i) {
    const Component& component = stream.components[i];
    for (int block = 0; block < component.across * component.down; ++block) {
      *plan++ = {&stream.dc_tables[component.dc_table], &stream.ac_tables[component.ac_table], i};
    }
  }
}

Status PlaneReader::check(const BaselineStream& stream, int rows) {
  plan_blocks(stream);
  has_padding_ = false;
  // Every MCU is read, none is in the box.
  read_ = {stream.mcu_rows, std::min(stream.height - 1, rows) / stream.mcu_height, 0, stream.mcu_columns - 1};
  const int64_t mcus = static_cast<int64_t>(read_.last_row + 1) * stream.mcu_columns;
  Status status = Status::kOk;
  for (int64_t segment = 0; segment * stream.interval < mcus; ++segment) {
    status = worse(status, decode_segment(stream, static_cast<size_t>(segment)));
    if (status == Status::kCorrupt) return status;
  }
  return status;
}

// MCUs of this reader and of those after it.
void PlaneReader::plan_range() noexcept {
  read_ = own_;
  for (const PlaneReader* reader = next_; reader != nullptr; reader = reader->next_) {
    read_ = {std::min(read_.first_row, reader->own_.first_row),
             std::max(read_.last_row, reader->own_.last_row),
             std::min(read_.first_column, reader->own_.first_column),
             std::max(read_.last_column, reader->own_.last_column)};
  }
}

Status PlaneReader::decode(const PackedImage& image) {
  plan_range();
  if (!packed_) packed_.reset(new Packed);
  const int first = read_.first_column / image.tile_mcus, last = read_.last_column / image.tile_mcus;
  for (int tile = first; tile <= last; ++tile) image.prefetch(read_.first_row, tile);
  for (int row = read_.first_row; row <= read_.last_row; ++row) {
    for (int tile = first, held = 0; tile <= last; ++tile) {  // `held` MCUs of the tiles before
      Block* const blocks = packed_->blocks + held * image.blocks;
      if (!image.unpack(row, tile, component_count_, &packed_->scratch, blocks)) return Status::kCorrupt;
      if (row < read_.last_row) image.prefetch(row + 1, tile);
      const int begin = tile * image.tile_mcus - held;
      held += image.shape(tile).mcus;
      if (tile < last && (held + image.tile_mcus) * image.blocks <= kTogether) continue;
      transform_all(image, packed_->blocks, row, begin, held);
      held = 0;
    }
  }
  repeat_all_ends();
  return Status::kOk;
}

// Decodes tiles two at a time: Note [lanes]. False if they are large or anything is irregular:
// decode_segment() then decides.
bool PlaneReader::decode_tiles(const BaselineStream& stream) {
  const int tile = stream.interval, per_row = stream.mcu_columns / tile;
  if (stream.mcu_columns % tile != 0 || tile > LanePair::kMostBlocks / stream.blocks) return false;
  const int first = read_.first_column / tile, across = read_.last_column / tile + 1 - first;
  const int count = across * (read_.last_row + 1 - read_.first_row);
  if (count < 2 || !LanePair::is_available()) return false;
  if (!lanes_) lanes_.reset(new Lanes);
  LanePair& pair = lanes_->pair;
  pair.plan(plans_, stream.blocks, stream.dc_tables);
  int at[LanePair::kLanes], next = 0;
  const auto segment_of = [&](int number) {
    return static_cast<size_t>(read_.first_row + number / across) * per_row + first + number % across;
  };
  // MCUs of a tile that are decoded.
  const auto range_of = [&](int number, int* begin, int* end) {
    *begin = (first + number % across) * tile;
    *end = std::min(*begin + tile, read_.last_column + 1);
  };
  const auto start = [&](int lane) {
    const size_t segment = segment_of(next);
    if (segment < stream.first_segment || segment >= stream.end_segment) return false;
    const uint8_t* const data = stream.starts[segment];
    const size_t bytes = static_cast<size_t>(stream.ends[segment] - data);
    std::vector<uint8_t>& plain = lanes_->segments[lane];
    if (plain.size() < bytes + kReadAhead) plain.resize(bytes + kReadAhead);
    const ptrdiff_t length = remove_stuffing(data, bytes, plain.data());
    if (length < 0) return false;
    int begin, end;
    range_of(next, &begin, &end);
    pair.start(lane, plain.data(), length, std::max(0, read_.first_column - begin) * stream.blocks,
               (end - begin) * stream.blocks);
    at[lane] = next++;
    return true;
  };
  for (int lane = 0; lane < LanePair::kLanes; ++lane) {
    if (!start(lane)) return false;
  }
  for (int done = 0; done < count; ++done) {
    const int lane = pair.run();
    if (lane < 0) return false;
    int begin, end;
    range_of(at[lane], &begin, &end);
    // Padding is judged by decode_segment().
    if (end % tile == 0 && pair.left(lane) >= 8) return false;
    transform_all(stream, pair.blocks(lane), read_.first_row + at[lane] / across, begin, end - begin);
    if (next < count && !start(lane)) return false;
  }
  return true;
}

Status PlaneReader::decode(const BaselineStream& stream) {
  plan_blocks(stream);
  plan_range();
  if (decode_tiles(stream)) {
    repeat_all_ends();
    return Status::kOk;
  }
  const int64_t first = static_cast<int64_t>(read_.first_row) * stream.mcu_columns + read_.first_column;
  const int64_t last = static_cast<int64_t>(read_.last_row) * stream.mcu_columns + read_.last_column;
  Status status = Status::kOk;
  for (int64_t segment = first / stream.interval; segment <= last / stream.interval; ++segment) {
    // A segment within one row of MCUs may lie to the left or right of the box.
    const int64_t begin = segment * stream.interval, end = begin + stream.interval;
    const int64_t row = begin / stream.mcu_columns, offset = begin % stream.mcu_columns;
    const bool one_row = end <= (row + 1) * stream.mcu_columns;
    if (one_row && (offset > read_.last_column || offset + stream.interval <= read_.first_column)) continue;
    status = worse(status, decode_segment(stream, static_cast<size_t>(segment)));
    if (status == Status::kCorrupt) return status;
  }
  repeat_all_ends();
  return status;
}

Status PlaneReader::decode(const uint8_t* data, size_t size, const Header& header, const Box& box,
                           int reduction, PixelFormat format, bool is_checked) {
  RawReader raw;
  Frame frame;
  Status status = raw.open(data, size, header.height, header.width, reduction, format == PixelFormat::kGray,
                           is_checked, &frame);
  if (status != Status::kOk) return status;
  prepare(frame, box, reduction, format);
  // A gray image with sampling factors above 1 has rows of several blocks in libjpeg, of one block in its
  // frame.
  const int blocks_down = raw.blocks_down();
  for (int row = 0; row <= own_.last_row; ++row) {
    if (row % blocks_down == 0) {
      status = raw.next();
      if (status != Status::kOk) return status;
    }
    if (row < own_.first_row) continue;
    for (int i = 0; i < component_count_; ++i) {
      const Component& component = frame.components[i];
      Plane& plane = planes_[i];
      for (int y = 0; y < component.down; ++y) {
        for (int x = own_.first_column * component.across; x < (own_.last_column + 1) * component.across;
             ++x) {
          const uint8_t* block = raw.block(i, row % blocks_down + y, x);
          for (int line = 0; line < plane.side; ++line) {
            std::memcpy(samples_[0] + kBlockSide * line, block + line * raw.stride(i),
                        static_cast<size_t>(plane.side));
          }
          store(component, &plane, row * component.down + y, x, samples_[0]);
        }
      }
    }
  }
  repeat_ends();
  return own_.last_row == frame.mcu_rows - 1 ? raw.finish() : Status::kOk;
}

Status PlaneReader::decode_segment(const BaselineStream& stream, size_t segment) {
  if (segment < stream.first_segment || segment >= stream.end_segment) return Status::kUnsupported;
  const size_t bytes = static_cast<size_t>(stream.ends[segment] - stream.starts[segment]);
  if (segment_.size() < bytes + kReadAhead) segment_.resize(bytes + kReadAhead);
  const ptrdiff_t length = remove_stuffing(stream.starts[segment], bytes, segment_.data());
  if (length < 0) return Status::kUnsupported;
  BitReader reader(segment_.data(), length);
  const int64_t begin = static_cast<int64_t>(segment) * stream.interval;
  const int64_t all = static_cast<int64_t>(stream.mcu_rows) * stream.mcu_columns;
  const int64_t end = std::min(begin + stream.interval, all);
  const int64_t last = static_cast<int64_t>(read_.last_row) * stream.mcu_columns + read_.last_column;
  int row = static_cast<int>(begin / stream.mcu_columns),
      column = static_cast<int>(begin % stream.mcu_columns);
  int dc[4] = {0, 0, 0, 0};
  int64_t mcu = begin;
  for (int held = 0; mcu < end && mcu <= last; ++mcu) {
    if (read_.has_row(row) && read_.has_column(column)) {
      Block* const blocks = blocks_ + held * stream.blocks;
      std::memset(blocks, 0, static_cast<size_t>(stream.blocks) * sizeof *blocks);
      if (!decode_blocks(&reader, plans_, stream.blocks, dc, blocks)) return Status::kUnsupported;
      ++held;
      if (column == read_.last_column || mcu + 1 == end || (held + 1) * stream.blocks > kTogether) {
        transform_all(stream, blocks_, row, column + 1 - held, held);
        held = 0;
      }
    } else {
      // After the last block under the box, the rest of this segment is not needed.
      if (column > read_.last_column &&
          (row == read_.last_row || end <= static_cast<int64_t>(row + 1) * stream.mcu_columns)) {
        return Status::kOk;
      }
      if (!decode_blocks(&reader, plans_, stream.blocks, dc, blocks_)) return Status::kUnsupported;
    }
    if (++column == stream.mcu_columns) {
      column = 0;
      ++row;
    }
  }
  if (mcu < end) return Status::kOk;
  const ptrdiff_t left = reader.left();
  if (left < 0) return Status::kUnsupported;
  const size_t surplus = static_cast<size_t>(left) / 8;
  has_padding_ |= surplus > 0;
  return is_padding(segment_.data() + length - surplus, surplus) ? Status::kOk : Status::kCorrupt;
}

// Puts a block into the plane, reduced. If the image ends in the block its last sample is repeated: the rest
// of the block is not part of the picture.
void PlaneReader::store(const Component& component, Plane* plane, int row, int column,
                        uint8_t* block) noexcept {
  const int side = plane->side, halved = side < kBlockSide;  // as a shift: divisions are slow
  const int height = ((component.height + halved) >> halved) - row * side;
  const int width = ((component.width + halved) >> halved) - column * side;
  for (int x = std::max(1, width); x < side; ++x) {
    for (int y = 0; y < side; ++y) block[kBlockSide * y + x] = block[kBlockSide * y + x - 1];
  }
  for (int y = std::max(1, height); y < side; ++y)
    std::memcpy(block + kBlockSide * y, block + kBlockSide * (y - 1), kBlockSide);
  reduce_block(block, side, plane->down_by >> halved, plane->across_by >> halved, plane->block(row, column),
               plane->stride);
}

// Turns the blocks of `count` MCUs of a row into samples, for all readers that they belong to.
void PlaneReader::transform_all(const Frame& frame, const Block* blocks, int row, int column,
                                int count) noexcept {
  for (PlaneReader* reader = this; reader != nullptr; reader = reader->next_) {
    const BlockRange& own = reader->own_;
    const int first = std::max(column, own.first_column);
    const int end = std::min(column + count, own.last_column + 1);
    if (!own.has_row(row) || first >= end) continue;
    reader->transform(frame, blocks + (first - column) * frame.blocks, row, first, end - first);
  }
}

// Those of all components together.
void PlaneReader::transform(const Frame& frame, const Block* blocks, int row, int column,
                            int count) noexcept {
  DctBlock jobs[kMostTileBlocks];
  DctBlock *whole = jobs, *halved = jobs + kMostTileBlocks;
  uint8_t (*samples)[64] = samples_;
  for (int i = 0; i < component_count_; ++i) {
    const Component& component = frame.components[i];
    Plane& plane = planes_[i];
    const bool is_direct = plane.is_direct(), is_whole = plane.side == kBlockSide;
    const ptrdiff_t stride = is_direct ? plane.stride : kBlockSide, step = is_direct ? plane.side : 64;
    const int across = component.across, skipped = std::max(plane.needed.first_column - column * across, 0);
    const int begin = column * across + skipped;
    const int end = std::min((column + count) * across, plane.needed.last_column + 1);
    // Divisions are slow, and the whole of most MCUs is needed.
    const int first = skipped > 0 ? skipped % across : 0;
    const int before = skipped > 0 ? skipped / across * frame.blocks : 0;
    for (int y = 0; y < component.down; ++y, blocks += across) {
      if (begin >= end || !plane.needed.has_row(row * component.down + y)) continue;
      uint8_t* out = is_direct ? plane.block(row * component.down + y, begin) : *samples;
      const Block* mcu = blocks + before;
      for (int left = end - begin, x = first; left > 0; --left, out += step) {
        (is_whole ? *whole++ : *--halved) = {mcu[x], component.quantisers, out, stride};
        if (++x == across) {
          x = 0;
          mcu += frame.blocks;
        }
      }
      if (!is_direct) samples += end - begin;
    }
  }
  inverse_dct(jobs, static_cast<int>(whole - jobs));
  halved_dct(halved, static_cast<int>(jobs + kMostTileBlocks - halved));
  samples = samples_;
  for (int i = 0; i < component_count_ && !is_direct_; ++i) {
    const Component& component = frame.components[i];
    Plane& plane = planes_[i];
    if (plane.is_direct()) continue;
    const int begin = std::max(column * component.across, plane.needed.first_column);
    const int end = std::min((column + count) * component.across, plane.needed.last_column + 1);
    for (int y = row * component.down; y < (row + 1) * component.down; ++y) {
      for (int x = begin; x < end && plane.needed.has_row(y); ++x) store(component, &plane, y, x, *samples++);
    }
  }
}

// libjpeg mixes only for these ratios, and only if chroma is more than two samples wide (jdsample.c).
bool PlaneReader::is_mixed(const Plane& plane) const noexcept {
  return reduction_ == 1 && plane.width > 2 && plane.across == 2 && plane.down <= 2;
}

// The image's last sample is repeated, not whatever the rest of its block holds.
void PlaneReader::repeat_ends() noexcept {
  for (int i = 0; i < component_count_; ++i) {
    Plane& plane = planes_[i];
    const bool is_first = plane.left == 0, is_last = plane.left + plane.columns >= plane.width;
    if (!is_mixed(plane) || !(is_first || is_last)) continue;
    uint8_t* row = plane.data.data() + Plane::kMargin - plane.left;
    for (int y = 0; y < plane.rows; ++y, row += plane.stride) {
      if (is_first) row[-1] = row[0];
      if (is_last) row[plane.width] = row[plane.width - 1];
    }
  }
}

void PlaneReader::repeat_all_ends() noexcept {
  for (PlaneReader* reader = this; reader != nullptr; reader = reader->next_) reader->repeat_ends();
}

// The samples for row y of the image, and those that they are mixed with; index 0 is column 0 of the image.
ChromaRow PlaneReader::chroma_row(const Plane& plane, int y) const noexcept {
  const int near = y / plane.down, next = plane.down == 1 ? near : y % plane.down == 0 ? near - 1 : near + 1;
  return {plane.row(near), plane.row(std::clamp(next, plane.top, plane.height - 1)), 0};
}

// Row y of a component at full resolution, at least the columns of the box; index 0 is column 0 of the image.
const uint8_t* PlaneReader::upsampled(int index, int y, const Box& box) noexcept {
  const Plane& plane = planes_[index];
  if (plane.across == 1 && plane.down == 1) return plane.row(y);
  uint8_t* const line = lines_[index].data();
  // Only what is under the box, and a margin: the planes may hold more, for other boxes.
  const int begin = std::max(plane.left, box.left / plane.across - 2) - 1;
  const int last = (box.left + box.width) / plane.across + 3;
  const int end = std::min({plane.left + plane.columns, plane.width, last}) + 1;
  ChromaRow row = chroma_row(plane, y);
  row = {row.near + begin, row.far + begin, end - begin};
  if (is_mixed(plane)) {
    plane.down == 1 ? upsample_h2v1(row, line) : upsample_h2v2(row, sums_.data(), line);
  } else if (reduction_ == 1 && plane.across == 1 && plane.down == 2) {
    upsample_h1v2(row, y % 2, line);
  } else {
    replicate(row, plane.across, line);
  }
  return line - static_cast<ptrdiff_t>(begin) * plane.across;
}

// As upsampled() does it.
Samples PlaneReader::samples(int component) const noexcept {
  const Plane& plane = planes_[component];
  const bool mixes_across = is_mixed(plane);
  const bool mixes_down = reduction_ == 1 && plane.down == 2 && (mixes_across || plane.across == 1);
  return {plane.row(plane.top) + plane.left,
          plane.stride,
          plane.top,
          plane.left,
          plane.height,
          plane.width,
          {plane.down, mixes_down},
          {plane.across, mixes_across}};
}

// Row y of the image, the columns of `box`.
void PlaneReader::convert(int y, const Box& box, uint8_t* out) noexcept {
  const uint8_t* luma = upsampled(0, y, box) + box.left;
  const RgbLine rgb{out, format_ == PixelFormat::kPlanar ? box.width : 0};
  if (format_ == PixelFormat::kGray) {
    std::memcpy(out, luma, static_cast<size_t>(box.width));
  } else if (component_count_ == 1) {
    gray_to_rgb(luma, box.width, rgb);
  } else {
    const Plane &blue = planes_[1], &red = planes_[2];
    if (planes_[0].across == 1 && planes_[0].down == 1 && is_mixed(blue) && is_mixed(red) &&
        blue.down == red.down &&
        upsample_to_rgb(luma, chroma_row(blue, y), chroma_row(red, y), blue.down == 2, box.left, box.width,
                        rgb)) {
      return;
    }
    const uint8_t* cb = upsampled(1, y, box) + box.left;
    const uint8_t* cr = upsampled(2, y, box) + box.left;
    ycc_to_rgb(luma, cb, cr, box.width, rgb);
  }
}

void PlaneReader::keep() {
  const size_t bytes = stride() * box_.height + box_.width + kReadable;
  if (bytes > kMostKept / 2) return;
  if (kept_.size() < bytes) kept_.resize(bytes);
  is_kept_.assign(box_.height, 0);
  all_ = box_;
}

const uint8_t* PlaneReader::kept(int y) noexcept {
  if (!keeps_rows()) return nullptr;
  const int row = box_.top + y - all_.top;
  uint8_t* const line = kept_.data() + static_cast<size_t>(channels()) * all_.width * row;
  if (!is_kept_[row]) {
    convert(all_.top + row, all_, line);
    is_kept_[row] = 1;
  }
  return line + (box_.left - all_.left);
}

// Rows that are kept are read by kept(), but for those of gray that are copied.
Status PlaneReader::next(uint8_t* out) noexcept {
  const uint8_t* line = format_ == PixelFormat::kGray ? kept(y_ - box_.top) : nullptr;
  if (line != nullptr) {
    std::memcpy(out, line, stride());
  } else {
    convert(y_, box_, out);
  }
  ++y_;
  return Status::kOk;
}

}  // namespace tarpeg
