#include "png/png.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "base/crc.h"
#include "png/inflate.h"

namespace tarpeg {
namespace {

constexpr uint8_t kSignature[8] = {0x89, 'P', 'N', 'G', '\r', '\n', 0x1A, '\n'};
constexpr size_t kZlibHeader = 2;
constexpr size_t kAdler = 4;
constexpr uint8_t kBandsVersion = 1;

uint32_t big_endian(const uint8_t* at) noexcept {
  return static_cast<uint32_t>(at[0]) << 24 | at[1] << 16 | at[2] << 8 | at[3];
}

bool is(const uint8_t* type, const char* name) noexcept { return std::memcmp(type, name, 4) == 0; }

// The checksum of a chunk is behind its content, and is that of type and content.
bool is_sum_correct(const uint8_t* content, size_t size) noexcept {
  return crc32(content - 4, size + 4) == big_endian(content + size);
}

// Whether a chunk may hold an orientation: EXIF or XMP.
bool may_turn(const uint8_t* type, const uint8_t* content, size_t size) noexcept {
  if (is(type, "eXIf")) return true;
  if (!is(type, "tEXt") && !is(type, "zTXt") && !is(type, "iTXt")) return false;
  const auto begins = [&](const char* text) {
    const size_t length = std::strlen(text);
    return size >= length && std::memcmp(content, text, length) == 0;
  };
  return begins("Raw profile type") || begins("XML:com.adobe.xmp") || begins("exif");
}

int paeth(int left, int above, int corner) noexcept {
  const int estimate = left + above - corner;
  const int a = std::abs(estimate - left), b = std::abs(estimate - above), c = std::abs(estimate - corner);
  return a <= b && a <= c ? left : b <= c ? above : corner;
}

// Undoes the filter of a row, whose number is in the byte before it. above: the row before, or null.
bool undo_filter(uint8_t* row, const uint8_t* above, int width) noexcept {
  const int filter = row[-1];
  switch (filter) {
    case 0:
      return true;
    case 1:
      for (int x = 1; x < width; ++x) row[x] = static_cast<uint8_t>(row[x] + row[x - 1]);
      return true;
    case 2:
      for (int x = 0; above != nullptr && x < width; ++x) row[x] = static_cast<uint8_t>(row[x] + above[x]);
      return true;
    case 3:
      for (int x = 0; x < width; ++x) {
        const int left = x > 0 ? row[x - 1] : 0, over = above != nullptr ? above[x] : 0;
        row[x] = static_cast<uint8_t>(row[x] + ((left + over) >> 1));
      }
      return true;
    case 4:
      for (int x = 0; x < width; ++x) {
        const int left = x > 0 ? row[x - 1] : 0, over = above != nullptr ? above[x] : 0;
        const int corner = x > 0 && above != nullptr ? above[x - 1] : 0;
        row[x] = static_cast<uint8_t>(row[x] + paeth(left, over, corner));
      }
      return true;
    default:
      return false;
  }
}

}  // namespace

Status BytePng::parse(const uint8_t* data, size_t size, int64_t max_pixels) {
  if (size < sizeof kSignature || std::memcmp(data, kSignature, sizeof kSignature) != 0) {
    return Status::kUnsupported;
  }
  for (size_t at = sizeof kSignature; size - at >= 12;) {
    const size_t length = big_endian(data + at);
    const uint8_t *type = data + at + 4, *content = type + 4;
    if (length > size - at - 12) return Status::kTruncated;
    if ((at == sizeof kSignature) != is(type, "IHDR")) return Status::kUnsupported;
    if (is(type, "IHDR")) {
      if (length != 13 || !is_sum_correct(content, length)) return Status::kCorrupt;
      const uint32_t columns = big_endian(content), lines = big_endian(content + 4);
      const bool is_of_bytes = content[8] == 8 && (content[9] == 0 || content[9] == 3);
      if (!is_of_bytes || content[10] != 0 || content[11] != 0 || content[12] != 0)
        return Status::kUnsupported;
      if (columns < 1 || lines < 1 || columns > 0xFFFFFF || lines > 0xFFFFFF) return Status::kTooLarge;
      if (static_cast<int64_t>(columns) * lines > max_pixels) return Status::kTooLarge;
      height = static_cast<int>(lines);
      width = static_cast<int>(columns);
    } else if (is(type, "IDAT")) {
      // They follow each other: otherwise the type of one is damaged, and rows after it would move up.
      const bool is_next = parts_.empty() || parts_.back().data + parts_.back().size + 12 == content;
      if (!is_next) return Status::kCorrupt;
      parts_.push_back({content, length});
    } else if (is(type, "tpRB") && parts_.empty()) {
      const bool is_known = length == 5 && content[0] == kBandsVersion && is_sum_correct(content, length);
      const uint32_t rows = is_known ? big_endian(content + 1) : 0;
      band_ = rows <= 0xFFFFFF ? static_cast<int>(rows) : 0;
    } else if (is(type, "tpRL") && parts_.empty()) {
      runs_ = {content, length};
    } else if (is(type, "acTL") || may_turn(type, content, length)) {
      return Status::kUnsupported;
    } else if (is(type, "IEND")) {
      const int bands = band_ > 0 ? (height + band_ - 1) / band_ : 0;
      if (static_cast<size_t>(bands) != parts_.size()) band_ = 0;
      return parts_.empty() ? Status::kCorrupt : Status::kOk;
    } else if ((type[0] & 0x20) == 0 && !is(type, "PLTE")) {
      return Status::kUnsupported;  // a critical chunk, which may be a damaged one of the rows
    }
    at += length + 12;
  }
  return Status::kTruncated;
}

bool BytePng::has(const Box& box) const noexcept {
  return box.top >= 0 && box.left >= 0 && box.height > 0 && box.width > 0 && box.height <= height - box.top &&
         box.width <= width - box.left;
}

bool BytePng::open(Runs* runs) const noexcept {
  if (runs_.data == nullptr || parts_.back().size < kAdler) return false;
  const Part& last = parts_.back();
  const uint32_t sum = big_endian(last.data + last.size - kAdler);
  return runs->open(runs_.data, runs_.size, height, width, sum) && is_sum_correct(runs_.data, runs_.size);
}

Status BytePng::decode(const Box& box, std::vector<uint8_t>* memory, Rows* rows) const {
  if (!has(box)) return Status::kCorrupt;
  // A program that rewrote the pixels may have kept the chunk with the bands: a hint, no more.
  if (band_ > 0 && decode_bands(box, memory, rows) == Status::kOk) return Status::kOk;
  return decode_from_start(box, memory, rows);
}

Status BytePng::decode_bands(const Box& box, std::vector<uint8_t>* memory, Rows* rows) const {
  const size_t step = static_cast<size_t>(width) + 1;
  const int begin = box.top / band_, end = (box.top + box.height - 1) / band_ + 1;
  const int first = begin * band_, last = std::min(height, end * band_);
  memory->resize(step * static_cast<size_t>(last - first) + kInflateMargin);
  for (int i = begin; i < end; ++i) {
    Part part = parts_[static_cast<size_t>(i)];
    if (!is_sum_correct(part.data, part.size)) return Status::kCorrupt;
    if (i == 0) {
      if (part.size < kZlibHeader) return Status::kTruncated;
      part.data += kZlibHeader;
      part.size -= kZlibHeader;
    }
    // Behind the last band is zlib's checksum of all rows.
    const Ending ending = static_cast<size_t>(i + 1) == parts_.size() ? Ending::kAtRoom : Ending::kAtData;
    const int top = i * band_, bottom = std::min(height, top + band_);
    uint8_t* out = memory->data() + step * static_cast<size_t>(top - first);
    const Status status =
        inflate(part.data, part.size, out, step * static_cast<size_t>(bottom - top), ending);
    if (status != Status::kOk) return status;
    for (int y = top; y < bottom; ++y, out += step) {
      if (*out != 0) return Status::kUnsupported;  // a filter: a band begins with none
    }
  }
  *rows = {memory->data() + 1, first};
  return Status::kOk;
}

Status BytePng::decode_from_start(const Box& box, std::vector<uint8_t>* memory, Rows* rows) const {
  const size_t step = static_cast<size_t>(width) + 1;
  size_t size = 0;
  for (const Part& part : parts_) {
    if (!is_sum_correct(part.data, part.size)) return Status::kCorrupt;
    size += part.size;
  }
  if (size < kZlibHeader) return Status::kTruncated;
  const int last = box.top + box.height;
  const size_t room = step * static_cast<size_t>(last);
  // The chunks one after another, behind the rows.
  const bool is_one = parts_.size() == 1;
  memory->resize(room + kInflateMargin + (is_one ? 0 : size));
  const uint8_t* stream = parts_[0].data;
  if (!is_one) {
    uint8_t* next = memory->data() + room + kInflateMargin;
    stream = next;
    for (const Part& part : parts_) next = std::copy_n(part.data, part.size, next);
  }
  const bool is_zlib =
      (stream[0] & 0x0F) == 8 && (stream[0] << 8 | stream[1]) % 31 == 0 && !(stream[1] & 0x20);
  if (!is_zlib) return Status::kCorrupt;
  const Status status =
      inflate(stream + kZlibHeader, size - kZlibHeader, memory->data(), room, Ending::kAtRoom);
  if (status != Status::kOk) return status;
  uint8_t* row = memory->data() + 1;
  for (int y = 0; y < last; ++y, row += step) {
    if (!undo_filter(row, y > 0 ? row - step : nullptr, width)) return Status::kCorrupt;
  }
  *rows = {memory->data() + 1, 0};
  return Status::kOk;
}

}  // namespace tarpeg
