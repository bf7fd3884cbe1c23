#include "batch/augment_rows.h"

#include <algorithm>
#include <memory>
#include <new>

namespace tarpeg {
namespace {

// Rows [begin, end) of one image, span by span: visit(row, x, y, n), after geometry and brightness.
template <class Visit>
void for_rows(const AugmentBatch& batch, int64_t image, int64_t begin, int64_t end, const Visit& visit) {
  const Plan& plan = batch.plans[image];
  const Source source = batch.source(image);
  const int64_t width = batch.job.to.width;
  Row row;
  for (int64_t y = begin; y < end; ++y) {
    for (int64_t x = 0; x < width; x += kSpan) {
      const int n = static_cast<int>(std::min<int64_t>(kSpan, width - x));
      if (plan.is_direct) {
        fetch_direct(source, plan.map, batch.job.fill, x, y, n, &row);
      } else {
        fetch_warped(source, plan.map, false, batch.job.fill, x, y, n, &row);
      }
      apply_brightness(plan, n, &row);
      visit(&row, x, y, n);
    }
  }
}

void cover(const float* fill, int64_t begin, int64_t end, int64_t x, int n, Row* row) {
  fill_row(fill, std::max<int64_t>(begin - x, 0), std::min<int64_t>(end - x, n), row);
}

void erase(const AugmentJob& job, int64_t image, int64_t x, int64_t y, int n, Row* row) {
  const int32_t* box = job.boxes + job.box_columns * job.box_count * image;
  for (int64_t i = 0; i < job.box_count; ++i, box += job.box_columns) {
    const int64_t top = box[0], left = box[1], end = left + box[3];
    if (y < top || y >= top + box[2]) continue;
    if (job.box_columns == 4) {
      cover(job.fill, left, end, x, n, row);
      continue;
    }
    const int64_t line = y * job.to.width;
    for (int64_t at = std::max(left, x); at < std::min(end, x + n); ++at) {
      row->r[at - x] = job.random_level(box, line + at, 0);
      row->g[at - x] = job.random_level(box, line + at, 1);
      row->b[at - x] = job.random_level(box, line + at, 2);
    }
  }
}

void mask(const AugmentJob& job, int64_t image, int64_t x, int64_t y, int n, Row* row) {
  const int64_t width = job.to.width, cells = job.mask_width;
  const uint8_t* line = job.mask + (image * job.mask_height + y * job.mask_height / job.to.height) * cells;
  for (int64_t cell = x * cells / width; cell < cells; ++cell) {
    const int64_t begin = (cell * width + cells - 1) / cells;  // the first pixel that lies in the cell
    if (begin >= x + n) break;
    if (line[cell]) cover(job.fill, begin, ((cell + 1) * width + cells - 1) / cells, x, n, row);
  }
}

// All stages after brightness.
void finish(const AugmentBatch& batch, int64_t image, const Target& target, int64_t x, int64_t y, int n,
            Row* row) {
  const AugmentJob& job = batch.job;
  apply_colour(batch.plans[image], n, row);
  if (job.boxes) erase(job, image, x, y, n, row);
  if (job.mask) mask(job, image, x, y, n, row);
  store(*row, job.how, x, y, n, target);
}

// Writes a row of an image that is at most moved and mirrored by whole pixels. False, with nothing done, if
// the row reaches outside of its source.
bool make_plain(const AugmentBatch& batch, const Source& source, const Affine& map, int64_t y,
                const Target& target) {
  const AugmentJob& job = batch.job;
  const int64_t step = static_cast<int64_t>(map.xx), first = static_cast<int64_t>(map.x0);
  const int64_t last = first + step * (target.width - 1);
  const int64_t source_y = static_cast<int64_t>(map.yy) * y + static_cast<int64_t>(map.y0);
  if (!is_inside(first, source_y, source.width, source.height)) return false;
  if (!is_inside(last, source_y, source.width, source.height)) return false;
  const Picture<uint8_t> from = source.picture();
  const uint8_t* pixel = from.data + source_y * from.row_stride + first * from.pixel_stride;
  const int width = static_cast<int>(target.width);
  Row row;
  const RgbRow bytes = {pixel, from.pixel_stride, from.channel_stride, step < 0, source.channels};
  int64_t x = normalise_simd(bytes, job.how, y * target.width, width, target);
  for (; x < width; x += kSpan) {
    const int n = static_cast<int>(std::min<int64_t>(kSpan, width - x));
    fetch_direct(source, map, job.fill, x, y, n, &row);
    store(row, job.how, x, y, n, target);
  }
  return true;
}

}  // namespace

void make_rows(const AugmentBatch& batch, int64_t image, int64_t begin, int64_t end) {
  const Target target = batch.target(image);
  const Plan& plan = batch.plans[image];
  if (plan.is_direct && plan.parts == 0 && !batch.job.boxes && !batch.job.mask) {
    const Source source = batch.source(image);
    while (begin < end && make_plain(batch, source, plan.map, begin, target)) ++begin;
  }
  for_rows(batch, image, begin, end,
           [&](Row* row, int64_t x, int64_t y, int n) { finish(batch, image, target, x, y, n, row); });
  finish_stores();
}

bool make_with_mean(AugmentBatch* batch, int64_t image) {
  constexpr int64_t kKept = 1 << 20;  // pixels
  const BatchLayout& to = batch->job.to;
  const int64_t spans = (to.width + kSpan - 1) / kSpan;
  static thread_local std::unique_ptr<Row[]> kept;
  static thread_local int64_t room = 0;
  const bool keeps = spans * kSpan * to.height <= kKept;
  if (keeps && room < spans * to.height) {
    kept.reset(new (std::nothrow) Row[spans * to.height]);
    room = kept ? spans * to.height : 0;
  }
  Row* const rows = keeps ? kept.get() : nullptr;
  int64_t units = 0;
  for_rows(*batch, image, 0, to.height, [&](Row* row, int64_t x, int64_t y, int n) {
    units += sum_gray(n, *row);
    if (!rows) return;
    Row& keep = rows[y * spans + x / kSpan];
    std::copy(row->r, row->r + n, keep.r);
    std::copy(row->g, row->g + n, keep.g);
    std::copy(row->b, row->b + n, keep.b);
  });
  Plan& plan = batch->plans[image];
  plan.mean_part = mean_part_of(units, to.pixels(), plan.contrast);
  if (!rows) return false;
  const Target target = batch->target(image);
  for (int64_t y = 0; y < to.height; ++y) {
    for (int64_t x = 0; x < to.width; x += kSpan) {
      const int n = static_cast<int>(std::min<int64_t>(kSpan, to.width - x));
      finish(*batch, image, target, x, y, n, &rows[y * spans + x / kSpan]);
    }
  }
  finish_stores();
  return true;
}

}  // namespace tarpeg
