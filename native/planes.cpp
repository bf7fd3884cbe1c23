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
  // Reduced pixels are whole ones: `near` of them, not only of the box's.
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

// Puts the 8x8 block whose first sample is (y, x) of the component into its plane, reduced. Where the image
// ends in the block its last sample is repeated: what the block holds beyond is not part of the picture.
void PlaneReader::store(int component, int y, int x, uint8_t* block, int height, int width) noexcept {
  Plane& plane = planes_[component];
  for (int column = std::max(1, width - x); column < 8; ++column) {
    for (int row = 0; row < 8; ++row) block[8 * row + column] = block[8 * row + column - 1];
  }
  for (int row = std::max(1, height - y); row < 8; ++row)
    std::memcpy(block + 8 * row, block + 8 * row - 8, 8);
  uint8_t* out = plane.data.data() + Plane::kMargin + (y / plane.down_by - plane.top) * plane.stride +
                 x / plane.across_by - plane.left;
  reduce_block(block, plane.down_by, plane.across_by, out, plane.stride);
}

bool PlaneReader::decode_mcu(const BaselineStream& stream, BitReader* reader, int* dc, int row, int column) {
  DctBlock jobs[10];
  int count = 0;
  std::memset(blocks_, 0, static_cast<size_t>(stream.blocks) * sizeof blocks_[0]);
  for (int i = 0; i < stream.component_count; ++i) {
    const Component& component = stream.components[i];
    Plane& plane = planes_[i];
    const HuffmanTable& dc_table = stream.dc_tables[component.dc_table];
    const HuffmanTable& ac_table = stream.ac_tables[component.ac_table];
    uint8_t* const corner = plane.data.data() + Plane::kMargin +
                            (static_cast<ptrdiff_t>(row - first_row_) * component.down * 8) * plane.stride +
                            static_cast<ptrdiff_t>(column - first_column_) * component.across * 8;
    for (int y = 0; y < component.down; ++y) {
      for (int x = 0; x < component.across; ++x, ++count) {
        if (!decode_block(reader, dc_table, ac_table, dc + i, blocks_[count])) return false;
        jobs[count] = {blocks_[count], component.quantisers,
                       reduction_ == 1 ? corner + 8 * (y * plane.stride + x) : samples_[count]};
      }
    }
  }
  if (reduction_ > 1) {
    for (int at = 0; at < count; at += 2) inverse_dct(jobs[at], jobs[std::min(at + 1, count - 1)], 8);
    for (int i = 0, at = 0; i < stream.component_count; ++i) {
      const Component& component = stream.components[i];
      for (int y = 0; y < component.down; ++y) {
        for (int x = 0; x < component.across; ++x, ++at) {
          store(i, 8 * (row * component.down + y), 8 * (column * component.across + x), samples_[at],
                component.height, component.width);
        }
      }
    }
    return true;
  }
  // Two blocks at a time; chroma planes have one stride, luma another.
  for (int i = 0, at = 0; i < stream.component_count; ++i) {
    const int blocks = stream.components[i].across * stream.components[i].down;
    int done = 0;
    for (; done + 2 <= blocks; done += 2)
      inverse_dct(jobs[at + done], jobs[at + done + 1], planes_[i].stride);
    if (done < blocks) {
      const bool paired = blocks == 1 && i + 1 < stream.component_count &&
                          planes_[i + 1].stride == planes_[i].stride &&
                          stream.components[i + 1].across * stream.components[i + 1].down == 1;
      inverse_dct(jobs[at + done], jobs[at + done + (paired ? 1 : 0)], planes_[i].stride);
      if (paired) {
        ++i;
        ++at;
      }
    }
    at += blocks;
  }
  return true;
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
