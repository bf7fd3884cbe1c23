#include "jpeg/header.h"

#include <cstring>

namespace tarpeg {
namespace {

struct Bytes {
  const uint8_t* data;
  size_t size;

  bool starts_with(const char* prefix, size_t length) const noexcept {
    return size >= length && std::memcmp(data, prefix, length) == 0;
  }
  uint32_t number(size_t at, int count, bool little) const noexcept {
    uint32_t value = 0;
    for (int i = 0; i < count; ++i) value = value << 8 | data[little ? at + count - 1 - i : at + i];
    return value;
  }
};

// Segments of one kind, one after the other, from a position on. What is beyond kMost segments is left out.
struct Joined {
  static constexpr size_t kMost = 64;  // of up to 64 KB

  Bytes parts[kMost];
  size_t count = 0, begin = 0, size = 0;  // size: from `begin` on

  void add(Bytes part) noexcept {
    if (count == kMost) return;
    parts[count++] = part;
    size += part.size;
  }
  void skip(size_t bytes) noexcept {
    begin += bytes;
    size -= bytes;
  }
  uint8_t byte(size_t at) const noexcept {
    at += begin;
    const Bytes* part = parts;
    while (at >= part->size) at -= part++->size;
    return part->data[at];
  }
  bool starts_with(const char* prefix, size_t length) const noexcept {
    if (size < length) return false;
    for (size_t i = 0; i < length; ++i) {
      if (byte(i) != static_cast<uint8_t>(prefix[i])) return false;
    }
    return true;
  }
  uint32_t number(size_t at, int bytes, bool little) const noexcept {
    uint32_t value = 0;
    for (int i = 0; i < bytes; ++i) value = value << 8 | byte(little ? at + bytes - 1 - i : at + i);
    return value;
  }
};

constexpr char kExif[] = "Exif\0";
constexpr size_t kExifBytes = sizeof kExif;

// Bytes of one number of a TIFF type; 0 for a type that Pillow leaves out.
size_t tiff_bytes(uint32_t type) noexcept {
  static const uint8_t kBytes[] = {0, 1, 1, 2, 4, 8, 1, 1, 2, 4, 8, 4, 8, 4, 0, 0, 8};
  return type < sizeof kBytes ? kBytes[type] : 0;
}

// Note [EXIF as Pillow reads it]
// The first entry of the first directory counts (up to Pillow 12 the last one), and the first number of
// several. Segments are parts of one structure, each without its header, which some programs write twice into
// the first. Reading ends at an entry whose values are beyond the end, as those of a cut segment; an entry
// with more values than the segment has room for is skipped. An orientation that is no whole number is none,
// but XMP is then ignored, too.

// The orientation in the TIFF structure of the EXIF segments, or 0 if there is none. 1 if it does not begin
// as TIFF does: Pillow then ignores EXIF and XMP.
int exif_orientation(const Joined& tiff) noexcept {
  if (tiff.size == 0) return 0;
  const bool is_tiff = tiff.starts_with("II*\0", 4) || tiff.starts_with("II\0*", 4) ||
                       tiff.starts_with("MM\0*", 4) || tiff.starts_with("MM*\0", 4) ||
                       tiff.starts_with("MM\0+", 4);
  if (tiff.size < 8 || !is_tiff) return 1;
  const bool little = tiff.byte(0) == 'I';
  const size_t directory = tiff.number(4, 4, little);
  if (directory < 8 || directory > tiff.size - 2) return 0;
  const size_t count = tiff.number(directory, 2, little);
  uint64_t total = 0;
  for (size_t i = 0; i < count; ++i) {
    const size_t entry = directory + 2 + 12 * i;
    if (entry + 12 > tiff.size) break;
    const uint32_t type = tiff.number(entry + 2, 2, little);
    const size_t each = tiff_bytes(type);
    const uint64_t bytes = static_cast<uint64_t>(each) * tiff.number(entry + 4, 4, little);
    if (bytes == 0) continue;
    size_t at = entry + 8;
    if (bytes > 4) {
      total += bytes;
      if (total > tiff.size) continue;
      at = tiff.number(entry + 8, 4, little);
      if (at > tiff.size || bytes > tiff.size - at) break;
    }
    if (tiff.number(entry, 2, little) != 0x0112) continue;
    const bool is_whole = (each <= 2 && type != 1 && type != 2 && type != 7) || type == 4 || type == 9 ||
                          type == 13 || type == 16;
    if (!is_whole) return 1;
    // Of eight bytes the upper four are 0 in an orientation.
    const bool is_long = each == 8;
    const uint32_t upper = is_long ? tiff.number(little ? at + 4 : at, 4, little) : 0;
    const uint32_t value = tiff.number(is_long && !little ? at + 4 : at, is_long ? 4 : each, little);
    return upper == 0 && value >= 1 && value <= 8 ? static_cast<int>(value) : 1;
  }
  return 0;
}

// The orientation in an XMP packet, or 0; Pillow reads it if EXIF has none.
int xmp_orientation(Bytes packet) noexcept {
  static const char kTag[] = "tiff:Orientation";
  const size_t length = sizeof kTag - 1;
  for (size_t at = 0; at + length + 3 <= packet.size; ++at) {
    const uint8_t* found = static_cast<const uint8_t*>(std::memchr(packet.data + at, 't', packet.size - at));
    if (found == nullptr) break;
    at = static_cast<size_t>(found - packet.data);
    if (at + length + 3 > packet.size || std::memcmp(found, kTag, length) != 0) continue;
    const uint8_t* value = found + length;
    if (value[0] == '=' && value[1] == '"')
      value += 2;
    else if (value[0] == '>')
      value += 1;
    else
      continue;
    const int digit = *value - '0';
    if (digit >= 0 && digit <= 9) return digit >= 1 && digit <= 8 ? digit : 1;
  }
  return 0;
}

// SOF0 to SOF15, and SOF55, of JPEG-LS.
bool is_frame(int marker) noexcept {
  if (marker == 0xF7) return true;
  return marker >= 0xC0 && marker <= 0xCF && marker != 0xC4 && marker != 0xC8 && marker != 0xCC;
}

// SOF0, 1, 2 (Huffman: baseline, extended, progressive) and 9, 10 (the same, arithmetic).
bool is_supported_frame(int marker) noexcept { return marker <= 0xC2 || marker == 0xC9 || marker == 0xCA; }

Header read_jpeg(Bytes file) noexcept {
  Header header;
  Joined tiff;
  bool has_frame = false;
  int xmp = 0;
  size_t at = 2;
  header.status = Status::kTruncated;
  while (true) {
    // libjpeg skips stray bytes before a marker and any number of fill bytes.
    const uint8_t* next = at < file.size
                              ? static_cast<const uint8_t*>(std::memchr(file.data + at, 0xFF, file.size - at))
                              : nullptr;
    if (next == nullptr) return header;
    at = static_cast<size_t>(next - file.data);
    while (at < file.size && file.data[at] == 0xFF) ++at;
    if (at >= file.size) return header;
    const int marker = file.data[at++];
    if (marker == 0x00 || marker == 0x01 || (marker >= 0xD0 && marker <= 0xD7)) continue;
    if (marker == 0xD8 || marker == 0xD9) {
      header.status = Status::kCorrupt;
      return header;
    }
    if (marker == 0xDA) {
      header.body = at - 2;
      break;
    }
    if (at + 2 > file.size) return header;
    const size_t length = file.number(at, 2, false);
    if (length < 2) {
      header.status = Status::kCorrupt;
      return header;
    }
    if (at + length > file.size) return header;
    const Bytes body{file.data + at + 2, length - 2};
    if (marker == 0xE1 && body.starts_with(kExif, kExifBytes)) {
      tiff.add({body.data + kExifBytes, body.size - kExifBytes});
    } else if (marker == 0xE1 && body.starts_with("http://ns.adobe.com/xap/1.0/\0", 29)) {
      xmp = xmp_orientation(body);
    } else if (is_frame(marker)) {
      header.status = Status::kCorrupt;
      if (has_frame || body.size < 6) return header;
      has_frame = true;
      const int components = body.data[5];
      header.height = static_cast<int>(body.number(1, 2, false));
      header.width = static_cast<int>(body.number(3, 2, false));
      if (header.width == 0) return header;
      header.status = Status::kUnsupported;
      // A height of 0 is defined later by a DNL marker, which libjpeg does not read.
      const bool known = components == 1 || components == 3 || components == 4;
      if (!is_supported_frame(marker) || body.data[0] != 8 || !known || header.height == 0) return header;
      header.status = Status::kTruncated;
    }
    at += length;
  }
  if (tiff.starts_with(kExif, kExifBytes)) tiff.skip(kExifBytes);
  const int exif = exif_orientation(tiff);
  header.orientation = exif != 0 ? exif : xmp != 0 ? xmp : 1;
  header.status = has_frame ? Status::kOk : Status::kCorrupt;
  return header;
}

}  // namespace

Header read_jpeg_header(const uint8_t* data, size_t size) noexcept { return read_jpeg({data, size}); }

// Note [end of image]
// A complete file ends with EOI, often followed by nothing; some cameras append a second picture or zeros.
// Entropy-coded data never holds 0xFF 0xD9, so the last one in the file, searched from the end, is after the
// first SOS exactly if the picture was not truncated (or if a later one is whole, which decoding detects).
bool has_end_marker(const uint8_t* data, size_t size, size_t first_scan) noexcept {
  for (size_t at = size; at-- > first_scan + 1;) {
    if (data[at] == 0xD9 && data[at - 1] == 0xFF) return true;
  }
  return false;
}

}  // namespace tarpeg
