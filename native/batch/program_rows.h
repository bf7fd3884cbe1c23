#pragma once

#include <cstdint>

#include "batch/programs.h"

// The loops of run_programs on the CPU, over whole planes or rows. in and out never overlap.
namespace tarpeg::programs {

using In = const uint8_t* __restrict;
using Out = uint8_t* __restrict;

// Between interleaved pixels and planes; four: red, green, blue and 1, for warps.
void split(In pixels, int64_t n, Out r, Out g, Out b);
void join(In r, In g, In b, int64_t n, Out pixels);
void join_four(In r, In g, In b, int64_t n, Out four);

void look_up(In levels, int64_t n, In table, Out out);
void reverse(In levels, int64_t n, Out out);
void extremes(In levels, int64_t n, uint8_t* low, uint8_t* high);
void to_gray(In r, In g, In b, int64_t n, Out gray);
int64_t sum_gray(In r, In g, In b, int64_t n);
void saturate_planes(In r, In g, In b, int64_t n, float ratio, Out x, Out y, Out z);
void turn(In r, In g, In b, int64_t n, float hue, Out x, Out y, Out z);
// One row, without its first and last pixel; rest: 1 - factor.
void sharpen(In above, In here, In below, int64_t width, float rest, Out out);

// The source pixels of a row: 0 outside, otherwise counted from 1; and their levels.
void indices(const Grid& grid, int y, int width, int32_t* __restrict at);
void pick_row(const uint8_t* four, const int32_t* at, int64_t n, Out r, Out g, Out b);

// The upper left source pixels of a row in an image of four bytes with a border of one pixel, the weights
// [4][width] of these and their neighbours, and the blended levels. fill: three levels, or null for black.
void all_taps(const Grid& grid, int y, int width, int32_t* __restrict at, float* __restrict weights);
void blend_row(const uint8_t* four, int64_t stride, const int32_t* at, const float* weights, int64_t n,
               const float* fill, Out r, Out g, Out b);

// One row of either pass of a blur: weights[0] * rows[0] + the sum of weights[i] * (rows[-i] + rows[i]).
void blur_row(const float* const* rows, const Blur& blur, int64_t n, float* __restrict out);
void widen(In levels, int64_t n, float* __restrict out);
void round_row(const float* __restrict from, int64_t n, Out out);

// The sum of weights[i] * parts[i], in order, cut to levels.
void mix(const uint8_t* const* parts, const float* weights, int64_t count, int64_t n, Out out);

}  // namespace tarpeg::programs
