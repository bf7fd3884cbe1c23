#pragma once

#include <cstdint>

#include "batch/programs.h"
#include "batch/warp_rows.h"

// The loops of run_programs on the CPU, over whole planes or rows. in and out never overlap.
namespace tarpeg::programs {

// Between interleaved pixels and planes.
void split(In pixels, int64_t n, Out r, Out g, Out b);
void join(In r, In g, In b, int64_t n, Out pixels);

void look_up(In levels, int64_t n, In table, Out out);
void reverse(In levels, int64_t n, Out out);
void extremes(In levels, int64_t n, uint8_t* low, uint8_t* high);
void to_gray(In r, In g, In b, int64_t n, Out gray);
int64_t sum_gray(In r, In g, In b, int64_t n);
void saturate_planes(In r, In g, In b, int64_t n, float ratio, Out x, Out y, Out z);
void turn(In r, In g, In b, int64_t n, float hue, Out x, Out y, Out z);
// One row, without its first and last pixel; rest: 1 - factor.
void sharpen(In above, In here, In below, int64_t width, float rest, Out out);

// One row of either pass of a blur: weights[0] * rows[0] + the sum of weights[i] * (rows[-i] + rows[i]).
void blur_row(const float* const* rows, const Blur& blur, int64_t n, float* __restrict out);
void widen(In levels, int64_t n, float* __restrict out);
void round_row(const float* __restrict from, int64_t n, Out out);

// The sum of weights[i] * parts[i], in order, cut to levels.
void mix(const uint8_t* const* parts, const float* weights, int64_t count, int64_t n, Out out);

}  // namespace tarpeg::programs
