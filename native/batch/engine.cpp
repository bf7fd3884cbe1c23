#include "batch/engine.h"

#include <algorithm>

namespace tarpeg {
namespace {

constexpr int64_t kBand = 32;  // rows

int64_t bands_of(const BatchJob& job) {
  return job.programs.given() ? 1 : (job.to.height + kBand - 1) / kBand;
}

}  // namespace

int64_t pieces_of(const BatchJob& job) { return job.to.count * bands_of(job); }

void run_piece(const BatchJob& job, int64_t piece) {
  const int64_t bands = bands_of(job), image = piece / bands;
  const int64_t rows = bands == 1 ? job.to.height : kBand, begin = piece % bands * rows;
  const int64_t end = std::min(begin + rows, job.to.height);
  if (job.programs.given()) return run_program(job, image);
  run_final_pass(job, job.from.picture(job.images, image), image, begin, end);
}

}  // namespace tarpeg
