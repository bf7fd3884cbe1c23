#pragma once

#include <cstdint>
#include <vector>

#include "batch/jobs.h"
#include "batch/rows.h"

// augment_batch on the CPU, without threads: the operator divides images and bands of rows among them.
namespace tarpeg {

struct AugmentBatch {
  AugmentJob job;
  std::vector<Plan> plans;

  Source source(int64_t image) const {
    const BatchLayout& from = job.from;
    return {job.images + image * from.numbers(), from.height, from.width, from.planar,
            static_cast<int>(from.channels)};
  }

  Target target(int64_t image) const {
    const BatchLayout& to = job.to;
    char* data = static_cast<char*>(job.out) + image * to.numbers() * size_of(job.type);
    const bool streams = to.count * to.numbers() * size_of(job.type) >= kLarge;
    return {data, job.type, to.height, to.width, to.planar, streams, static_cast<int>(to.channels)};
  }
};

// Writes rows [begin, end) of one image.
void make_rows(const AugmentBatch& batch, int64_t image, int64_t begin, int64_t end);

// Computes the image's mean for contrast, which every pixel needs. The warped rows are kept if they fit into
// a processor's cache, and the image is then written: true. Otherwise false: call make_rows.
bool make_with_mean(AugmentBatch* batch, int64_t image);

}  // namespace tarpeg
