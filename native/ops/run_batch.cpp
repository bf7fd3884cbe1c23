#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>

#include <optional>
#include <vector>

#include "base/pages.h"
#include "batch/engine.h"
#include "ops/batch_checks.h"
#include "ops/share.h"

namespace tarpeg {
namespace {

void run_batch(Tensor images, std::optional<Tensor> ops, std::optional<Tensor> values,
               std::optional<Tensor> weights, bool nearest, std::vector<double> border,
               std::optional<Tensor> numbers, int64_t parts, std::optional<Tensor> boxes,
               std::optional<Tensor> mask, std::vector<double> constants, bool fresh, Tensor out,
               int64_t threads) {
  const BatchJob job =
      check_batch(images, ops, values, weights, nearest, border, numbers, parts, boxes, mask, constants, out);
  if (job.to.count == 0 || job.to.pixels() == 0) return;
  if (fresh) want_huge_pages(job.out, job.to.count * job.to.numbers() * size_of(job.type));
  // Programs differ in cost, and cost more than rows.
  const int64_t worthwhile = ops ? 1 : kWorthwhile;
  share_pieces(pieces_of(job), job.to.count * job.to.pixels() / worthwhile, threads,
               [&](int64_t piece) { run_piece(job, piece); });
}

}  // namespace
}  // namespace tarpeg

STABLE_TORCH_LIBRARY_IMPL(tarpeg, CPU, m) { m.impl("run_batch", TORCH_BOX(&tarpeg::run_batch)); }
