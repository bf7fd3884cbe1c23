#pragma once

#include "batch/rows.h"

// The parts of augment_rows.cpp that a compiler does not turn into vector code by itself. Each does what it
// can, where the processor has AVX2, and returns how many pixels of the row are done; the rest is the
// caller's.
namespace tarpeg {

// Reads `count` pixels from `pixel` on (backwards: leftwards) into row[at..].
int direct_simd(const uint8_t* pixel, const Picture<uint8_t>& from, bool backwards, int count, int at,
                Row* row);

// Samples the first n pixels of a span.
int warped_simd(const Source& source, const Span& span, bool nearest, const float* fill, int n, Row* row);

// Normalises n pixels from `pixel` on (backwards: leftwards) to the target's pixel `at` and those after it.
int plain_simd(const uint8_t* pixel, const Picture<uint8_t>& from, bool backwards, const float* scale,
               const float* shift, int64_t at, int n, const Target& target);

int store_simd(const Row& row, const float* scale, const float* shift, int64_t x, int64_t y, int n,
               const Target& target);

}  // namespace tarpeg
