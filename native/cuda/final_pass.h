#pragma once

#include "cuda/launch.h"
#include "ops/batch_checks.h"

namespace tarpeg {

// The final pass of all images, on the GPU.
void run_final_pass(const BatchJob& job, const Stream& stream);

}  // namespace tarpeg
