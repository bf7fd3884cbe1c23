#include "jpeg/baseline.h"

#include <algorithm>
#include <cstring>

#include "base/simd.h"
#include "jpeg/zigzag.h"

namespace tarpeg {
namespace {

int number(const uint8_t* at) noexcept { return at[0] << 8 | at[1]; }

size_t number32(const uint8_t* at) noexcept {
  return static_cast<size_t>(number(at)) << 16 | static_cast<size_t>(number(at + 2));
}

constexpr int kMostBlocks = 10;  // in an MCU: T.81 B.2.3

int ceil_div(int a, int b) noexcept { return (a + b - 1) / b; }

size_t next_marker_portable(const uint8_t* data, size_t at, size_t size) noexcept {
  for (; at + 1 < size; ++at) {
    const void* found = std::memchr(data + at, 0xFF, size - 1 - at);
    if (found == nullptr) break;
    at = static_cast<size_t>(static_cast<const uint8_t*>(found) - data);
    if (data[at + 1] != 0x00 && data[at + 1] != 0xFF) return at;
  }
  return size;
}

#if defined(TARPEG_AVX2)

// memchr() for 0xFF stops at every stuffed byte; comparing pairs skips those.
TARPEG_AVX2 size_t next_marker_avx2(const uint8_t* data, size_t at, size_t size) noexcept {
  const __m256i ones = _mm256_set1_epi8(-1), zero = _mm256_setzero_si256();
  for (; at + 33 <= size; at += 32) {
    const __m256i here = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(data + at));
    const __m256i next = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(data + at + 1));
    const __m256i no_marker = _mm256_or_si256(_mm256_cmpeq_epi8(next, zero), _mm256_cmpeq_epi8(next, ones));
    const __m256i marker = _mm256_andnot_si256(no_marker, _mm256_cmpeq_epi8(here, ones));
    const unsigned mask = static_cast<unsigned>(_mm256_movemask_epi8(marker));
    if (mask != 0) return at + static_cast<size_t>(__builtin_ctz(mask));
  }
  return next_marker_portable(data, at, size);
}

#endif

// The position of the next marker in entropy-coded data: the last 0xFF before a byte that is neither 0x00
// (stuffing) nor 0xFF (fill). `size` if there is none.
size_t next_marker(const uint8_t* data, size_t at, size_t size) noexcept {
#if defined(TARPEG_AVX2)
  if (has_avx2()) return next_marker_avx2(data, at, size);
#endif
  return next_marker_portable(data, at, size);
}

}  // namespace

bool Frame::derive() noexcept {
  // A scan of one component has MCUs of one block whatever its sampling factors are.
  if (component_count == 1) components[0].across = components[0].down = 1;
  across = down = 1;
  for (int i = 0; i < component_count; ++i) {
    across = std::max(across, components[i].across);
    down = std::max(down, components[i].down);
  }
  blocks = 0;
  bool is_decodable = true;
  for (int i = 0; i < component_count; ++i) {
    Component& component = components[i];
    blocks += component.across * component.down;
    const int times_across = across / component.across, times_down = down / component.down;
    is_decodable &= across % component.across == 0 && down % component.down == 0;
    is_decodable &= (times_across & (times_across - 1)) == 0 && (times_down & (times_down - 1)) == 0;
    component.width = ceil_div(width * component.across, across);
    component.height = ceil_div(height * component.down, down);
  }
  mcu_width = 8 * across;
  mcu_height = 8 * down;
  mcu_columns = ceil_div(width, mcu_width);
  mcu_rows = ceil_div(height, mcu_height);
  return is_decodable && blocks <= kMostBlocks;
}

bool Frame::has_halves(int reduction, int count) const noexcept {
  if (reduction == 1) return false;
  for (int i = 0; i < count; ++i) {
    const int times_across = across / components[i].across, times_down = down / components[i].down;
    const bool is_whole = times_across > 1 && times_down > 1;
    if (!is_whole && (reduction < 2 * times_across || reduction < 2 * times_down)) return false;
  }
  return true;
}

bool Frame::is_halved(int component, int reduction, int count) const noexcept {
  return has_halves(reduction, count) &&
         (components[component].across == across || components[component].down == down);
}

bool BaselineStream::parse(const uint8_t* data, size_t size, const Header& header, RowRange rows,
                           bool decodes) {
  data_ = data;
  size_ = size;
  decodes_ = decodes;
  height = header.height;
  width = header.width;
  interval = component_count = 0;
  has_jfif_ = false;
  index_bytes_ = 0;
  has_index = is_indexed = false;
  adobe_transform_ = -1;
  for (int i = 0; i < 4; ++i) has_quantisers_[i] = has_dc_[i] = has_ac_[i] = false;
  return parse_segments(header.body, rows);
}

// The last of each table counts, as in libjpeg. read_header() has checked the lengths up to the scan, but the
// file may be mapped and have changed since then: each length is checked again where it is used.
bool BaselineStream::parse_segments(size_t end, RowRange rows) {
  size_t at = 2;
  while (true) {
    while (at < end && data_[at] != 0xFF) ++at;
    while (at < end && data_[at] == 0xFF) ++at;
    if (at >= end) break;
    const int marker = data_[at++];
    if (marker == 0x00 || marker == 0x01 || (marker >= 0xD0 && marker <= 0xD7)) continue;
    if (at + 2 > end) return false;
    const size_t whole = static_cast<size_t>(number(data_ + at));
    if (whole < 2 || at + whole > end) return false;
    const uint8_t* body = data_ + at + 2;
    const size_t length = whole - 2;
    bool is_regular = true;
    switch (marker) {
      case 0xC0:
      case 0xC1:
        is_regular = parse_frame(body, length);
        break;
      case 0xC2:
      case 0xC9:
      case 0xCA:
      case 0xCC:
        return false;  // progressive, arithmetic
      case 0xC4:
        is_regular = parse_huffman(body, length);
        break;
      case 0xDB:
        is_regular = parse_quantisers(body, length);
        break;
      case 0xDD:
        if (length != 2) return false;
        interval = number(body);
        break;
      case 0xE0:
        has_jfif_ |= length >= 14 && std::memcmp(body, "JFIF", 5) == 0;
        break;
      case 0xEE:
        if (length >= 12 && std::memcmp(body, "Adobe", 5) == 0) adobe_transform_ = body[11];
        break;
      case kIndexMarker:
        if (length > sizeof kIndexHead && std::memcmp(body, kIndexHead, sizeof kIndexHead) == 0) {
          index_ = body + sizeof kIndexHead;
          index_bytes_ = length - sizeof kIndexHead;
        }
        break;
      default:
        // Application segments, comments and a DNL are passed over; libjpeg refuses every reserved marker.
        is_regular = (marker >= 0xE0 && marker <= 0xEF) || marker == 0xFE || marker == 0xDC;
        break;
    }
    if (!is_regular) return false;
    at += whole;
  }
  if (component_count == 0 || end + 4 > size_) return false;
  const size_t length = static_cast<size_t>(number(data_ + end + 2));
  if (length < 2 || end + 2 + length >= size_) return false;
  is_decodable &= is_color_known();
  return parse_scan(data_ + end + 4, length - 2) && find_segments(end + 2 + length, rows);
}

bool BaselineStream::parse_frame(const uint8_t* body, size_t length) {
  if (length < 6) return false;
  component_count = body[5];
  if (component_count < 1 || component_count > 4 || length != 6u + 3u * component_count) return false;
  for (int i = 0; i < component_count; ++i) {
    const uint8_t* field = body + 6 + 3 * i;
    ids_[i] = field[0];
    components[i].across = field[1] >> 4;
    components[i].down = field[1] & 15;
    tables_[i] = field[2];
    if (components[i].across < 1 || components[i].across > 4 || components[i].down < 1 ||
        components[i].down > 4 || tables_[i] > 3) {
      return false;
    }
  }
  is_decodable = derive();
  return blocks <= kMostBlocks;
}

bool BaselineStream::parse_quantisers(const uint8_t* body, size_t length) {
  const uint8_t* const end = body + length;
  while (body < end) {
    const int index = *body & 15, bytes = 1 + (*body >> 4);
    ++body;
    if (index > 3 || bytes > 2 || end - body < 64 * bytes) return false;
    for (int k = 0; k < 64; ++k, body += bytes) {
      quantisers_[index][kZigzag[k]] = static_cast<uint16_t>(bytes == 1 ? *body : number(body));
    }
    has_quantisers_[index] = true;
  }
  return true;
}

bool BaselineStream::parse_huffman(const uint8_t* body, size_t length) {
  const uint8_t* const end = body + length;
  while (end - body >= 17) {
    const int index = *body & 15;
    const bool is_dc = *body >> 4 == 0;
    if (index > 3 || *body >> 4 > 1) return false;
    HuffmanCode& code = is_dc ? static_cast<HuffmanCode&>(dc_tables[index]) : ac_tables[index];
    if (!code.build(body + 1, body + 17, static_cast<size_t>(end - body) - 17, is_dc)) return false;
    (is_dc ? has_dc_ : has_ac_)[index] = true;
    body += 17 + code.count;
  }
  return body == end;
}

// Motion JPEG leaves out the tables of T.81 K.3: like libjpeg, uses them where no DHT has defined one.
bool BaselineStream::assume_tables() {
  const uint8_t* table = kStandardTables;
  for (int i = 0; i < 4; ++i) {
    const size_t length = i % 2 == 0 ? kStandardDc : kStandardAc;
    const bool is_there = i % 2 == 0 ? has_dc_[i / 2] : has_ac_[i / 2];
    if (!is_there && !parse_huffman(table, length)) return false;
    table += length;
  }
  return true;
}

// libjpeg's rules for three components (jdapimin.c), if they mean YCbCr beyond doubt.
bool BaselineStream::is_color_known() const noexcept {
  if (component_count != 3) return component_count == 1;
  if (has_jfif_) return true;
  if (adobe_transform_ >= 0) return adobe_transform_ == 1;
  return ids_[0] == 1 && ids_[1] == 2 && ids_[2] == 3;
}

// Every component, the whole spectrum, at full precision, in one go.
bool BaselineStream::parse_scan(const uint8_t* body, size_t length) {
  if (length != 4u + 2u * component_count || body[0] != component_count) return false;
  for (int i = 0; i < component_count; ++i) {
    Component& component = components[i];
    component.dc_table = body[2 + 2 * i] >> 4;
    component.ac_table = body[2 + 2 * i] & 15;
    if (body[1 + 2 * i] != ids_[i] || component.dc_table > 3 || component.ac_table > 3) return false;
    if (!has_quantisers_[tables_[i]]) return false;
    if ((!has_dc_[component.dc_table] || !has_ac_[component.ac_table]) && !assume_tables()) return false;
    if (!has_dc_[component.dc_table] || !has_ac_[component.ac_table]) return false;
    std::memcpy(component.quantisers, quantisers_[tables_[i]], sizeof component.quantisers);
    bool is_new_dc = decodes_, is_new_ac = decodes_;
    for (int before = 0; before < i; ++before) {
      is_new_dc &= components[before].dc_table != component.dc_table;
      is_new_ac &= components[before].ac_table != component.ac_table;
    }
    if (is_new_dc) dc_tables[component.dc_table].fill();
    if (is_new_ac) ac_tables[component.ac_table].fill();
  }
  const uint8_t* spectrum = body + 1 + 2 * component_count;
  return spectrum[0] == 0 && spectrum[1] == 63 && spectrum[2] == 0;
}

bool BaselineStream::find_segments(size_t at, RowRange rows) {
  const size_t mcus = static_cast<size_t>(mcu_rows) * mcu_columns;
  if (interval == 0) interval = static_cast<int>(std::min<size_t>(mcus, INT32_MAX));
  const size_t count = (mcus + interval - 1) / interval;
  // Each block has at least one bit for its DC and one for its end: allocate no memory for impossible sizes.
  if (at > size_ || mcus * blocks > 4 * (size_ - at)) return false;
  // Each segment has at least one byte, and a marker of two.
  if (count > size_ / 3 + 1) return false;
  // Each has its own check: the vectors are reused, also after memory ran out between the two.
  if (starts.size() < count) starts.resize(count);
  if (ends.size() < count) ends.resize(count);
  first_segment = 0;
  end_segment = count;
  has_index = index_bytes_ == 4 * static_cast<size_t>(mcu_rows) && mcu_columns % interval == 0;
  is_indexed = has_index && follow_index(at, count, is_decodable ? rows : RowRange());
  return is_indexed || scan(at, 0, count, count) > 0;
}

// Finds the segments from `first`, which begins at `at`, to the one before `end`, of `count` in all. Returns
// the position behind the last one's marker; 0 if a marker is wrong.
size_t BaselineStream::scan(size_t at, size_t first, size_t end, size_t count) noexcept {
  for (size_t found = first; found < end; ++found) {
    starts[found] = data_ + at;
    at = next_marker(data_, at, size_);
    if (at >= size_) return 0;
    // 0xFF before a marker fills up.
    const uint8_t* last = data_ + at;
    while (last > starts[found] && last[-1] == 0xFF) --last;
    ends[found] = last;
    if (data_[at + 1] != (found + 1 == count ? 0xD9 : 0xD0 + found % 8)) return 0;
    at += 2;
  }
  return at;
}

// Finds the segments of `rows` by the index, of a scan that begins at `at`. False if they do not fit.
bool BaselineStream::follow_index(size_t at, size_t count, RowRange rows) {
  const size_t per_row = static_cast<size_t>(mcu_columns / interval);
  const size_t length = number32(index_);
  if (length > size_ - at || size_ - at - length < 2) return false;
  if (data_[at + length] != 0xFF || data_[at + length + 1] != 0xD9) return false;
  const int first = std::clamp(rows.top, 0, height - 1) / mcu_height;
  const int last = std::max(first, (std::clamp(rows.bottom, 1, height) - 1) / mcu_height);
  const size_t start = first == 0 ? 0 : number32(index_ + 4 * static_cast<size_t>(first));
  if (start > length) return false;
  const uint8_t* const marker = data_ + at + start - 2;
  const size_t before = first * per_row - 1;
  if (first > 0 && (start < 2 || marker[0] != 0xFF || marker[1] != 0xD0 + before % 8)) return false;
  size_t here = at + start;
  for (int row = first; row <= last; ++row) {
    here = scan(here, row * per_row, (row + 1) * per_row, count);
    const size_t next =
        row + 1 == mcu_rows ? length + 2 : number32(index_ + 4 * static_cast<size_t>(row + 1));
    if (here == 0 || here - at != next) return false;
  }
  first_segment = first * per_row;
  end_segment = (last + 1) * per_row;
  return true;
}

}  // namespace tarpeg
