#pragma once

#include "cuda/launch.h"
#include "ops/batch_checks.h"

namespace tarpeg {

// The final pass of all images, on the GPU. images: only for its device, where memory is allocated.
void run_final_pass(const BatchJob& job, const Tensor& images, const Stream& stream);

}  // namespace tarpeg
