#pragma once

#include <cstdint>

#include "batch/jobs.h"

// run_batch on the CPU, without threads: the operator divides the pieces among them.
namespace tarpeg {

// A piece is an image, or a band of its rows if these depend on nothing but the source.
int64_t pieces_of(const BatchJob& job);
void run_piece(const BatchJob& job, int64_t piece);

// The program of one image, and what follows it (programs.cpp). Each thread keeps its working memory for the
// next image, up to 64 MiB of each kind.
void run_program(const BatchJob& job, int64_t image);

// The final pass (final_pass.cpp): writes rows [begin, end) of one image of the result, which comes from
// `from`.
void run_final_pass(const BatchJob& job, const Picture<uint8_t>& from, int64_t image, int64_t begin,
                    int64_t end);

}  // namespace tarpeg
