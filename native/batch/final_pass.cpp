#include <algorithm>

#include "batch/engine.h"
#include "batch/warp_rows.h"

namespace tarpeg {
namespace {

// The final pass of one image.
struct Pass {
  const FinalPass& of;
  const Picture<uint8_t>& from;
  const int64_t image;
  const Target target;
  const ImagePass own;

  void cover(int64_t begin, int64_t end, int64_t x, int n, Row* row) const {
    fill_row(of.fill, std::max<int64_t>(begin - x, 0), std::min<int64_t>(end - x, n), row);
  }

  void erase(int64_t x, int64_t y, int n, Row* row) const {
    const int32_t* box = of.boxes + of.box_columns * of.box_count * image;
    for (int64_t i = 0; i < of.box_count; ++i, box += of.box_columns) {
      const int64_t top = box[0], left = box[1], end = left + box[3];
      if (y < top || y >= top + box[2]) continue;
      if (of.box_columns == 4) {
        cover(left, end, x, n, row);
        continue;
      }
      const int64_t line = y * target.width;
      for (int64_t at = std::max(left, x); at < std::min(end, x + n); ++at) {
        for (int c = 0; c < 3; ++c) row->channels[c][at - x] = of.random_level(box, line + at, c);
      }
    }
  }

  void mask(int64_t x, int64_t y, int n, Row* row) const {
    const int64_t width = target.width, cells = of.mask_width;
    const uint8_t* line = of.mask + (image * of.mask_height + y * of.mask_height / target.height) * cells;
    for (int64_t cell = x * cells / width; cell < cells; ++cell) {
      const int64_t begin = (cell * width + cells - 1) / cells;  // the first pixel that lies in the cell
      if (begin >= x + n) break;
      if (line[cell]) cover(begin, ((cell + 1) * width + cells - 1) / cells, x, n, row);
    }
  }

  // Writes a row of an image that is at most moved and mirrored by whole pixels. False, with nothing done, if
  // the row reaches outside of its source.
  bool make_plain(int64_t y) const {
    const Affine& map = own.map;
    const int64_t step = static_cast<int64_t>(map.xx), first = static_cast<int64_t>(map.x0);
    const int64_t last = first + step * (target.width - 1);
    const int64_t source_y = static_cast<int64_t>(map.yy) * y + static_cast<int64_t>(map.y0);
    if (!is_inside(first, source_y, from.width, from.height)) return false;
    if (!is_inside(last, source_y, from.width, from.height)) return false;
    const uint8_t* pixel = from.data + source_y * from.row_stride + first * from.pixel_stride;
    const int width = static_cast<int>(target.width);
    Row row;
    const RgbRow bytes = {pixel, from.pixel_stride, from.channel_stride, step < 0, from.channels};
    int64_t x = normalise_simd(bytes, of.how, y * target.width, width, target);
    for (; x < width; x += kSpan) {
      const int n = static_cast<int>(std::min<int64_t>(kSpan, width - x));
      fetch_direct(from, map, of.fill, x, y, n, &row);
      store(row, of.how, x, y, n, target);
    }
    return true;
  }

  void make_tile(const Tile& tile) const {
    static thread_local Patch patch;
    if (!own.is_direct) patch.copy_under(from, own.map, tile);
    const int64_t x = tile.left;
    const int n = static_cast<int>(tile.width);
    Row row;
    for (int64_t y = tile.top; y < tile.top + tile.height; ++y) {
      if (own.is_direct) {
        fetch_direct(from, own.map, of.fill, x, y, n, &row);
      } else {
        fetch_warped(from, patch, span_at(own.map, x, y, 0), false, of.fill, n, &row);
      }
      if (own.recolours) recolour_row(own.colour, n, &row);
      if (of.boxes) erase(x, y, n, &row);
      if (of.mask) mask(x, y, n, &row);
      store(row, of.how, x, y, n, target);
    }
  }
};

}  // namespace

void run_final_pass(const BatchJob& job, const Picture<uint8_t>& from, int64_t image, int64_t begin,
                    int64_t end) {
  const BatchLayout& to = job.to;
  const int64_t bytes = to.numbers() * size_of(job.type);
  const Target target = {static_cast<char*>(job.out) + image * bytes,
                         job.type,
                         to.height,
                         to.width,
                         to.planar,
                         to.count * bytes >= kLarge,
                         static_cast<int>(to.channels)};
  const Pass pass = {job.pass, from, image, target, image_pass(job.pass, image, from.width)};
  const bool is_plain = pass.own.is_direct && !pass.own.recolours && !job.pass.boxes && !job.pass.mask;
  const auto make = [&](const Tile& tile) { pass.make_tile(tile); };
  if (!is_plain) over_tiles(to.width, begin, end, make);
  for (int64_t y = begin; is_plain && y < end; ++y) {
    if (!pass.make_plain(y)) over_tiles(to.width, y, y + 1, make);
  }
  finish_stores();
}

}  // namespace tarpeg
