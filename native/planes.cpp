#include "planes.h"

#include <algorithm>
#include <cstring>

#include "color.h"
#include "entropy.h"
#include "idct.h"

namespace tarpeg {

// Note [margin]
// Chroma upsampling mixes each sample with its neighbours, so the pixels next to the box take part: whatever
// MCU they are in is decoded too.
bool PlaneReader::decode(const BaselineStream& stream, const Box& box) {
  stream_ = &stream;
  first_column_ = std::max(0, box.left - 1) / stream.mcu_width;
  last_column_ = std::min(stream.width - 1, box.left + box.width) / stream.mcu_width;
  first_row_ = std::max(0, box.top - 1) / stream.mcu_height;
  last_row_ = std::min(stream.height - 1, box.top + box.height) / stream.mcu_height;
  for (int i = 0; i < stream.component_count; ++i) {
    const Component& component = stream.components[i];
    Plane& plane = planes_[i];
    plane.top = first_row_ * component.down * 8;
    plane.left = first_column_ * component.across * 8;
    plane.rows = (last_row_ - first_row_ + 1) * component.down * 8;
    plane.columns = (last_column_ - first_column_ + 1) * component.across * 8;
    plane.stride = plane.columns;
    const size_t bytes = static_cast<size_t>(plane.rows) * plane.stride + 2 * Plane::kMargin;
    if (plane.data.size() < bytes) plane.data.resize(bytes);
  }
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
      for (int x = 0; x < component.across; ++x) {
        int16_t* block = blocks_[count];
        if (!decode_block(reader, dc_table, ac_table, dc + i, block)) return false;
        jobs[count++] = {block, component.quantisers, corner + 8 * (y * plane.stride + x)};
      }
    }
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

void PlaneReader::begin(const Box& box, Layout layout) {
  box_ = box;
  layout_ = layout;
  y_ = box.top;
  int widest = 0;
  for (int i = 0; i < stream_->component_count; ++i) {
    const int length = planes_[i].columns * (stream_->across / stream_->components[i].across) + 64;
    widest = std::max(widest, length);
    if (lines_[i].size() < static_cast<size_t>(length)) lines_[i].resize(length);
  }
  if (sums_.size() < static_cast<size_t>(widest)) sums_.resize(widest);
}

// Row y of a component at full resolution, at least the columns of the box; index 0 is column 0 of the image.
const uint8_t* PlaneReader::upsampled(int index, int y) {
  const Component& component = stream_->components[index];
  const Plane& plane = planes_[index];
  const int across = stream_->across / component.across, down = stream_->down / component.down;
  if (across == 1 && down == 1) return plane.row(y);
  std::vector<uint8_t>& line = lines_[index];
  // libjpeg mixes only for these ratios, and only where chroma is more than two samples wide (jdsample.c).
  const bool fancy = component.width > 2;
  const int near = y / down, limit = component.height - 1;
  const int far = std::clamp(y % down == 0 ? near - 1 : near + 1, 0, limit);
  // The image's last sample is repeated, not whatever the rest of its block holds.
  const int end = std::min(plane.left + plane.columns, component.width);
  const ChromaRow row{plane.row(near) + plane.left, plane.row(std::max(far, plane.top)) + plane.left,
                      end - plane.left, plane.left == 0, end == component.width};
  if (fancy && across == 2 && down == 1) {
    upsample_h2v1(row, line.data());
  } else if (fancy && across == 2 && down == 2) {
    upsample_h2v2(row, sums_.data(), line.data());
  } else if (across == 1 && down == 2) {
    upsample_h1v2(row, y % 2, line.data());
  } else {
    replicate(row, across, line.data());
  }
  return line.data() - static_cast<ptrdiff_t>(plane.left) * across;
}

Status PlaneReader::next(uint8_t* out) noexcept {
  const int y = y_++;
  const uint8_t* luma = upsampled(0, y) + box_.left;
  const int step = static_cast<int>(layout_);
  if (stream_->component_count == 1) {
    gray_to_rgb(luma, box_.width, step, out);
  } else {
    const uint8_t* cb = upsampled(1, y) + box_.left;
    const uint8_t* cr = upsampled(2, y) + box_.left;
    ycc_to_rgb(luma, cb, cr, box_.width, step, out);
  }
  return Status::kOk;
}

}  // namespace tarpeg
