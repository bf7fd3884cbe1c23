#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>

#include <algorithm>
#include <optional>
#include <vector>

#include "base/pages.h"
#include "batch/augment_rows.h"
#include "ops/batch_checks.h"

namespace tarpeg {
namespace {

constexpr int64_t kBand = 32;             // rows of an image that one thread does at a time
constexpr int64_t kWorthwhile = 1 << 15;  // pixels below which no second thread is used

void augment_batch(Tensor images, Tensor numbers, int64_t parts, std::optional<Tensor> boxes,
                   std::optional<Tensor> cells, std::vector<double> constants, bool fresh, Tensor out) {
  AugmentBatch batch = {check_augment(images, numbers, parts, boxes, cells, constants, out), {}};
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
