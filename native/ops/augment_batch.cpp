#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>

#include <algorithm>
#include <memory>
#include <new>
#include <optional>
#include <vector>

#include "base/pages.h"
#include "batch/augment.h"
#include "batch/rows.h"
#include "batch/rows_simd.h"
#include "ops/augment_job.h"

namespace tarpeg {
namespace {

constexpr int64_t kBand = 32;             // rows of an image that one thread does at a time
constexpr int64_t kLarge = 16 << 20;      // bytes of output that no cache keeps until they are read
constexpr int64_t kWorthwhile = 1 << 15;  // pixels below which no second thread is called

struct Batch {
  AugmentJob job;
  std::vector<Plan> plans;

  Source source(int64_t image) const {
    const BatchLayout& from = job.from;
    return {job.images + image * from.numbers(), from.height, from.width, from.planar};
  }

  Target target(int64_t image) const {
    const BatchLayout& to = job.to;
    char* data = static_cast<char*>(job.out) + image * to.numbers() * size_of(job.type);
    const bool streams = to.count * to.numbers() * size_of(job.type) >= kLarge;
    return {data, job.type, to.height, to.width, to.planar, streams};
  }
};

// Rows [begin, end) of one image, span by span: visit(row, x, y, n), after geometry and brightness.
template <class Visit>
void for_rows(const Batch& batch, int64_t image, int64_t begin, int64_t end, const Visit& visit) {
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
  const int64_t first = std::max<int64_t>(begin - x, 0), last = std::min<int64_t>(end - x, n);
  if (last <= first) return;
  std::fill(row->r + first, row->r + last, fill[0]);
  std::fill(row->g + first, row->g + last, fill[1]);
  std::fill(row->b + first, row->b + last, fill[2]);
}

void erase(const AugmentJob& job, int64_t image, int64_t x, int64_t y, int n, Row* row) {
  const int32_t* box = job.boxes + 4 * job.box_count * image;
  for (int64_t i = 0; i < job.box_count; ++i, box += 4) {
    const int64_t top = box[0], left = box[1];
    if (y >= top && y < top + box[2]) cover(job.fill, left, left + box[3], x, n, row);
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

// All that comes after brightness.
void finish(const Batch& batch, int64_t image, const Target& target, int64_t x, int64_t y, int n, Row* row) {
  const AugmentJob& job = batch.job;
  apply_colour(batch.plans[image], n, row);
  if (job.boxes) erase(job, image, x, y, n, row);
  if (job.mask) mask(job, image, x, y, n, row);
  store(*row, job.scale, job.shift, x, y, n, target);
}

// A row of an image that is at most moved and mirrored by whole pixels; false, with nothing done, where it
// reaches outside of its source.
bool make_plain(const Batch& batch, const Source& source, const Affine& map, int64_t y,
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
  int64_t x = plain_simd(pixel, from, step < 0, job.scale, job.shift, y * target.width, width, target);
  for (; x < width; x += kSpan) {
    const int n = static_cast<int>(std::min<int64_t>(kSpan, width - x));
    fetch_direct(source, map, job.fill, x, y, n, &row);
    store(row, job.scale, job.shift, x, y, n, target);
  }
  return true;
}

void make_rows(const Batch& batch, int64_t image, int64_t begin, int64_t end) {
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

// Contrast needs the image's mean before any pixel can be finished: what was warped for it is kept, where it
// is small enough for a processor's cache, and the image is then done. False where it is not.
bool make_with_mean(Batch* batch, int64_t image) {
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

void augment_batch(Tensor images, Tensor numbers, int64_t parts, std::optional<Tensor> boxes,
                   std::optional<Tensor> cells, std::vector<double> constants, bool fresh, Tensor out) {
  Batch batch = {check_augment(images, numbers, parts, boxes, cells, constants, out), {}};
  const AugmentJob& job = batch.job;
  const BatchLayout& to = job.to;
  if (to.count == 0 || to.pixels() == 0) return;
  if (fresh) want_huge_pages(job.out, to.count * to.numbers() * size_of(job.type));
  batch.plans.reserve(to.count);
  bool any_contrast = false;
  for (int64_t i = 0; i < to.count; ++i) {
    batch.plans.push_back(plan_of(job.numbers + i * kColumns, job.parts, job.from.width));
    any_contrast = any_contrast || (batch.plans[i].parts & kContrast);
  }
  std::vector<char> is_done(to.count, false);
  if (any_contrast) {
    const int64_t grain = std::max<int64_t>(1, kWorthwhile / to.pixels());
    torch::stable::parallel_for(0, to.count, grain, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        if (batch.plans[i].parts & kContrast) is_done[i] = make_with_mean(&batch, i);
      }
    });
  }
  const int64_t bands = (to.height + kBand - 1) / kBand;
  const int64_t grain = std::max<int64_t>(1, kWorthwhile / (kBand * to.width));
  torch::stable::parallel_for(0, to.count * bands, grain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t top = i % bands * kBand;
      if (!is_done[i / bands]) make_rows(batch, i / bands, top, std::min(top + kBand, to.height));
    }
  });
}

}  // namespace
}  // namespace tarpeg

STABLE_TORCH_LIBRARY_IMPL(tarpeg, CPU, m) { m.impl("augment_batch", TORCH_BOX(&tarpeg::augment_batch)); }
