#include "planes.h"

#include <algorithm>
#include <cstring>

#include "color.h"
#include "entropy.h"
#include "idct.h"
#include "raw.h"

namespace tarpeg {

// Note [margin]
// Chroma upsampling mixes each sample with its neighbours, so the pixels next to the box take part: whatever
// MCU they are in is decoded too.
void PlaneReader::prepare(const Frame& frame, const Box& box, int reduction, Layout layout) {
  component_count_ = frame.component_count;
  reduction_ = reduction;
  layout_ = layout;
  box_ = reduced(box, reduction);
  y_ = box_.top;
  // Every sample of a reduced pixel counts, whether it is in the box or next to it.
  const int bottom = std::min(frame.height, (box_.top + box_.height) * reduction);
  const int right = std::min(frame.width, (box_.left + box_.width) * reduction);
  first_column_ = std::max(0, box_.left * reduction - 1) / frame.mcu_width;
  last_column_ = std::min(frame.width - 1, right) / frame.mcu_width;
  first_row_ = std::max(0, box_.top * reduction - 1) / frame.mcu_height;
  last_row_ = std::min(frame.height - 1, bottom) / frame.mcu_height;
  for (int i = 0; i < frame.component_count; ++i) {
    const Component& component = frame.components[i];
    Plane& plane = planes_[i];
    const int across = frame.across / component.across, down = frame.down / component.down;
    plane.across_by = std::max(1, reduction / across);
    plane.down_by = std::max(1, reduction / down);
    plane.across = std::max(1, across / reduction);
    plane.down = std::max(1, down / reduction);
    plane.width = (component.width + plane.across_by - 1) / plane.across_by;
    plane.height = (component.height + plane.down_by - 1) / plane.down_by;
    plane.top = first_row_ * component.down * 8 / plane.down_by;
    plane.left = first_column_ * component.across * 8 / plane.across_by;
    plane.columns = (last_column_ - first_column_ + 1) * component.across * 8 / plane.across_by;
    plane.stride = plane.columns;
    const size_t rows = static_cast<size_t>(last_row_ - first_row_ + 1) * component.down * 8 / plane.down_by;
    const size_t bytes = rows * plane.stride + 2 * Plane::kMargin;
    if (plane.data.size() < bytes) plane.data.resize(bytes);
    const size_t length = static_cast<size_t>(plane.columns) * plane.across + 64;
    if (lines_[i].size() < length) lines_[i].resize(length);
    if (sums_.size() < length) sums_.resize(length);
  }
}

bool PlaneReader::decode(const BaselineStream& stream, const Box& box, int reduction, Layout layout) {
  prepare(stream, box, reduction, layout);
  const int64_t first = static_cast<int64_t>(first_row_) * stream.mcu_columns + first_column_;
  const int64_t last = static_cast<int64_t>(last_row_) * stream.mcu_columns + last_column_;
  for (int64_t segment = first / stream.interval; segment <= last / stream.interval; ++segment) {
    // A segment within one row of MCUs may lie beside the box.
    const int64_t begin = segment * stream.interval, end = begin + stream.interval;
    const int64_t row = begin / stream.mcu_columns, offset = begin % stream.mcu_columns;
    const bool one_row = end <= (row + 1) * stream.mcu_columns;
    if (one_row && (offset > last_column_ || offset + stream.interval <= first_column_)) continue;
    if (!decode_segment(stream, static_cast<size_t>(segment))) return false;
  }
  return true;
}

Status PlaneReader::decode(const uint8_t* data, size_t size, const Header& header, const Box& box,
                           int reduction, Layout layout) {
  RawReader raw;
  Frame frame;
  Status status = raw.open(data, size, header.height, header.width, &frame);
  if (status != Status::kOk) return status;
  prepare(frame, box, reduction, layout);
  // A gray image that claims sampling factors has rows of several blocks in libjpeg, of one block in its
  // frame.
  const int blocks_down = raw.blocks_down();
  for (int row = 0; row <= last_row_; ++row) {
    if (row % blocks_down == 0) {
      status = raw.next();
      if (status != Status::kOk) return status;
    }
    if (row < first_row_) continue;
    for (int i = 0; i < frame.component_count; ++i) {
      const Component& component = frame.components[i];
      for (int y = 0; y < component.down; ++y) {
        for (int x = first_column_ * component.across; x < (last_column_ + 1) * component.across; ++x) {
          const uint8_t* block = raw.block(i, row % blocks_down + y, x);
          for (int line = 0; line < 8; ++line)
            std::memcpy(samples_[0] + 8 * line, block + line * raw.stride(i), 8);
          store(i, 8 * (row * component.down + y), 8 * x, samples_[0], component.height, component.width);
        }
      }
    }
  }
  return Status::kOk;
}

bool PlaneReader::decode_segment(const BaselineStream& stream, size_t segment) {
  const size_t bytes = static_cast<size_t>(stream.ends[segment] - stream.starts[segment]);
  if (segment_.size() < bytes + kReadAhead) segment_.resize(bytes + kReadAhead);
  const ptrdiff_t length = remove_stuffing(stream.starts[segment], bytes, segment_.data());
  if (length < 0) return false;
  BitReader reader(segment_.data(), length);
  const int64_t begin = static_cast<int64_t>(segment) * stream.interval;
  const int64_t all = static_cast<int64_t>(stream.mcu_rows) * stream.mcu_columns;
  const int64_t end = std::min(begin + stream.interval, all);
  const int64_t last = static_cast<int64_t>(last_row_) * stream.mcu_columns + last_column_;
  int row = static_cast<int>(begin / stream.mcu_columns),
      column = static_cast<int>(begin % stream.mcu_columns);
  int dc[3] = {0, 0, 0};
  int64_t mcu = begin;
  for (; mcu < end && mcu <= last; ++mcu) {
    const bool wanted = row >= first_row_ && column >= first_column_ && column <= last_column_;
    if (wanted) {
      if (!decode_mcu(stream, &reader, dc, row, column)) return false;
    } else {
      // Behind the box in its last row of this segment nothing is wanted any more.
      if (column > last_column_ &&
          (row == last_row_ || end <= static_cast<int64_t>(row + 1) * stream.mcu_columns)) {
        return true;
      }
      for (int i = 0; i < stream.component_count; ++i) {
        const Component& component = stream.components[i];
        for (int block = 0; block < component.across * component.down; ++block) {
          if (!skip_block(&reader, stream.dc_tables[component.dc_table], stream.ac_tables[component.ac_table],
                          dc + i)) {
            return false;
          }
        }
      }
    }
    if (++column == stream.mcu_columns) {
      column = 0;
      ++row;
    }
  }
  return mcu < end || reader.finished();
}

// Where the sample (y, x) of a component goes.
uint8_t* PlaneReader::place(int component, int y, int x) noexcept {
  Plane& plane = planes_[component];
  return plane.data.data() + Plane::kMargin + (y / plane.down_by - plane.top) * plane.stride +
         x / plane.across_by - plane.left;
}

// Puts the 8x8 block whose first sample is (y, x) of the component into its plane, reduced. Where the image
// ends in the block its last sample is repeated: what the block holds beyond is not part of the picture.
void PlaneReader::store(int component, int y, int x, uint8_t* block, int height, int width) noexcept {
  Plane& plane = planes_[component];
  for (int column = std::max(1, width - x); column < 8; ++column) {
    for (int row = 0; row < 8; ++row) block[8 * row + column] = block[8 * row + column - 1];
  }
  for (int row = std::max(1, height - y); row < 8; ++row)
    std::memcpy(block + 8 * row, block + 8 * row - 8, 8);
  reduce_block(block, plane.down_by, plane.across_by, place(component, y, x), plane.stride);
}

bool PlaneReader::decode_mcu(const BaselineStream& stream, BitReader* reader, int* dc, int row, int column) {
  std::memset(blocks_, 0, static_cast<size_t>(stream.blocks) * sizeof blocks_[0]);
  int at = 0;
  for (int i = 0; i < stream.component_count; ++i) {
    const Component& component = stream.components[i];
    const HuffmanTable& dc_table = stream.dc_tables[component.dc_table];
    const HuffmanTable& ac_table = stream.ac_tables[component.ac_table];
    for (int block = 0; block < component.across * component.down; ++block, ++at) {
      if (!decode_block(reader, dc_table, ac_table, dc + i, blocks_[at])) return false;
    }
  }
  at = 0;
  for (int i = 0; i < stream.component_count; ++i) {
    // Cb and Cr of one block each go together.
    const bool paired = i == 1 && stream.components[1].across * stream.components[1].down == 1 &&
                        stream.components[2].across * stream.components[2].down == 1;
    at += transform(stream, i, paired, at, row, column);
    if (paired) break;
  }
  return true;
}

// Turns the blocks of one component of an MCU, from blocks_[first] on, into samples of its plane; returns how
// many they are. `with_next`: the next component has one block, like this one, and is done too.
int PlaneReader::transform(const BaselineStream& stream, int index, bool with_next, int first, int row,
                           int column) noexcept {
  const Component& component = stream.components[index];
  const Plane& plane = planes_[index];
  const int count = component.across * component.down;
  const int top = 8 * row * component.down, left = 8 * column * component.across;
  const bool is_whole = plane.down_by == 1 && plane.across_by == 1;
  // Where the image ends in the MCU, its last sample is repeated before means are taken.
  const bool is_halved = plane.down_by == 2 && plane.across_by == 2 &&
                         top + 8 * component.down <= component.height &&
                         left + 8 * component.across <= component.width;
  DctBlock jobs[10];
  for (int block = 0; block < count; ++block) {
    const int y = top + 8 * (block / component.across), x = left + 8 * (block % component.across);
    uint8_t* const out = is_whole || is_halved ? place(index, y, x) : samples_[block];
    jobs[block] = {blocks_[first + block], component.quantisers, out};
  }
  if (with_next && is_whole) {
    jobs[1] = {blocks_[first + 1], stream.components[index + 1].quantisers, place(index + 1, top, left)};
    inverse_dct(jobs[0], jobs[1], plane.stride);
    return 2;
  }
  for (int block = 0; block < count; block += 2) {
    const DctBlock& second = jobs[std::min(block + 1, count - 1)];
    if (is_halved) {
      halved_dct(jobs[block], second, plane.stride);
    } else {
      inverse_dct(jobs[block], second, is_whole ? plane.stride : 8);
    }
  }
  for (int block = 0; block < count && !is_whole && !is_halved; ++block) {
    store(index, top + 8 * (block / component.across), left + 8 * (block % component.across), samples_[block],
          component.height, component.width);
  }
  return count + (with_next ? transform(stream, index + 1, false, first + count, row, column) : 0);
}

// Row y of a component at full resolution, at least the columns of the box; index 0 is column 0 of the image.
const uint8_t* PlaneReader::upsampled(int index, int y) {
  const Plane& plane = planes_[index];
  if (plane.across == 1 && plane.down == 1) return plane.row(y);
  uint8_t* const line = lines_[index].data();
  // libjpeg mixes only for these ratios, and only where chroma is more than two samples wide (jdsample.c).
  const bool fancy = plane.width > 2 && reduction_ == 1;
  const int near = y / plane.down;
  const int far = std::clamp(y % plane.down == 0 ? near - 1 : near + 1, plane.top, plane.height - 1);
  // The image's last sample is repeated, not whatever the rest of its block holds.
  const int end = std::min(plane.left + plane.columns, plane.width);
  const ChromaRow row{plane.row(near) + plane.left, plane.row(far) + plane.left, end - plane.left,
                      plane.left == 0, end == plane.width};
  if (fancy && plane.across == 2 && plane.down == 1) {
    upsample_h2v1(row, line);
  } else if (fancy && plane.across == 2 && plane.down == 2) {
    upsample_h2v2(row, sums_.data(), line);
  } else if (reduction_ == 1 && plane.across == 1 && plane.down == 2) {
    upsample_h1v2(row, y % 2, line);
  } else {
    replicate(row, plane.across, line);
  }
  return line - static_cast<ptrdiff_t>(plane.left) * plane.across;
}

Status PlaneReader::next(uint8_t* out) noexcept {
  const int y = y_++;
  const uint8_t* luma = upsampled(0, y) + box_.left;
  const int step = static_cast<int>(layout_);
  if (component_count_ == 1) {
    gray_to_rgb(luma, box_.width, step, out);
  } else {
    const uint8_t* cb = upsampled(1, y) + box_.left;
    const uint8_t* cr = upsampled(2, y) + box_.left;
    ycc_to_rgb(luma, cb, cr, box_.width, step, out);
  }
  return Status::kOk;
}

}  // namespace tarpeg
