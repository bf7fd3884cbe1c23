#include "jpeg/idct.h"

#include <algorithm>
#include <cstring>

#include "base/simd.h"
#include "jpeg/idct_code.h"
#include "jpeg/idct_plain.h"

namespace tarpeg {
namespace {

// Note [plain loops]
// The portable code of this and of the other kernels is loops over neighbours without branches, which
// compilers turn into vector code for whatever the processor's oldest model has: SSE2, NEON.

// One vector of any processor.
using Lanes16 = int16_t __attribute__((vector_size(16)));
using Lanes32 = int32_t __attribute__((vector_size(16)));
using Lanes64 = int64_t __attribute__((vector_size(16)));

// 8 x 8 numbers: those of a column become those of a row.
void transpose_portable(int16_t* numbers) noexcept {
  Lanes16 r[8], a[8];
  Lanes32 b[8];
  std::memcpy(r, numbers, sizeof r);
  for (int i = 0; i < 4; ++i) {
    a[2 * i] = TARPEG_MIX(Lanes16, r[2 * i], r[2 * i + 1], 0, 8, 1, 9, 2, 10, 3, 11);
    a[2 * i + 1] = TARPEG_MIX(Lanes16, r[2 * i], r[2 * i + 1], 4, 12, 5, 13, 6, 14, 7, 15);
  }
  for (int i = 0; i < 2; ++i) {
    b[4 * i] = TARPEG_MIX(Lanes32, a[4 * i], a[4 * i + 2], 0, 4, 1, 5);
    b[4 * i + 1] = TARPEG_MIX(Lanes32, a[4 * i], a[4 * i + 2], 2, 6, 3, 7);
    b[4 * i + 2] = TARPEG_MIX(Lanes32, a[4 * i + 1], a[4 * i + 3], 0, 4, 1, 5);
    b[4 * i + 3] = TARPEG_MIX(Lanes32, a[4 * i + 1], a[4 * i + 3], 2, 6, 3, 7);
  }
  for (int i = 0; i < 4; ++i) {
    r[2 * i] = (Lanes16)TARPEG_MIX(Lanes64, b[i], b[4 + i], 0, 2);
    r[2 * i + 1] = (Lanes16)TARPEG_MIX(Lanes64, b[i], b[4 + i], 1, 3);
  }
  std::memcpy(numbers, r, sizeof r);
}

// The first numbers of as many rows.
template <int kSide>
inline void store_levels(const int16_t* rows, uint8_t* out, ptrdiff_t stride) noexcept {
  uint8_t levels[8 * kSide];
  for (int i = 0; i < 8 * kSide; ++i) {
    int16_t level = static_cast<int16_t>(rows[i] + 128);
    level = level < 0 ? 0 : level;
    levels[i] = static_cast<uint8_t>(level > 255 ? 255 : level);
  }
  for (int y = 0; y < kSide; ++y) std::memcpy(out + y * stride, levels + 8 * y, kSide);
}

// Every column of eight rows.
template <int kShift>
void transform_portable(const int16_t* __restrict in, int16_t* __restrict out) noexcept {
  for (int x = 0; x < 8; ++x) transform<kShift>(in + x, out + x, 8);
}

template <int kShift>
void halve_portable(const int16_t* __restrict in, int16_t* __restrict out) noexcept {
  for (int x = 0; x < 8; ++x) halve<kShift>(in + x, out + x, 8);
}

// Note [flat columns]
// If a block has only zeros below its first row, libjpeg's first pass is a shift. The result is the same
// except for coefficients that no picture needs, beyond 13 bits: there the shift wraps and the full transform
// saturates.
inline bool is_zero(const int16_t* coefficients, int count) noexcept {
  return std::all_of(coefficients, coefficients + count, [](int16_t c) { return c == 0; });
}

void shift_first_row(const int16_t* in, int16_t* out) noexcept {
  for (int x = 0; x < 8; ++x) out[x] = static_cast<int16_t>(in[x] * (1 << kPassBits));
  for (int y = 1; y < 8; ++y) std::memcpy(out + 8 * y, out, 8 * sizeof *out);
}

void inverse_dct_portable(const DctBlock& block) noexcept {
  alignas(16) int16_t in[64], out[64];
  for (int i = 0; i < 64; ++i) in[i] = static_cast<int16_t>(block.coefficients[i] * block.quantisers[i]);
  if (is_zero(block.coefficients + 8, 56)) {
    shift_first_row(in, out);
  } else {
    transform_portable<kFirstShift>(in, out);
  }
  transpose_portable(out);
  transform_portable<kSecondShift>(out, in);
  transpose_portable(in);
  store_levels<8>(in, block.out, block.stride);
}

void halved_dct_portable(const DctBlock& block) noexcept {
  alignas(16) int16_t in[64], out[64] = {};
  for (int i = 0; i < 64; ++i) in[i] = static_cast<int16_t>(block.coefficients[i] * block.quantisers[i]);
  if (is_zero(block.coefficients + 8, 24) && is_zero(block.coefficients + 40, 24)) {
    shift_first_row(in, out);
  } else {
    halve_portable<kHalvedShift>(in, out);
  }
  transpose_portable(out);
  halve_portable<kHalvedShift + 2 * kPassBits + 3>(out, in);
  transpose_portable(in);
  store_levels<4>(in, block.out, block.stride);
}

}  // namespace

#if defined(TARPEG_AVX2)
// Multiplying and adding pairs is one instruction on x86. NEON has other ones, and needs 544 for a block of
// portable code, but 888 for what SIMDe makes of this.
#if defined(__x86_64__)
constexpr bool kHasPairs = true;
#else
constexpr bool kHasPairs = false;
#endif
#endif

void inverse_dct(const DctBlock* blocks, int count) noexcept {
  for (int at = 0, step; at < count; at += step) {
#if defined(TARPEG_AVX512)
    step = std::min(count - at, 4);  // AVX2 is faster for two
    const DctBlock* four = blocks + at;
    if (step > 2 && has_avx512() && inverse_dct_avx512(four[0], four[1], four[2], four[step - 1])) continue;
#endif
    step = std::min(count - at, 2);
#if defined(TARPEG_AVX2)
    if (kHasPairs && has_avx2() && inverse_dct_avx2(blocks[at], blocks[at + step - 1])) continue;
#endif
    for (int i = 0; i < step; ++i) inverse_dct_portable(blocks[at + i]);
  }
}

void halved_dct(const DctBlock* blocks, int count) noexcept {
  for (int at = 0, step; at < count; at += step) {
#if defined(TARPEG_AVX512)
    step = std::min(count - at, 4);
    const DctBlock* four = blocks + at;
    if (step > 2 && has_avx512() && halved_dct_avx512(four[0], four[1], four[2], four[step - 1])) continue;
#endif
    step = std::min(count - at, 2);
#if defined(TARPEG_AVX2)
    if (has_avx2() && halved_dct_avx2(blocks[at], blocks[at + step - 1])) continue;
#endif
    for (int i = 0; i < step; ++i) halved_dct_portable(blocks[at + i]);
  }
}

}  // namespace tarpeg
