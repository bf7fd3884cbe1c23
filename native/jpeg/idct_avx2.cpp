#include <cstring>

#include "jpeg/idct_code.h"

#if defined(TARPEG_AVX2)

namespace tarpeg {
namespace {

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

}  // namespace

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

namespace {

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

}  // namespace

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

}  // namespace tarpeg

#endif
