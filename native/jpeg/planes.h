#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/rows.h"
#include "jpeg/baseline.h"
#include "jpeg/color.h"
#include "jpeg/entropy.h"
#include "jpeg/packed.h"

namespace tarpeg {

// Blocks or MCUs, inclusive.
struct BlockRange {
  int first_row = 0, last_row = 0, first_column = 0, last_column = 0;

  bool has_row(int row) const noexcept { return row >= first_row && row <= last_row; }
  bool has_column(int column) const noexcept { return column >= first_column && column <= last_column; }
};

// The decoded samples of one component around a box, perhaps reduced: means of down_by x across_by samples of
// the component. Sample (y, x) of the reduced component is row(y)[x].
struct Plane {
  // Vector code may read, but does not use, a few bytes before the first and after the last.
  static constexpr int kMargin = 64;
  // Bytes between rows at least, two of which repeat the outermost samples.
  static constexpr int kGap = 16;

  std::vector<uint8_t> data;
  ptrdiff_t stride = 0;
  int top = 0, left = 0, rows = 0, columns = 0;
  int down_by = 1, across_by = 1;
  int side = 8;  // samples of a decoded block in each direction: 4 if it is halved (Note [half size])
  int block_rows = 8, block_columns = 8;  // size of a block in the plane
  int down = 1, across = 1;               // how often a sample is repeated in the rows returned
  int height = 0, width = 0;              // of the whole component, reduced
  BlockRange needed;                      // blocks of the component that the box touches

  // Whether a block's samples are the plane's: not reduced further.
  bool is_direct() const noexcept { return block_rows == side && block_columns == side; }
  uint8_t* block(int row, int column) noexcept {
    return data.data() + kMargin + (row * block_rows - top) * stride + column * block_columns - left;
  }
  const uint8_t* row(int y) const noexcept { return data.data() + kMargin + (y - top) * stride - left; }
};

// `box` reduced by `times` in both directions: every reduced pixel that it touches.
inline Box reduced(const Box& box, int times) noexcept {
  const int top = box.top / times, left = box.left / times;
  return {top, left, (box.top + box.height + times - 1) / times - top,
          (box.left + box.width + times - 1) / times - left};
}

// The rows of the image that a box needs, reduced by `times`: whole reduced pixels, and Note [margin].
inline RowRange rows_of(const Box& box, int times) noexcept {
  const Box pixels = reduced(box, times);
  return {pixels.top * times - 1, (pixels.top + pixels.height) * times + 1};
}

// Decodes the MCUs of a regular stream that a box and its margin touch, and returns RGB or gray rows,
// identical to libjpeg's. Only the segments under the box are read. Keeps its memory from image to image.
class PlaneReader final : public RowSource {
 public:
  // Decodes the part under `box`, in stored pixels, and then returns the rows of reduced(box, reduction).
  // kUnsupported if the data are irregular: libjpeg then decides about the file. kCorrupt if a segment under
  // the box does not end with its last block: see Note [padding].
  Status decode(const BaselineStream& stream, const Box& box, int reduction, PixelFormat format) {
    plan(stream, box, reduction, format, nullptr);
    return decode(stream);
  }
  // The same in two steps: the entropy-coded data are decoded once for this reader and those after it.
  void plan(const Frame& frame, const Box& box, int reduction, PixelFormat format, PlaneReader* next) {
    prepare(frame, box, reduction, format);
    next_ = next;
  }
  Status decode(const BaselineStream& stream);
  // kCorrupt if a tile under the box is damaged.
  Status decode(const PackedImage& image);
  // Returns the rows of another box, under which all has been decoded, in a format of as many channels.
  void select(const Box& box, PixelFormat format) noexcept {
    box_ = reduced(box, reduction_);
    y_ = box_.top;
    format_ = format;
  }
  // Keeps each row from the first time that it is needed: boxes that overlap share it, unless the memory is
  // too large.
  void keep();
  // The same verdict on the rows of pixels above `rows`, and those that share MCUs with them, of any stream
  // that could be parsed; decodes no pixel and returns no rows.
  Status check(const BaselineStream& stream, int rows);
  // Whether the check has found padding.
  bool has_padding() const noexcept { return has_padding_; }

  // The same for files that only libjpeg reads, in gray or YCbCr: same pixels, if the file were a regular
  // stream. `is_checked`: check() has judged it. kUnsupported if it has other colours, or sampling factors
  // that no regular stream has.
  Status decode(const uint8_t* data, size_t size, const Header& header, const Box& box, int reduction,
                PixelFormat format, bool is_checked);
  // Y, Cb and Cr, instead of rows: samples(0) to samples(2) around the reduced box. False of gray.
  bool has_color() const noexcept { return component_count_ == 3; }
  Samples samples(int component) const noexcept;
  const Box& reduced_box() const noexcept { return box_; }
  Status next(uint8_t* row) noexcept override;
  Status pass(uint8_t*) noexcept override {
    ++y_;
    return Status::kOk;
  }
  const uint8_t* kept(int y) noexcept override;
  size_t stride() const noexcept override { return static_cast<size_t>(channels()) * box_.width; }
  int skip() const noexcept override { return 0; }
  ptrdiff_t plane() const noexcept override {
    return format_ == PixelFormat::kPlanar ? (keeps_rows() ? all_.width : box_.width) : 0;
  }
  size_t bytes() const noexcept {
    size_t sum = held_bytes(segment_, sums_, kept_, is_kept_) + (packed_ ? sizeof(Packed) : 0);
    if (lanes_) sum += sizeof(Lanes) + held_bytes(lanes_->segments[0], lanes_->segments[1]);
    for (int i = 0; i < 3; ++i) sum += held_bytes(planes_[i].data, lines_[i]);
    return sum;
  }

 private:
  void prepare(const Frame& frame, const Box& box, int reduction, PixelFormat format);
  void plan_range() noexcept;
  void transform_all(const Frame& frame, const Block* blocks, int row, int column, int count) noexcept;
  void transform(const Frame& frame, const Block* blocks, int row, int column, int count) noexcept;
  void store(const Component& component, Plane* plane, int row, int column, uint8_t* block) noexcept;
  void plan_blocks(const BaselineStream& stream) noexcept;
  bool decode_tiles(const BaselineStream& stream);
  Status decode_segment(const BaselineStream& stream, size_t segment);
  void repeat_ends() noexcept;
  void repeat_all_ends() noexcept;
  bool is_mixed(const Plane& plane) const noexcept;
  ChromaRow chroma_row(const Plane& plane, int y) const noexcept;
  const uint8_t* upsampled(int component, int y, const Box& box) noexcept;
  void convert(int y, const Box& box, uint8_t* out) noexcept;
  int channels() const noexcept { return format_ == PixelFormat::kGray ? 1 : 3; }
  bool keeps_rows() const noexcept { return all_.height > 0 && format_ != PixelFormat::kRgb; }

  int component_count_ = 0, reduction_ = 1;  // components to be decoded: luma alone for gray
  Plane planes_[3];
  BlockRange own_, read_;  // MCUs of this reader; of all that are decoded together
  PlaneReader* next_ = nullptr;
  BlockPlan plans_[10];                 // of the blocks of an MCU
  bool is_direct_ = true;               // so are all planes
  static constexpr int kTogether = 48;  // blocks of MCUs that are transformed together
  alignas(64) Block blocks_[kTogether];
  alignas(32) uint8_t samples_[kMostTileBlocks][64];  // of planes that are not direct
  struct Packed {
    TileScratch scratch;
    alignas(64) Block blocks[kMostTileBlocks];
  };
  std::unique_ptr<Packed> packed_;
  std::vector<uint8_t> segment_;  // without its stuffing
  struct Lanes {
    LanePair pair;
    std::vector<uint8_t> segments[LanePair::kLanes];
  };
  std::unique_ptr<Lanes> lanes_;
  Box box_{}, all_{};             // returned; kept, of height 0 if rows are not kept
  std::vector<uint8_t> kept_;     // rows of all_
  std::vector<uint8_t> is_kept_;  // whether a row of kept_ is filled
  PixelFormat format_ = PixelFormat::kRgb;
  int y_ = 0;
  bool has_padding_ = false;
  std::vector<int16_t> sums_;
  std::vector<uint8_t> lines_[3];
};

}  // namespace tarpeg
