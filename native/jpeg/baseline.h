#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/pages.h"
#include "jpeg/header.h"
#include "jpeg/huffman.h"

namespace tarpeg {

// One component of a frame.
struct Component {
  int across, down;                     // sampling factors: blocks per MCU
  int width, height;                    // of its samples in the whole image
  alignas(64) uint16_t quantisers[64];  // natural order
  int dc_table, ac_table;
};

// The geometry of an image.
struct Frame {
  int height = 0, width = 0;          // pixels, as stored
  int component_count = 0;            // 1: gray; 3: mostly YCbCr; 4: CMYK or YCCK
  int across = 1, down = 1;           // the largest sampling factors
  int mcu_height = 8, mcu_width = 8;  // pixels
  int mcu_rows = 0, mcu_columns = 0;
  int blocks = 0;  // per MCU
  Component components[4];

  // Derives everything from height, width, component_count and the components' sampling factors. False if
  // PlaneReader cannot decode it: no single scan can hold it, or a component's resolution is not 1, 1/2 or
  // 1/4 of the image's.
  bool derive() noexcept;

  // Note [half size]
  // For means of 2, 4 or 8 pixels, blocks become 4x4 samples instead of 8x8 under the same conditions as in
  // libjpeg at half size: in components less than twice subsampled in either direction, if means of two or
  // more of their samples are needed both ways. If one of the first `count` components, those to be decoded,
  // does not fit, all keep their size.
  bool has_halves(int reduction, int count) const noexcept;
  bool is_halved(int component, int reduction, int count) const noexcept;
};

// Rows of pixels as stored, from `top` to the one before `bottom`; those outside of the image do not count.
struct RowRange {
  int top = 0, bottom = INT32_MAX;
};

// Note [row index]
// Finding restart markers means reading the whole scan: a third of the work on a crop of a large photograph,
// and from a cold disk the whole file. tile_jpeg() therefore writes the place of each row of tiles into an
// application segment, as docs/formats.md describes. It is a hint: whatever can be checked without reading
// other rows is checked. EOI must follow the scan's length, a restart marker of the right number must precede
// the first of the rows that are read, and each must end where the next begins, after the right number of
// markers. Otherwise the index is ignored, and all is scanned. So a scan that another program rewrote does
// not fit its old index, and no value leads out of the file. Two differences to a scan are left. Markers that
// are damaged in other rows go unnoticed, as damage in other tiles does. And an index that was crafted so
// that other rows of the right markers are taken shows those: verify_cache() compares every offset.
constexpr uint8_t kIndexMarker = 0xEA;                                  // APP10
constexpr uint8_t kIndexHead[] = {'t', 'a', 'r', 'p', 'e', 'g', 0, 1};  // signature and version

// The structure of a baseline JPEG in one interleaved scan, which allows its parts to be decoded separately.
// Restart markers cut the scan into segments, which do not depend on each other; a tiled file (tile_jpeg) has
// many in each row of MCUs. Keeps its memory from image to image.
struct BaselineStream : Frame {
  // Reads everything up to the end of the scan, whose markers must be exactly the restart markers that the
  // frame and the interval require, and EOI. False if anything is not regular:
  // libjpeg then decodes the file. If the file is decodable and has an index (Note [row index]), only the
  // segments of `rows` are found and judged. Unless `decodes`, tables are read, but not filled for decoding.
  bool parse(const uint8_t* data, size_t size, const Header& header, RowRange rows = {}, bool decodes = true);

  size_t bytes() const noexcept { return held_bytes(starts, ends); }

  int interval = 0;           // MCUs per segment
  bool is_decodable = false;  // in gray or YCbCr, of sampling factors that PlaneReader decodes
  DcTable dc_tables[4];       // filled if a component uses them
  AcTable ac_tables[4];
  std::vector<const uint8_t*> starts;  // of the segments from `first_segment` to the one before `end_segment`
  std::vector<const uint8_t*> ends;
  size_t first_segment = 0, end_segment = 0;
  bool has_index = false, is_indexed = false;  // there is one for such a frame; it was followed

 private:
  bool parse_segments(size_t end, RowRange rows);
  bool parse_frame(const uint8_t* body, size_t length);
  bool parse_scan(const uint8_t* body, size_t length);
  bool parse_quantisers(const uint8_t* body, size_t length);
  bool parse_huffman(const uint8_t* body, size_t length);
  bool assume_tables();
  bool find_segments(size_t at, RowRange rows);
  bool follow_index(size_t at, size_t count, RowRange rows);
  size_t scan(size_t at, size_t first, size_t end, size_t count) noexcept;
  bool is_color_known() const noexcept;

  const uint8_t* data_ = nullptr;
  size_t size_ = 0;
  bool decodes_ = true;
  const uint8_t* index_ = nullptr;  // behind its head
  size_t index_bytes_ = 0;
  uint16_t quantisers_[4][64];
  bool has_quantisers_[4], has_dc_[4], has_ac_[4];
  uint8_t ids_[4], tables_[4];
  bool has_jfif_;
  int adobe_transform_;
};

}  // namespace tarpeg
