#pragma once

#include "batch/programs.h"

namespace tarpeg {

// Runs the program of one image on the CPU, without threads: the operator divides images among them. Each
// thread keeps its working memory, of up to 64 MiB, for the next image.
void run_program(const ProgramJob& job, int64_t image);

}  // namespace tarpeg
