#include "jpeg/idct.h"

#include <algorithm>
#include <cstring>

#include "base/simd.h"

namespace tarpeg {
namespace {

// Constants of jidctint.c and jidctred.c, 13 fractional bits.
constexpr int k0298 = 2446, k0390 = 3196, k0541 = 4433, k0765 = 6270, k0899 = 7373, k1175 = 9633,
              k1501 = 12299, k1847 = 15137, k1961 = 16069, k2053 = 16819, k2562 = 20995, k3072 = 25172;
constexpr int k0211 = 1730, k0509 = 4176, k0601 = 4926, k1061 = 8697, k1451 = 11893, k2172 = 17799;
constexpr int kConstBits = 13, kPassBits = 2;
constexpr int kFirstShift = kConstBits - kPassBits, kSecondShift = kConstBits + kPassBits + 3;
// For the first pass of means of two; the additional bit halves the sums.
constexpr int kHalvedShift = kConstBits - kPassBits + 1;

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

// Sums wrap. Those of the second pass are small after the shift.
template <int kShift>
inline int16_t descaled(uint32_t sum) noexcept {
  int value = static_cast<int>(sum + (1u << (kShift - 1))) >> kShift;
  if (kShift < 16) value = std::min(std::max(value, -32768), 32767);
  return static_cast<int16_t>(value);
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
  for (int x = 0; x < 8; ++x) {
    const int16_t i0 = in[x], i1 = in[8 + x], i2 = in[16 + x], i3 = in[24 + x], i4 = in[32 + x],
                  i5 = in[40 + x], i6 = in[48 + x], i7 = in[56 + x];
    const int even2 = i2 * k0541 + i6 * (k0541 - k1847), even3 = i2 * (k0541 + k0765) + i6 * k0541;
    const int16_t sum04 = static_cast<int16_t>(i0 + i4), rest04 = static_cast<int16_t>(i0 - i4);
    const int even0 = sum04 * (1 << kConstBits), even1 = rest04 * (1 << kConstBits);
    const int t10 = even0 + even3, t13 = even0 - even3, t11 = even1 + even2, t12 = even1 - even2;
    const int16_t s3 = static_cast<int16_t>(i7 + i3), s4 = static_cast<int16_t>(i5 + i1);
    const int z3 = s3 * (k1175 - k1961) + s4 * k1175, z4 = s3 * k1175 + s4 * (k1175 - k0390);
    const int odd0 = i7 * (k0298 - k0899) + i1 * -k0899 + z3, odd3 = i7 * -k0899 + i1 * (k1501 - k0899) + z4;
    const int odd1 = i5 * (k2053 - k2562) + i3 * -k2562 + z4, odd2 = i5 * -k2562 + i3 * (k3072 - k2562) + z3;
    out[x] = descaled<kShift>(t10 + odd3);
    out[8 + x] = descaled<kShift>(t11 + odd2);
    out[16 + x] = descaled<kShift>(t12 + odd1);
    out[24 + x] = descaled<kShift>(t13 + odd0);
    out[32 + x] = descaled<kShift>(t13 - odd0);
    out[40 + x] = descaled<kShift>(t12 - odd1);
    out[48 + x] = descaled<kShift>(t11 - odd2);
    out[56 + x] = descaled<kShift>(t10 - odd3);
  }
}

// Four means of two neighbours each, of every column of eight rows: equal to those of transform(), except for
// rounding. The fifth coefficient belongs to a wave that cancels out in every pair.
template <int kShift>
void halve_portable(const int16_t* __restrict in, int16_t* __restrict out) noexcept {
  for (int x = 0; x < 8; ++x) {
    const auto times = [in, x](int k, int factor) { return static_cast<uint32_t>(in[8 * k + x] * factor); };
    const uint32_t center = static_cast<uint32_t>(in[x]) << (kConstBits + 1);
    const uint32_t even = times(2, k1847) - times(6, k0765);
    const uint32_t odd1 = times(1, k1061) - times(3, k2172) + times(5, k1451) - times(7, k0211);
    const uint32_t odd0 = times(1, k2562) + times(3, k0899) - times(5, k0601) - times(7, k0509);
    out[x] = descaled<kShift>(center + even + odd0);
    out[8 + x] = descaled<kShift>(center - even + odd1);
    out[16 + x] = descaled<kShift>(center - even - odd1);
    out[24 + x] = descaled<kShift>(center + even - odd0);
  }
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

#if defined(TARPEG_AVX2)

// Each vector holds one row of the first block below and the same row of the second above.
struct Rows8 {
  __m256i row[8];
};

TARPEG_AVX2 inline void transpose(Rows8* m) noexcept {
  __m256i* r = m->row;
  __m256i a[8], b[8];
  for (int i = 0; i < 4; ++i) {
    a[2 * i] = _mm256_unpacklo_epi16(r[2 * i], r[2 * i + 1]);
    a[2 * i + 1] = _mm256_unpackhi_epi16(r[2 * i], r[2 * i + 1]);
  }
  for (int i = 0; i < 2; ++i) {
    b[4 * i] = _mm256_unpacklo_epi32(a[4 * i], a[4 * i + 2]);
    b[4 * i + 1] = _mm256_unpackhi_epi32(a[4 * i], a[4 * i + 2]);
    b[4 * i + 2] = _mm256_unpacklo_epi32(a[4 * i + 1], a[4 * i + 3]);
    b[4 * i + 3] = _mm256_unpackhi_epi32(a[4 * i + 1], a[4 * i + 3]);
  }
  for (int i = 0; i < 4; ++i) {
    r[2 * i] = _mm256_unpacklo_epi64(b[i], b[4 + i]);
    r[2 * i + 1] = _mm256_unpackhi_epi64(b[i], b[4 + i]);
  }
}

TARPEG_AVX2 inline __m256i pair(int low, int high) noexcept {
  return _mm256_set1_epi32(
      static_cast<int>(static_cast<uint32_t>(high) << 16 | (static_cast<uint32_t>(low) & 0xFFFF)));
}

// a * low + b * high in 32 bits, for both halves of the interleaved vectors.
struct Wide {
  __m256i low, high;
};

TARPEG_AVX2 inline Wide multiply(__m256i a, __m256i b, __m256i factors) noexcept {
  return {_mm256_madd_epi16(_mm256_unpacklo_epi16(a, b), factors),
          _mm256_madd_epi16(_mm256_unpackhi_epi16(a, b), factors)};
}

TARPEG_AVX2 inline Wide add(Wide a, Wide b) noexcept {
  return {_mm256_add_epi32(a.low, b.low), _mm256_add_epi32(a.high, b.high)};
}

TARPEG_AVX2 inline Wide subtract(Wide a, Wide b) noexcept {
  return {_mm256_sub_epi32(a.low, b.low), _mm256_sub_epi32(a.high, b.high)};
}

// a * 2^kBits and the rounding term of a shift by kShift.
template <int kBits, int kShift>
TARPEG_AVX2 inline Wide scaled(__m256i a) noexcept {
  return multiply(a, _mm256_set1_epi16(1 << 10), pair(1 << kBits, 1 << (kShift - 11)));
}

template <int kShift>
TARPEG_AVX2 inline __m256i descale(Wide a) noexcept {
  return _mm256_packs_epi32(_mm256_srai_epi32(a.low, kShift), _mm256_srai_epi32(a.high, kShift));
}

// Sums of eight rows or columns, with the rounding term of a shift by kShift.
template <int kShift, class Put>
TARPEG_AVX2 inline void sum_up(const __m256i* r, Put put) noexcept {
  const Wide even3 = multiply(r[2], r[6], pair(k0541 + k0765, k0541));
  const Wide even2 = multiply(r[2], r[6], pair(k0541, k0541 - k1847));
  const Wide even0 = scaled<kConstBits, kShift>(_mm256_add_epi16(r[0], r[4]));
  const Wide even1 = scaled<kConstBits, kShift>(_mm256_sub_epi16(r[0], r[4]));
  const Wide t10 = add(even0, even3), t13 = subtract(even0, even3);
  const Wide t11 = add(even1, even2), t12 = subtract(even1, even2);
  const __m256i s3 = _mm256_add_epi16(r[7], r[3]), s4 = _mm256_add_epi16(r[5], r[1]);
  const Wide z3 = multiply(s3, s4, pair(k1175 - k1961, k1175));
  const Wide odd0 = add(multiply(r[7], r[1], pair(k0298 - k0899, -k0899)), z3);
  put(3, add(t13, odd0));
  put(4, subtract(t13, odd0));
  const Wide odd2 = add(multiply(r[5], r[3], pair(-k2562, k3072 - k2562)), z3);
  put(1, add(t11, odd2));
  put(6, subtract(t11, odd2));
  const Wide z4 = multiply(s3, s4, pair(k1175, k1175 - k0390));
  const Wide odd1 = add(multiply(r[5], r[3], pair(k2053 - k2562, -k2562)), z4);
  put(2, add(t12, odd1));
  put(5, subtract(t12, odd1));
  const Wide odd3 = add(multiply(r[7], r[1], pair(-k0899, k1501 - k0899)), z4);
  put(0, add(t10, odd3));
  put(7, subtract(t10, odd3));
}

TARPEG_AVX2 inline __m128i dequantised(const DctBlock& block, int row) noexcept {
  return _mm_mullo_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(block.coefficients) + row),
                         _mm_loadu_si128(reinterpret_cast<const __m128i*>(block.quantisers) + row));
}

// False if only the portable code is correct: see Note [flat columns].
TARPEG_AVX2 inline bool load_avx2(const DctBlock& first, const DctBlock& second, Rows8* m) noexcept {
  for (int i = 0; i < 8; ++i) m->row[i] = _mm256_set_m128i(dequantised(second, i), dequantised(first, i));
  const __m256i shifted = _mm256_slli_epi16(m->row[0], kPassBits);
  const __m256i same = _mm256_cmpeq_epi16(_mm256_srai_epi16(shifted, kPassBits), m->row[0]);
  return __builtin_expect(_mm256_movemask_epi8(same) == -1, 1);
}

TARPEG_AVX2 bool inverse_dct_avx2(const DctBlock& first, const DctBlock& second) noexcept {
  Rows8 m, sums;
  if (!load_avx2(first, second, &m)) return false;
  sum_up<kFirstShift>(m.row, [&](int i, Wide sum) TARPEG_AVX2 { sums.row[i] = descale<kFirstShift>(sum); });
  transpose(&sums);
  // A sum shifted by kSecondShift fits 16 bits: the upper halves, shifted by the rest. Rows 0, 4, 1, 5, 2, 6,
  // 3, 7 of a column each.
  __m256i c[8];
  sum_up<kSecondShift>(sums.row, [&](int i, Wide sum) TARPEG_AVX2 {
    const __m256i rows = _mm256_blend_epi16(_mm256_srli_epi32(sum.low, 16), sum.high, 0xAA);
    c[i] = _mm256_srai_epi16(rows, kSecondShift - 16);
  });
  const __m256i c04 = _mm256_packs_epi16(c[0], c[4]), c15 = _mm256_packs_epi16(c[1], c[5]);
  const __m256i c26 = _mm256_packs_epi16(c[2], c[6]), c37 = _mm256_packs_epi16(c[3], c[7]);
  const __m256i c01 = _mm256_unpacklo_epi8(c04, c15), c45 = _mm256_unpackhi_epi8(c04, c15);
  const __m256i c23 = _mm256_unpacklo_epi8(c26, c37), c67 = _mm256_unpackhi_epi8(c26, c37);
  const __m256i left[2] = {_mm256_unpacklo_epi16(c01, c23), _mm256_unpackhi_epi16(c01, c23)};
  const __m256i right[2] = {_mm256_unpacklo_epi16(c45, c67), _mm256_unpackhi_epi16(c45, c67)};
  const __m256i center = _mm256_set1_epi8(-128);
  for (int i = 0; i < 4; ++i) {
    const __m256i two = i % 2 ? _mm256_unpackhi_epi32(left[i / 2], right[i / 2])
                              : _mm256_unpacklo_epi32(left[i / 2], right[i / 2]);
    const __m256i rows = _mm256_xor_si256(two, center);
    const __m128i a = _mm256_castsi256_si128(rows), b = _mm256_extracti128_si256(rows, 1);
    _mm_storel_epi64(reinterpret_cast<__m128i*>(first.out + i * first.stride), a);
    _mm_storeh_pd(reinterpret_cast<double*>(first.out + (i + 4) * first.stride), _mm_castsi128_pd(a));
    _mm_storel_epi64(reinterpret_cast<__m128i*>(second.out + i * second.stride), b);
    _mm_storeh_pd(reinterpret_cast<double*>(second.out + (i + 4) * second.stride), _mm_castsi128_pd(b));
  }
  return true;
}

// Four means of two from the eight rows of m, in its first four.
TARPEG_AVX2 inline void halve_rows(Rows8* m) noexcept {
  __m256i* r = m->row;
  const Wide even = multiply(r[2], r[6], pair(k1847, -k0765)),
             center = scaled<kConstBits + 1, kHalvedShift>(r[0]);
  const Wide t10 = add(center, even), t12 = subtract(center, even);
  const Wide odd1 = add(multiply(r[1], r[3], pair(k1061, -k2172)), multiply(r[5], r[7], pair(k1451, -k0211)));
  const Wide odd0 = add(multiply(r[1], r[3], pair(k2562, k0899)), multiply(r[5], r[7], pair(-k0601, -k0509)));
  r[0] = descale<kHalvedShift>(add(t10, odd0));
  r[1] = descale<kHalvedShift>(add(t12, odd1));
  r[2] = descale<kHalvedShift>(subtract(t12, odd1));
  r[3] = descale<kHalvedShift>(subtract(t10, odd0));
}

// 32 bits of four rows.
TARPEG_AVX2 inline __m256i descaled_last(__m256i a) noexcept {
  constexpr int kShift = kHalvedShift + 2 * kPassBits + 3;
  return _mm256_srai_epi32(_mm256_add_epi32(a, _mm256_set1_epi32(1 << (kShift - 1))), kShift);
}

TARPEG_AVX2 bool halved_dct_avx2(const DctBlock& first, const DctBlock& second) noexcept {
  Rows8 m;
  if (!load_avx2(first, second, &m)) return false;
  halve_rows(&m);
  // Columns of the four rows: 0 and 1, 2 and 3, ...
  const __m256i* r = m.row;
  const __m256i a = _mm256_unpacklo_epi16(r[0], r[1]), b = _mm256_unpacklo_epi16(r[2], r[3]);
  const __m256i c = _mm256_unpackhi_epi16(r[0], r[1]), d = _mm256_unpackhi_epi16(r[2], r[3]);
  const __m256i c01 = _mm256_unpacklo_epi32(a, b), c23 = _mm256_unpackhi_epi32(a, b);
  const __m256i c45 = _mm256_unpacklo_epi32(c, d), c67 = _mm256_unpackhi_epi32(c, d);
  const __m256i c13 = _mm256_unpackhi_epi16(c01, c23), c57 = _mm256_unpackhi_epi16(c45, c67);
  const __m256i center =
      _mm256_srai_epi32(_mm256_unpacklo_epi16(_mm256_setzero_si256(), c01), 15 - kConstBits);
  const __m256i even = _mm256_madd_epi16(_mm256_unpacklo_epi16(c23, c67), pair(k1847, -k0765));
  const __m256i odd1 = _mm256_add_epi32(_mm256_madd_epi16(c13, pair(k1061, -k2172)),
                                        _mm256_madd_epi16(c57, pair(k1451, -k0211)));
  const __m256i odd0 = _mm256_add_epi32(_mm256_madd_epi16(c13, pair(k2562, k0899)),
                                        _mm256_madd_epi16(c57, pair(-k0601, -k0509)));
  const __m256i t10 = _mm256_add_epi32(center, even), t12 = _mm256_sub_epi32(center, even);
  // Words: column 0 of the four rows, column 2; columns 1 and 3. Then bytes, row by row.
  const __m256i w02 = _mm256_packs_epi32(descaled_last(_mm256_add_epi32(t10, odd0)),
                                         descaled_last(_mm256_sub_epi32(t12, odd1)));
  const __m256i w13 = _mm256_packs_epi32(descaled_last(_mm256_add_epi32(t12, odd1)),
                                         descaled_last(_mm256_sub_epi32(t10, odd0)));
  const __m256i order = _mm256_setr_epi8(0, 8, 4, 12, 1, 9, 5, 13, 2, 10, 6, 14, 3, 11, 7, 15, 0, 8, 4, 12, 1,
                                         9, 5, 13, 2, 10, 6, 14, 3, 11, 7, 15);
  const __m256i bytes =
      _mm256_xor_si256(_mm256_shuffle_epi8(_mm256_packs_epi16(w02, w13), order), _mm256_set1_epi8(-128));
  alignas(32) uint8_t rows[32];
  _mm256_store_si256(reinterpret_cast<__m256i*>(rows), bytes);
  for (int i = 0; i < 4; ++i) {
    std::memcpy(first.out + i * first.stride, rows + 4 * i, 4);
    std::memcpy(second.out + i * second.stride, rows + 16 + 4 * i, 4);
  }
  return true;
}

#endif

#if defined(TARPEG_AVX512)

// Two blocks, the first in the lower 256 bits of each vector. A 32-bit element holds two of the numbers that
// are multiplied and added: 2 and 6, 7 and 1, 3 and 5, 0 and 4 of a column or row. Nothing is interleaved
// inside the passes, because the first takes the columns in the order of kColumns: its results are the pairs
// of the second.
struct Pairs {
  __m512i p26, p71, p35, p04;
};

constexpr int kColumns[8] = {2, 6, 7, 1, 3, 5, 0, 4};

template <class T, int kCount>
struct alignas(64) Places {
  T place[kCount];
};

// The pairs of two rows of a block in all columns, and of two others.
constexpr Places<uint16_t, 32> pairs_of(int first, int second, int third, int fourth) {
  const int rows[4] = {first, second, third, fourth};
  Places<uint16_t, 32> places{};
  for (int i = 0; i < 32; ++i)
    places.place[i] = static_cast<uint16_t>(8 * rows[i / 16 * 2 + i % 2] + kColumns[i / 2 % 8]);
  return places;
}

// Two vectors of two rows each -> a pair of columns of these four rows in each block, then the next pair.
constexpr Places<uint32_t, 16> turned_pairs(int pair) {
  Places<uint32_t, 16> places{};
  for (int i = 0; i < 16; ++i) {
    const int row = i % 4, block = i / 4 % 2, next = i / 8;
    places.place[i] = static_cast<uint32_t>(row / 2 * 16 + block * 8 + pair / 2 * 4 + row % 2 * 2 + next);
  }
  return places;
}

// Two vectors of four columns each, two by two, rows 0 to 3 and then 4 to 7 of each block -> rows of both
// blocks.
constexpr Places<uint16_t, 32> rows_of(int first) {
  Places<uint16_t, 32> places{};
  for (int i = 0; i < 32; ++i) {
    const int row = first + i / 8, block = i / 4 % 2, columns = i % 4;
    places.place[i] =
        static_cast<uint16_t>(columns / 2 * 32 + (row / 4 * 2 + block) * 8 + columns % 2 * 4 + row % 4);
  }
  return places;
}

constexpr auto kPairs2671 = pairs_of(2, 6, 7, 1), kPairs3504 = pairs_of(3, 5, 0, 4);
constexpr auto kTurned2671 = turned_pairs(0), kTurned3504 = turned_pairs(2);
constexpr auto kUpperRows = rows_of(0), kLowerRows = rows_of(4);

// Two vectors of two blocks each, calculated side by side: one waits while the other works.
struct Twice {
  __m512i a, b;
};

struct TwicePairs {
  Twice p26, p71, p35, p04;
};

TARPEG_AVX512 inline Twice add(Twice x, Twice y) noexcept {
  return {_mm512_add_epi32(x.a, y.a), _mm512_add_epi32(x.b, y.b)};
}

TARPEG_AVX512 inline Twice subtract(Twice x, Twice y) noexcept {
  return {_mm512_sub_epi32(x.a, y.a), _mm512_sub_epi32(x.b, y.b)};
}

TARPEG_AVX512 inline Twice add_words(Twice x, Twice y) noexcept {
  return {_mm512_add_epi16(x.a, y.a), _mm512_add_epi16(x.b, y.b)};
}

TARPEG_AVX512 inline Twice subtract_words(Twice x, Twice y) noexcept {
  return {_mm512_sub_epi16(x.a, y.a), _mm512_sub_epi16(x.b, y.b)};
}

// sum + the products of both numbers of each pair with the factors.
TARPEG_AVX512 inline Twice add_products(Twice sum, Twice pairs, const int& factors) noexcept {
  const __m512i vector = _mm512_set1_epi32(factors);
  return {_mm512_dpwssd_epi32(sum.a, pairs.a, vector), _mm512_dpwssd_epi32(sum.b, pairs.b, vector)};
}

constexpr int factors(int low, int high) {
  return static_cast<int>(static_cast<uint32_t>(high) << 16 | (static_cast<uint32_t>(low) & 0xFFFF));
}

struct Factors {
  int sum = factors(1 << kConstBits, 1 << kConstBits),
      difference = factors(1 << kConstBits, -(1 << kConstBits));
  int one = factors(1 << kConstBits, 0), t10 = factors(k0541 + k0765, k0541);
  int t13 = factors(-k0541 - k0765, -k0541), t11 = factors(k0541, k0541 - k1847);
  int t12 = factors(-k0541, k1847 - k0541), z3 = factors(k1175 - k1961, k1175);
  int z4 = factors(k1175, k1175 - k0390), odd0 = factors(k0298 - k0899, -k0899);
  int odd3 = factors(-k0899, k1501 - k0899), odd1 = factors(-k2562, k2053 - k2562);
  int odd2 = factors(k3072 - k2562, -k2562), rounds[2] = {1 << (kFirstShift - 1), 1 << (kSecondShift - 1)};
};
constexpr Factors kFactors;

// The sums of transform(), with the rounding term. kWraps: whether sums of rows 0 and 4 may need more than 16
// bits.
template <bool kWraps>
TARPEG_AVX512 inline void sum_up(const Factors& f, const TwicePairs& in, int round, Twice* sums) noexcept {
  const __m512i vector = _mm512_set1_epi32(round), zero = _mm512_setzero_si512();
  const Twice rounds{vector, vector}, none{zero, zero};
  const Twice turned{_mm512_rol_epi32(in.p04.a, 16), _mm512_rol_epi32(in.p04.b, 16)};
  const Twice even0 =
      kWraps ? add_products(rounds, add_words(in.p04, turned), f.one) : add_products(rounds, in.p04, f.sum);
  const Twice even1 = kWraps ? add_products(rounds, subtract_words(in.p04, turned), f.one)
                             : add_products(rounds, in.p04, f.difference);
  const Twice s34 = add_words(in.p71, in.p35);
  const Twice z3 = add_products(none, s34, f.z3), z4 = add_products(none, s34, f.z4);
  const Twice t10 = add_products(even0, in.p26, f.t10), odd3 = add_products(z4, in.p71, f.odd3);
  sums[0] = add(t10, odd3);
  sums[7] = subtract(t10, odd3);
  const Twice t11 = add_products(even1, in.p26, f.t11), odd2 = add_products(z3, in.p35, f.odd2);
  sums[1] = add(t11, odd2);
  sums[6] = subtract(t11, odd2);
  const Twice t12 = add_products(even1, in.p26, f.t12), odd1 = add_products(z4, in.p35, f.odd1);
  sums[2] = add(t12, odd1);
  sums[5] = subtract(t12, odd1);
  const Twice t13 = add_products(even0, in.p26, f.t13), odd0 = add_products(z3, in.p71, f.odd0);
  sums[3] = add(t13, odd0);
  sums[4] = subtract(t13, odd0);
}

// False if only the portable code is correct: see Note [flat columns].
TARPEG_AVX512 inline bool load_avx512(const DctBlock& first, const DctBlock& second, Pairs* pairs) noexcept {
  const DctBlock* const blocks[2] = {&first, &second};
  __m512i p2671[2], p3504[2];
  for (int i = 0; i < 2; ++i) {
    const int16_t* c = blocks[i]->coefficients;
    const uint16_t* q = blocks[i]->quantisers;
    const __m512i upper = _mm512_mullo_epi16(_mm512_loadu_si512(c), _mm512_loadu_si512(q));
    const __m512i lower = _mm512_mullo_epi16(_mm512_loadu_si512(c + 32), _mm512_loadu_si512(q + 32));
    p2671[i] = _mm512_permutex2var_epi16(upper, _mm512_load_si512(&kPairs2671), lower);
    p3504[i] = _mm512_permutex2var_epi16(upper, _mm512_load_si512(&kPairs3504), lower);
  }
  *pairs = {_mm512_shuffle_i64x2(p2671[0], p2671[1], 0x44), _mm512_shuffle_i64x2(p2671[0], p2671[1], 0xEE),
            _mm512_shuffle_i64x2(p3504[0], p3504[1], 0x44), _mm512_shuffle_i64x2(p3504[0], p3504[1], 0xEE)};
  // The first row must keep its value if it is shifted by kPassBits; so must the fifth, which does no harm.
  const __m512i placed = _mm512_add_epi16(pairs->p04, _mm512_set1_epi16(1 << (15 - kPassBits)));
  const __m512i beyond = _mm512_set1_epi16(static_cast<int16_t>(0xFFFF << (16 - kPassBits)));
  return __builtin_expect(_mm512_test_epi16_mask(placed, beyond) == 0, 1);
}

// The pairs of columns from vectors of two rows each.
TARPEG_AVX512 inline Pairs turned(const __m512i* rows) noexcept {
  const __m512i places2671 = _mm512_load_si512(&kTurned2671), places3504 = _mm512_load_si512(&kTurned3504);
  const __m512i upper2671 = _mm512_permutex2var_epi32(rows[0], places2671, rows[1]);
  const __m512i upper3504 = _mm512_permutex2var_epi32(rows[0], places3504, rows[1]);
  const __m512i lower2671 = _mm512_permutex2var_epi32(rows[2], places2671, rows[3]);
  const __m512i lower3504 = _mm512_permutex2var_epi32(rows[2], places3504, rows[3]);
  return {_mm512_shuffle_i64x2(upper2671, lower2671, 0x44), _mm512_shuffle_i64x2(upper2671, lower2671, 0xEE),
          _mm512_shuffle_i64x2(upper3504, lower3504, 0x44), _mm512_shuffle_i64x2(upper3504, lower3504, 0xEE)};
}

TARPEG_AVX512 inline void store_avx512(const DctBlock& first, const DctBlock& second,
                                       const __m512i* columns) noexcept {
  const __m512i center = _mm512_set1_epi8(-128);
  const __m512i left = _mm512_xor_si512(_mm512_packs_epi16(columns[0], columns[1]), center);
  const __m512i right = _mm512_xor_si512(_mm512_packs_epi16(columns[2], columns[3]), center);
  const __m512i halves[2] = {_mm512_permutex2var_epi16(left, _mm512_load_si512(&kUpperRows), right),
                             _mm512_permutex2var_epi16(left, _mm512_load_si512(&kLowerRows), right)};
  // Copies, because bytes that are stored could be anything's.
  uint8_t *out = first.out, *other = second.out;
  const ptrdiff_t step = first.stride, other_step = second.stride;
  const bool side_by_side = other == out + 8;
  for (const __m512i rows : halves) {
    const __m128i lines[4] = {_mm512_castsi512_si128(rows), _mm512_extracti64x2_epi64(rows, 1),
                              _mm512_extracti64x2_epi64(rows, 2), _mm512_extracti64x2_epi64(rows, 3)};
    for (const __m128i line : lines) {
      if (side_by_side) {
        _mm_storeu_si128(reinterpret_cast<__m128i*>(out), line);
      } else {
        _mm_storel_epi64(reinterpret_cast<__m128i*>(out), line);
        _mm_storeh_pd(reinterpret_cast<double*>(other), _mm_castsi128_pd(line));
        other += other_step;
      }
      out += step;
    }
  }
}

TARPEG_AVX512 bool inverse_dct_avx512(const DctBlock& first, const DctBlock& second, const DctBlock& third,
                                      const DctBlock& fourth) noexcept {
  const Factors* f = &kFactors;
  asm("" : "+r"(f));  // else the compiler moves each factor through a general register
  Pairs a, b;
  if (!load_avx512(first, second, &a) || !load_avx512(third, fourth, &b)) return false;
  Twice sums[8];
  __m512i a4[4], b4[4];
  sum_up<false>(*f, {{a.p26, b.p26}, {a.p71, b.p71}, {a.p35, b.p35}, {a.p04, b.p04}}, f->rounds[0], sums);
  for (int i = 0; i < 4; ++i) {
    const Twice even = sums[2 * i], odd = sums[2 * i + 1];
    a4[i] = _mm512_packs_epi32(_mm512_srai_epi32(even.a, kFirstShift), _mm512_srai_epi32(odd.a, kFirstShift));
    b4[i] = _mm512_packs_epi32(_mm512_srai_epi32(even.b, kFirstShift), _mm512_srai_epi32(odd.b, kFirstShift));
  }
  a = turned(a4);
  b = turned(b4);
  sum_up<true>(*f, {{a.p26, b.p26}, {a.p71, b.p71}, {a.p35, b.p35}, {a.p04, b.p04}}, f->rounds[1], sums);
  // As in AVX2, the upper halves of the sums; two columns side by side.
  for (int i = 0; i < 4; ++i) {
    const Twice even = sums[2 * i], odd = sums[2 * i + 1];
    a4[i] = _mm512_srai_epi16(_mm512_mask_blend_epi16(0xAAAAAAAA, _mm512_srli_epi32(even.a, 16), odd.a),
                              kSecondShift - 16);
    b4[i] = _mm512_srai_epi16(_mm512_mask_blend_epi16(0xAAAAAAAA, _mm512_srli_epi32(even.b, 16), odd.b),
                              kSecondShift - 16);
  }
  store_avx512(first, second, a4);
  store_avx512(third, fourth, b4);
  return true;
}

#endif

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
    step = std::min(count - at, 2);
#if defined(TARPEG_AVX2)
    if (has_avx2() && halved_dct_avx2(blocks[at], blocks[at + step - 1])) continue;
#endif
    for (int i = 0; i < step; ++i) halved_dct_portable(blocks[at + i]);
  }
}

}  // namespace tarpeg
