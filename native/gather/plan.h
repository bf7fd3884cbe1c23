#pragma once

#include <type_traits>

#include "base/device.h"
#include "base/status.h"
#include "gather/layout.h"
#include "gather/weights.h"
#include "image/method.h"
#include "image/orientation.h"
#include "jpeg/packed_tile.h"

// What follows from the record of a gathered image: geometry, and where things are in its memory. Planes as
// in jpeg/planes.cpp.
namespace tarpeg::gather {

TARPEG_HD int ceil_div(int a, int b) { return (a + b - 1) / b; }

// Copies between memory at a multiple of kAlign bytes and a value. nvcc copies by words only what has a type
// of that alignment, and puts a word together again only of what is no byte: of memcpy() and
// __builtin_assume_aligned it makes a load for each byte.
template <size_t kAlign>
struct alignas(kAlign) Word {
  using Unit = std::conditional_t<kAlign == 1, uint8_t, std::conditional_t<kAlign == 2, uint16_t, uint32_t>>;
  Unit units[kAlign / sizeof(Unit)];
};
template <size_t kAlign, class T>
TARPEG_HD void read_aligned(const void* from, T* value) {
  static_assert(sizeof *value % kAlign == 0);
#if defined(__CUDA_ARCH__)
  Word<kAlign> words[sizeof *value / kAlign];
  for (size_t i = 0; i < sizeof *value / kAlign; ++i) words[i] = static_cast<const Word<kAlign>*>(from)[i];
  __builtin_memcpy(value, words, sizeof *value);
#else
  __builtin_memcpy(value, __builtin_assume_aligned(from, kAlign), sizeof *value);
#endif
}
template <size_t kAlign, class T>
TARPEG_HD void write_aligned(const T& value, void* to) {
  static_assert(sizeof value % kAlign == 0);
#if defined(__CUDA_ARCH__)
  Word<kAlign> words[sizeof value / kAlign];
  __builtin_memcpy(words, &value, sizeof value);
  for (size_t i = 0; i < sizeof value / kAlign; ++i) static_cast<Word<kAlign>*>(to)[i] = words[i];
#else
  __builtin_memcpy(__builtin_assume_aligned(to, kAlign), &value, sizeof value);
#endif
}

// The bounds of a tensor whose header is sound.
struct Gathered {
  const uint8_t* data;
  Header header;

  TARPEG_HD const double* lanczos() const { return reinterpret_cast<const double*>(data + header.lanczos); }
  TARPEG_HD const uint8_t* images() const { return data + sizeof(Header); }
  TARPEG_HD const uint8_t* pieces() const { return images() + header.count * sizeof(Image); }
  TARPEG_HD Image image(uint32_t index) const {
    Image image;
    read_aligned<kUnit>(images() + index * sizeof(Image), &image);
    return image;
  }
  // Image::work.
  TARPEG_HD uint64_t work_of(uint32_t index) const {
    uint64_t work;
    read_aligned<sizeof work>(images() + index * sizeof(Image) + offsetof(Image, work), &work);
    return work;
  }
  // An empty one if it is not within the tensor.
  TARPEG_HD Piece piece(uint64_t index) const {
    Piece piece;
    read_aligned<sizeof(Piece)>(pieces() + index * sizeof(Piece), &piece);
    const uint64_t at = kUnit * piece.at;
    if (at > header.bytes || piece.size > header.bytes - at) return {0, 0};
    return piece;
  }
};

// Whether a tensor of `bytes` has such a header, for results of `count` images of that size. `data`: at a
// multiple of kUnit.
TARPEG_HD bool read_header(const uint8_t* data, uint64_t bytes, uint32_t count, uint32_t height,
                           uint32_t width, uint32_t channels, Gathered* all) {
  if (bytes < sizeof(Header) || bytes % kUnit != 0) return false;
  all->data = data;
  Header& header = all->header;
  read_aligned<kUnit>(data, &header);
  if (header.magic != kMagic || header.version != kVersion || header.bytes != bytes) return false;
  if (header.count != count || header.height != height || header.width != width ||
      header.channels != channels) {
    return false;
  }
  if (header.filter > static_cast<uint8_t>(Filter::kSharpBicubic) || header.exact > 1) return false;
  const bool is_lanczos = header.filter == static_cast<uint8_t>(Filter::kLanczos);
  constexpr uint64_t kTable = sizeof(double) * kLanczosNumbers;
  if (is_lanczos ? header.lanczos > bytes || kTable > bytes - header.lanczos : header.lanczos != 0)
    return false;
  if (header.lanczos % kUnit != 0) return false;
  const uint64_t rest = bytes - sizeof(Header), images = static_cast<uint64_t>(count) * sizeof(Image);
  return images <= rest && header.pieces <= (rest - images) / sizeof(Piece);
}

// The decoded samples of a component: see Plane in jpeg/planes.h.
struct Plane {
  int across, down;                                    // sampling factors: blocks per MCU
  int first_unit;                                      // of the blocks of an MCU
  int whole_width, whole_height;                       // of the component in the whole image
  int width, height;                                   // the same, reduced
  int across_by, down_by, side;                        // means; samples of a decoded block in each direction
  int block_columns, block_rows;                       // size of a block in the plane
  int repeat_across, repeat_down;                      // pixels of a sample
  bool mixes_across, mixes_down;                       // with their neighbours
  int first_row, last_row, first_column, last_column;  // blocks that are decoded
  int top, left, rows, columns;                        // their samples
  uint64_t samples, between;                           // in the memory of the image
};

// How the result comes from the planes. kCopy: pixels at their own size. kPlanes: Y, Cb and Cr are resampled,
// then become RGB (Note [planes] in image/resample.h). kRows, kColumns: pixels are resampled, in that order.
enum class Way { kCopy, kPlanes, kRows, kColumns };

constexpr int kMostUnits = 10;

struct Plan {
  Image image;
  Orientation turn;
  Filter filter;
  bool is_gray;                         // one channel
  int channels, out_height, out_width;  // upright
  int out_rows, out_columns;            // as stored
  int components, wanted;               // in the image; of these that are decoded
  int mcu_rows, mcu_columns, mcu_blocks;
  uint8_t units[kMostUnits];                           // the component of each block of an MCU
  int first_row, last_row, first_column, last_column;  // MCUs under the box
  int first_tile, tiles;                               // pieces of a row
  uint32_t pieces;
  int first_mcu, row_mcus;  // of each row of MCUs, whose coefficients are in the memory
  int reduction;
  Box box;  // as stored, reduced
  Way way;
  Plane planes[3];
  int axis_count;
  AxisPlan axes[6];  // of rows, of columns; in kPlanes of each component that has others than the one before
  int axis_of[3];    // of a component: the number of its axis of rows
  // In the memory of the image. `coefficients`: of the blocks in the order of the pieces. `between`: not of
  // kPlanes.
  uint64_t coefficients, pixels, between;
  int lines, line;  // numbers between the passes: lines of a channel, numbers of a line
  uint64_t work;    // bytes

  // Where a pixel of the stored result goes.
  TARPEG_HD uint64_t place(int row, int column) const {
    const int a = turn.flip_rows ? out_rows - 1 - row : row;
    const int b = turn.flip_columns ? out_columns - 1 - column : column;
    const int y = turn.swap ? b : a, x = turn.swap ? a : b;
    const int mirrored = image.mirror != 0 ? out_width - 1 - x : x;
    return (static_cast<uint64_t>(y) * out_width + mirrored) * channels;
  }
  // Blocks of MCUs, of which that tile has less if it is the last of its row.
  TARPEG_HD int tile_mcus(int tile) const { return least(image.tile, mcu_columns - tile * image.tile); }
};

// Frame::derive() of jpeg/baseline.cpp. False if such a record is impossible.
TARPEG_HD bool plan_frame(Plan* plan, int* most_across, int* most_down) {
  const Image& image = plan->image;
  *most_across = *most_down = 1;
  plan->mcu_blocks = 0;
  for (int i = 0; i < plan->components; ++i) {
    Plane& plane = plan->planes[i];
    plane.across = plan->components == 1 ? 1 : image.sampling[i] >> 4;
    plane.down = plan->components == 1 ? 1 : image.sampling[i] & 15;
    if (plane.across < 1 || plane.across > 4 || plane.down < 1 || plane.down > 4) return false;
    *most_across = most(*most_across, plane.across);
    *most_down = most(*most_down, plane.down);
    plan->mcu_blocks += plane.across * plane.down;
  }
  for (int i = 0; i < plan->components; ++i) {
    Plane& plane = plan->planes[i];
    const int across = *most_across / plane.across, down = *most_down / plane.down;
    if (*most_across % plane.across != 0 || *most_down % plane.down != 0) return false;
    if ((across & (across - 1)) != 0 || (down & (down - 1)) != 0) return false;
    plane.whole_width = ceil_div(image.width * plane.across, *most_across);
    plane.whole_height = ceil_div(image.height * plane.down, *most_down);
  }
  plan->mcu_columns = ceil_div(image.width, 8 * *most_across);
  plan->mcu_rows = ceil_div(image.height, 8 * *most_down);
  if (plan->mcu_blocks > kMostUnits) return false;
  for (int i = 0, unit = 0; i < plan->components; ++i) {
    plan->planes[i].first_unit = unit;
    for (int k = 0; k < plan->planes[i].down * plan->planes[i].across; ++k)
      plan->units[unit++] = static_cast<uint8_t>(i);
  }
  return true;
}

// Frame::is_halved() of jpeg/baseline.cpp.
TARPEG_HD bool has_halves(const Plan& plan, int most_across, int most_down) {
  if (plan.reduction == 1) return false;
  for (int i = 0; i < plan.wanted; ++i) {
    const int across = most_across / plan.planes[i].across, down = most_down / plan.planes[i].down;
    const bool is_whole = across > 1 && down > 1;
    if (!is_whole && (plan.reduction < 2 * across || plan.reduction < 2 * down)) return false;
  }
  return true;
}

TARPEG_HD uint64_t take(uint64_t* work, uint64_t bytes) {
  const uint64_t at = *work;
  *work = at + (bytes + 63) / 64 * 64;
  return at;
}

// PlaneReader::prepare() of jpeg/planes.cpp. `box`: as stored. False if a plane has no block.
TARPEG_HD bool plan_planes(const Box& box, int most_across, int most_down, Plan* plan) {
  const int times = plan->reduction, mcu_width = 8 * most_across, mcu_height = 8 * most_down;
  const int height = plan->image.height, width = plan->image.width;
  Box& small = plan->box;
  small.top = box.top / times;
  small.left = box.left / times;
  small.height = ceil_div(box.top + box.height, times) - small.top;
  small.width = ceil_div(box.left + box.width, times) - small.left;
  plan->first_column = most(0, small.left * times - 1) / mcu_width;
  plan->last_column = least(width - 1, least(width, (small.left + small.width) * times)) / mcu_width;
  plan->first_row = most(0, small.top * times - 1) / mcu_height;
  plan->last_row = (least(height, (small.top + small.height) * times + 1) - 1) / mcu_height;
  const bool halves = has_halves(*plan, most_across, most_down);
  for (int i = 0; i < plan->wanted; ++i) {
    Plane& plane = plan->planes[i];
    const int across = most_across / plane.across, down = most_down / plane.down;
    plane.across_by = most(1, times / across);
    plane.down_by = most(1, times / down);
    plane.side = halves && (across == 1 || down == 1) ? 4 : 8;
    plane.block_rows = 8 / plane.down_by;
    plane.block_columns = 8 / plane.across_by;
    plane.repeat_across = most(1, across / times);
    plane.repeat_down = most(1, down / times);
    plane.width = ceil_div(plane.whole_width, plane.across_by);
    plane.height = ceil_div(plane.whole_height, plane.down_by);
    // Upsampling mixes with the samples of the next pixel: Note [margin] in jpeg/planes.cpp. libjpeg mixes
    // only if chroma is more than two samples wide.
    plane.mixes_across = times == 1 && plane.width > 2 && plane.repeat_across == 2 && plane.repeat_down <= 2;
    plane.mixes_down =
        times == 1 && plane.repeat_down == 2 && (plane.mixes_across || plane.repeat_across == 1);
    const int margin = plane.repeat_across > 1 || plane.repeat_down > 1;
    const int block_down = plane.repeat_down * plane.block_rows;
    const int block_across = plane.repeat_across * plane.block_columns;
    plane.first_row = most(most(0, small.top - margin) / block_down, plan->first_row * plane.down);
    plane.last_row =
        least((small.top + small.height - 1 + margin) / block_down, (plan->last_row + 1) * plane.down - 1);
    plane.first_column = most(most(0, small.left - margin) / block_across, plan->first_column * plane.across);
    plane.last_column = least((small.left + small.width - 1 + margin) / block_across,
                              (plan->last_column + 1) * plane.across - 1);
    if (plane.first_row > plane.last_row || plane.first_column > plane.last_column) return false;
    plane.top = plane.first_row * plane.block_rows;
    plane.left = plane.first_column * plane.block_columns;
    plane.rows = (plane.last_row - plane.first_row + 1) * plane.block_rows;
    plane.columns = (plane.last_column - plane.first_column + 1) * plane.block_columns;
  }
  for (int i = 0; i < plan->wanted; ++i) {
    Plane& plane = plan->planes[i];
    plane.samples = take(&plan->work, static_cast<uint64_t>(plane.rows) * plane.columns);
  }
  return true;
}

TARPEG_HD bool have_same_geometry(const Plane& a, const Plane& b) {
  return a.width == b.width && a.height == b.height && a.repeat_across == b.repeat_across &&
         a.repeat_down == b.repeat_down && a.mixes_across == b.mixes_across && a.mixes_down == b.mixes_down;
}

TARPEG_HD void add_axis(AxisPlan axis, Plan* plan) {
  axis.stride = stride_of(axis);
  const uint64_t outputs = static_cast<uint64_t>(axis.out), numbers = outputs * axis.stride;
  axis.start = take(&plan->work, sizeof(int32_t) * (outputs + 1));
  axis.counts = take(&plan->work, sizeof(int32_t) * outputs);
  axis.weights = take(&plan->work, sizeof(int16_t) * numbers);
  axis.shares = take(&plan->work, sizeof(double) * numbers * (axis.times > 1 ? 2 : 1));
  plan->axes[plan->axis_count++] = axis;
}

// Resampler::run() of image/resample.cpp. `box`: as stored.
TARPEG_HD void plan_axes(const Box& box, Plan* plan) {
  const bool clamps = is_rounded_between(plan->filter);
  const int first = 22 - clamps, second = 16 - clamps;
  AxisPlan rows{}, columns{};
  rows.in = box.height;
  rows.out = plan->out_rows;
  rows.offset = box.top % plan->reduction;
  rows.mirrored = plan->turn.flip_rows;
  columns.in = box.width;
  columns.out = plan->out_columns;
  columns.offset = box.left % plan->reduction;
  columns.mirrored = plan->turn.flip_columns;
  rows.reduction = columns.reduction = plan->reduction;
  rows.filter = columns.filter = plan->filter;
  rows.times = columns.times = 1;
  if (plan->way == Way::kPlanes) {
    rows.precision = kPlaneRowBits;
    columns.precision = kPlaneColumnBits;
    for (int i = 0; i < plan->wanted; ++i) {
      Plane& plane = plan->planes[i];
      plane.between = take(&plan->work, sizeof(int16_t) * static_cast<uint64_t>(rows.out) * plane.columns);
      plan->axis_of[i] = plan->axis_count;
      if (i > 0 && have_same_geometry(plane, plan->planes[i - 1])) {
        plan->axis_of[i] = plan->axis_of[i - 1];
        continue;
      }
      rows.times = plane.repeat_down;
      rows.mixes = plane.mixes_down;
      rows.count = plane.height;
      rows.begin = plan->box.top;
      columns.times = plane.repeat_across;
      columns.mixes = plane.mixes_across;
      columns.count = plane.width;
      columns.begin = plan->box.left;
      add_axis(rows, plan);
      add_axis(columns, plan);
    }
    return;
  }
  const bool is_rows = plan->way == Way::kRows;
  rows.precision = is_rows ? first : second;
  columns.precision = is_rows ? second : first;
  add_axis(rows, plan);
  add_axis(columns, plan);
  plan->lines = is_rows ? plan->out_rows : plan->box.height;
  plan->line = is_rows ? plan->box.width : plan->out_columns;
  const uint64_t numbers = static_cast<uint64_t>(plan->lines) * plan->line * plan->channels;
  plan->between = take(&plan->work, sizeof(int16_t) * numbers);
}

TARPEG_HD Way way_of(const Plan& plan, const Box& box, bool exact) {
  const Image& image = plan.image;
  if (image.box_height == plan.out_height && image.box_width == plan.out_width) return Way::kCopy;
  if (!plan.is_gray && plan.components == 3 &&
      takes_planes(plan.filter, exact, plan.reduction, box.height, plan.out_rows)) {
    return Way::kPlanes;
  }
  return is_columns_first(plan.filter, box.height - plan.out_rows, box.width - plan.out_columns,
                          plan.turn.swap)
             ? Way::kColumns
             : Way::kRows;
}

TARPEG_HD Box box_of(const Image& image) {
  return {image.top, image.left, image.box_height, image.box_width};
}

// The box of an image as it is stored.
TARPEG_HD Box stored_box(const Image& image) {
  return Orientation::from_exif(image.orientation).stored(box_of(image), image.height, image.width);
}

// The status of an image that was not gathered.
TARPEG_HD Status given_status(const Image& image) {
  const bool is_known = image.status > 0 && image.status <= static_cast<int32_t>(Status::kNotGathered);
  return is_known ? static_cast<Status>(image.status) : Status::kCorrupt;
}

// The plan of plan->image, whose status is 0, but for where its tables and pieces are; all else of the plan
// are zeros before. False if the record is impossible.
TARPEG_HD bool plan_geometry(const Header& header, Plan* plan) {
  const Image& image = plan->image;
  const bool is_packed = image.kind == static_cast<uint8_t>(Kind::kPacked);
  if (!is_packed && image.kind != static_cast<uint8_t>(Kind::kSegments)) return false;
  if ((image.components != 1 && image.components != 3) || image.orientation < 1 || image.orientation > 8 ||
      image.mirror > 1 || image.height == 0 || image.width == 0 || image.tile == 0 || image.unit > 16 ||
      image.tables > kMostTables) {
    return false;
  }
  plan->components = image.components;
  plan->turn = Orientation::from_exif(image.orientation);
  plan->filter = static_cast<Filter>(header.filter);
  plan->channels = header.channels;
  plan->is_gray = header.channels == 1;
  plan->wanted = plan->is_gray ? 1 : plan->components;
  plan->out_height = static_cast<int>(header.height);
  plan->out_width = static_cast<int>(header.width);
  plan->out_rows = plan->turn.swap ? plan->out_width : plan->out_height;
  plan->out_columns = plan->turn.swap ? plan->out_height : plan->out_width;
  for (int i = 0; i < plan->components; ++i) {
    if (is_packed && (image.dc_bytes[i] < 1 || image.dc_bytes[i] > 2)) return false;
    if (!is_packed && (image.dc_table[i] >= image.tables || image.ac_table[i] >= image.tables)) return false;
  }
  int most_across, most_down;
  if (!plan_frame(plan, &most_across, &most_down)) return false;
  const bool fits =
      is_packed ? image.tile * plan->mcu_blocks <= kMostTileBlocks : plan->mcu_columns % image.tile == 0;
  const bool swap = plan->turn.swap;
  if (!fits ||
      !box_of(image).is_inside(swap ? image.width : image.height, swap ? image.height : image.width)) {
    return false;
  }
  const Box box = stored_box(image);
  const bool exact = header.exact != 0;
  plan->reduction =
      reduction_of(plan->filter, exact, box.height, box.width, plan->out_rows, plan->out_columns);
  if (!plan_planes(box, most_across, most_down, plan)) return false;
  plan->first_tile = plan->first_column / image.tile;
  plan->tiles = plan->last_column / image.tile - plan->first_tile + 1;
  plan->pieces =
      static_cast<uint32_t>(plan->last_row - plan->first_row + 1) * static_cast<uint32_t>(plan->tiles);
  const int end = (plan->first_tile + plan->tiles) * image.tile;
  plan->first_mcu = plan->first_tile * image.tile;
  plan->row_mcus = least(end, is_packed ? plan->mcu_columns : plan->last_column + 1) - plan->first_mcu;
  const uint64_t mcus = static_cast<uint64_t>(plan->last_row - plan->first_row + 1) * plan->row_mcus;
  plan->coefficients = take(&plan->work, sizeof(int16_t) * 64 * mcus * plan->mcu_blocks);
  plan->way = way_of(*plan, box, exact);
  if (plan->way != Way::kPlanes) {
    const uint64_t pixels = static_cast<uint64_t>(plan->box.height) * plan->box.width;
    plan->pixels = take(&plan->work, pixels * plan->channels);
  }
  if (plan->way != Way::kCopy) plan_axes(box, plan);
  return true;
}

// Every block has at least four bits in a packed tile and two in a segment: there is no memory for impossible
// numbers of them.
TARPEG_HD bool has_blocks(const Plan& plan, int number, const Piece& piece) {
  const uint64_t blocks = static_cast<uint64_t>(plan.tile_mcus(number)) * plan.mcu_blocks;
  const uint64_t in_byte = plan.image.kind == static_cast<uint8_t>(Kind::kPacked) ? 2 : 4;
  return blocks <= in_byte * piece.size;
}

// The same; also false if tables or pieces are not within the tensor.
TARPEG_HD bool plan_image(const Gathered& all, Plan* plan) {
  const Image& image = plan->image;
  if (!plan_geometry(all.header, plan)) return false;
  const uint64_t bytes = all.header.bytes;
  const uint64_t tables_at = kUnit * image.tables_at, tables = sizeof(Table) * uint64_t{image.tables};
  if (tables_at > bytes || tables > bytes - tables_at) return false;
  return image.pieces == plan->pieces && image.first_piece <= all.header.pieces &&
         plan->pieces <= all.header.pieces - image.first_piece;
}

}  // namespace tarpeg::gather
