#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>

#include <algorithm>
#include <atomic>
#include <exception>
#include <optional>
#include <vector>

#include "base/pages.h"
#include "base/pool.h"
#include "ops/program_checks.h"

namespace tarpeg {
namespace {

constexpr int64_t kMostThreads = 1024;

// State shared by the threads of one batch. Programs differ in cost: each thread takes the next image when it
// is done.
struct Batch {
  const ProgramJob* job;
  std::atomic<int64_t> next{0};
  std::atomic<bool> out_of_memory{false};

  void work() noexcept {
    for (int64_t i = next++; i < job->from.count; i = next++) {
      try {
        run_program(*job, i);
      } catch (const std::exception&) {
        out_of_memory = true;
      }
    }
  }
};

void run_programs(Tensor images, Tensor ops, Tensor values, std::optional<Tensor> weights, bool nearest,
                  std::vector<double> fill, bool fresh, Tensor out, int64_t threads) {
  const ProgramJob job = check_programs(images, ops, values, weights, nearest, fill, out);
  if (job.to.count == 0 || job.to.pixels() == 0) return;
  if (fresh) want_huge_pages(job.out, job.to.count * job.to.numbers());
  Batch batch{&job};
  const int64_t wanted = threads > 0 ? threads : torch::stable::get_num_threads();
  const auto work = [](void* shared) noexcept { static_cast<Batch*>(shared)->work(); };
  run_on_threads(static_cast<int>(std::min({job.to.count, wanted, kMostThreads})), work, &batch);
  STD_TORCH_CHECK(!batch.out_of_memory, "out of memory, in run_programs");
}

}  // namespace
}  // namespace tarpeg

STABLE_TORCH_LIBRARY_IMPL(tarpeg, CPU, m) { m.impl("run_programs", TORCH_BOX(&tarpeg::run_programs)); }
