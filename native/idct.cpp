#include "idct.h"

#include <algorithm>
#include <cstring>

#include "simd.h"

namespace tarpeg {
namespace {

// Constants of jidctint.c, 13 fractional bits.
constexpr int k0298 = 2446, k0390 = 3196, k0541 = 4433, k0765 = 6270, k0899 = 7373, k1175 = 9633,
              k1501 = 12299, k1847 = 15137, k1961 = 16069, k2053 = 16819, k2562 = 20995, k3072 = 25172;
constexpr int kConstBits = 13, kPassBits = 2;

inline int wrap(int value) noexcept { return static_cast<int16_t>(value); }

// Eight samples of one row or column, `step` apart.
void transform(const int16_t* in, int step, int shift, int16_t* out) noexcept {
  const int i0 = in[0], i1 = in[step], i2 = in[2 * step], i3 = in[3 * step], i4 = in[4 * step],
            i5 = in[5 * step], i6 = in[6 * step], i7 = in[7 * step];
  const int even2 = i2 * k0541 + i6 * (k0541 - k1847), even3 = i2 * (k0541 + k0765) + i6 * k0541;
  const int even0 = wrap(i0 + i4) * (1 << kConstBits), even1 = wrap(i0 - i4) * (1 << kConstBits);
  const int t10 = even0 + even3, t13 = even0 - even3, t11 = even1 + even2, t12 = even1 - even2;
  const int s3 = wrap(i7 + i3), s4 = wrap(i5 + i1);
  const int z3 = s3 * (k1175 - k1961) + s4 * k1175, z4 = s3 * k1175 + s4 * (k1175 - k0390);
  const int odd0 = i7 * (k0298 - k0899) + i1 * -k0899 + z3, odd3 = i7 * -k0899 + i1 * (k1501 - k0899) + z4;
  const int odd1 = i5 * (k2053 - k2562) + i3 * -k2562 + z4, odd2 = i5 * -k2562 + i3 * (k3072 - k2562) + z3;
  const int sums[8] = {t10 + odd3, t11 + odd2, t12 + odd1, t13 + odd0,
                       t13 - odd0, t12 - odd1, t11 - odd2, t10 - odd3};
  for (int i = 0; i < 8; ++i) {
    const int value = (sums[i] + (1 << (shift - 1))) >> shift;
    out[i * step] = static_cast<int16_t>(std::clamp(value, -32768, 32767));
  }
}

// Note [flat columns]
// Where a block has nothing below its first row, libjpeg's first pass is a shift. The result is the same but
// for coefficients that no picture needs, beyond 13 bits: there the shift wraps and the long way saturates.
void inverse_dct_portable(const DctBlock& block, ptrdiff_t stride) noexcept {
  int16_t work[64];
  for (int i = 0; i < 64; ++i) work[i] = static_cast<int16_t>(block.coefficients[i] * block.quantisers[i]);
  if (std::all_of(block.coefficients + 8, block.coefficients + 64, [](int16_t c) { return c == 0; })) {
    for (int i = 0; i < 64; ++i) work[i] = static_cast<int16_t>(work[i % 8] * (i < 8 ? 1 << kPassBits : 1));
  } else {
    for (int x = 0; x < 8; ++x) transform(work + x, 8, kConstBits - kPassBits, work + x);
  }
  for (int y = 0; y < 8; ++y) transform(work + 8 * y, 1, kConstBits + kPassBits + 3, work + 8 * y);
  for (int y = 0; y < 8; ++y) {
    for (int x = 0; x < 8; ++x) {
      block.out[y * stride + x] = static_cast<uint8_t>(std::clamp(work[8 * y + x] + 128, 0, 255));
    }
  }
}

#if defined(TARPEG_X86)

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

TARPEG_AVX2 inline Wide scaled(__m256i a) noexcept {
  const __m256i zero = _mm256_setzero_si256();
  return {_mm256_srai_epi32(_mm256_unpacklo_epi16(zero, a), 16 - kConstBits),
          _mm256_srai_epi32(_mm256_unpackhi_epi16(zero, a), 16 - kConstBits)};
}

template <int kShift>
TARPEG_AVX2 inline __m256i descale(Wide a) noexcept {
  const __m256i round = _mm256_set1_epi32(1 << (kShift - 1));
  return _mm256_packs_epi32(_mm256_srai_epi32(_mm256_add_epi32(a.low, round), kShift),
                            _mm256_srai_epi32(_mm256_add_epi32(a.high, round), kShift));
}

template <int kShift>
TARPEG_AVX2 inline void transform(Rows8* m) noexcept {
  __m256i* r = m->row;
  const Wide even3 = multiply(r[2], r[6], pair(k0541 + k0765, k0541));
  const Wide even2 = multiply(r[2], r[6], pair(k0541, k0541 - k1847));
  const Wide even0 = scaled(_mm256_add_epi16(r[0], r[4])), even1 = scaled(_mm256_sub_epi16(r[0], r[4]));
  const Wide t10 = add(even0, even3), t13 = subtract(even0, even3);
  const Wide t11 = add(even1, even2), t12 = subtract(even1, even2);
  const __m256i s3 = _mm256_add_epi16(r[7], r[3]), s4 = _mm256_add_epi16(r[5], r[1]);
  const Wide z3 = multiply(s3, s4, pair(k1175 - k1961, k1175)),
             z4 = multiply(s3, s4, pair(k1175, k1175 - k0390));
  const Wide odd0 = add(multiply(r[7], r[1], pair(k0298 - k0899, -k0899)), z3);
  const Wide odd3 = add(multiply(r[7], r[1], pair(-k0899, k1501 - k0899)), z4);
  const Wide odd1 = add(multiply(r[5], r[3], pair(k2053 - k2562, -k2562)), z4);
  const Wide odd2 = add(multiply(r[5], r[3], pair(-k2562, k3072 - k2562)), z3);
  r[0] = descale<kShift>(add(t10, odd3));
  r[7] = descale<kShift>(subtract(t10, odd3));
  r[1] = descale<kShift>(add(t11, odd2));
  r[6] = descale<kShift>(subtract(t11, odd2));
  r[2] = descale<kShift>(add(t12, odd1));
  r[5] = descale<kShift>(subtract(t12, odd1));
  r[3] = descale<kShift>(add(t13, odd0));
  r[4] = descale<kShift>(subtract(t13, odd0));
}

TARPEG_AVX2 inline __m128i dequantised(const DctBlock& block, int row) noexcept {
  return _mm_mullo_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(block.coefficients) + row),
                         _mm_loadu_si128(reinterpret_cast<const __m128i*>(block.quantisers) + row));
}

// Rows 2 i and 2 i + 1 of the first block below and of the second above in pairs[i], as bytes. False where
// only the portable code is right: see Note [flat columns].
TARPEG_AVX2 inline bool transform_avx2(const DctBlock& first, const DctBlock& second,
                                       __m256i* pairs) noexcept {
  Rows8 m;
  for (int i = 0; i < 8; ++i) m.row[i] = _mm256_set_m128i(dequantised(second, i), dequantised(first, i));
  const __m256i shifted = _mm256_slli_epi16(m.row[0], kPassBits);
  const __m256i same = _mm256_cmpeq_epi16(_mm256_srai_epi16(shifted, kPassBits), m.row[0]);
  if (__builtin_expect(_mm256_movemask_epi8(same) != -1, 0)) return false;
  transform<kConstBits - kPassBits>(&m);
  transpose(&m);
  transform<kConstBits + kPassBits + 3>(&m);
  transpose(&m);
  const __m256i center = _mm256_set1_epi8(-128);
  for (int i = 0; i < 4; ++i) {
    pairs[i] = _mm256_xor_si256(_mm256_packs_epi16(m.row[2 * i], m.row[2 * i + 1]), center);
  }
  return true;
}

TARPEG_AVX2 bool inverse_dct_avx2(const DctBlock& first, const DctBlock& second, ptrdiff_t stride) noexcept {
  __m256i pairs[4];
  if (!transform_avx2(first, second, pairs)) return false;
  for (int i = 0; i < 4; ++i) {
    const __m128i a = _mm256_castsi256_si128(pairs[i]), b = _mm256_extracti128_si256(pairs[i], 1);
    _mm_storel_epi64(reinterpret_cast<__m128i*>(first.out + 2 * i * stride), a);
    _mm_storeh_pd(reinterpret_cast<double*>(first.out + (2 * i + 1) * stride), _mm_castsi128_pd(a));
    _mm_storel_epi64(reinterpret_cast<__m128i*>(second.out + 2 * i * stride), b);
    _mm_storeh_pd(reinterpret_cast<double*>(second.out + (2 * i + 1) * stride), _mm_castsi128_pd(b));
  }
  return true;
}

TARPEG_AVX2 bool halved_dct_avx2(const DctBlock& first, const DctBlock& second, ptrdiff_t stride) noexcept {
  __m256i pairs[4];
  if (!transform_avx2(first, second, pairs)) return false;
  const __m256i ones = _mm256_set1_epi8(1), two = _mm256_set1_epi16(2);
  for (int i = 0; i < 4; ++i) {
    const __m256i across = _mm256_maddubs_epi16(pairs[i], ones);  // four sums of each row
    const __m256i sum = _mm256_add_epi16(across, _mm256_srli_si256(across, 8));
    const __m256i mean = _mm256_srli_epi16(_mm256_add_epi16(sum, two), 2);
    const __m256i bytes = _mm256_packus_epi16(mean, mean);
    const int a = _mm256_extract_epi32(bytes, 0), b = _mm256_extract_epi32(bytes, 4);
    std::memcpy(first.out + i * stride, &a, 4);
    std::memcpy(second.out + i * stride, &b, 4);
  }
  return true;
}

// Sums of at most 64 bytes fit 16 bits: down first, then across.
template <int kDown, int kAcross>
TARPEG_AVX2 void reduce_avx2(const uint8_t* block, uint8_t* out, ptrdiff_t stride) noexcept {
  constexpr int kCount = kDown * kAcross, kShift = __builtin_ctz(kCount);
  const __m128i round = _mm_set1_epi16(kCount >> 1);
  for (int y = 0; y < 8; y += kDown, out += stride) {
    __m128i sum = _mm_setzero_si128();
    for (int i = 0; i < kDown; ++i) {
      const __m128i row = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(block + 8 * (y + i)));
      sum = _mm_add_epi16(sum, _mm_cvtepu8_epi16(row));
    }
    for (int times = 1; times < kAcross; times *= 2) sum = _mm_hadd_epi16(sum, sum);
    const __m128i mean = _mm_srli_epi16(_mm_add_epi16(sum, round), kShift);
    const int64_t bytes = _mm_cvtsi128_si64(_mm_packus_epi16(mean, mean));
    std::memcpy(out, &bytes, 8 / kAcross);
  }
}

#endif

}  // namespace

void inverse_dct(const DctBlock& first, const DctBlock& second, ptrdiff_t stride) noexcept {
#if defined(TARPEG_X86)
  if (has_avx2() && inverse_dct_avx2(first, second, stride)) return;
#endif
  inverse_dct_portable(first, stride);
  inverse_dct_portable(second, stride);
}

void halved_dct(const DctBlock& first, const DctBlock& second, ptrdiff_t stride) noexcept {
#if defined(TARPEG_X86)
  if (has_avx2() && halved_dct_avx2(first, second, stride)) return;
#endif
  for (const DctBlock* block : {&first, &second}) {
    uint8_t samples[64];
    inverse_dct_portable({block->coefficients, block->quantisers, samples}, 8);
    reduce_block(samples, 2, 2, block->out, stride);
  }
}

void reduce_block(const uint8_t* block, int down_by, int across_by, uint8_t* out, ptrdiff_t stride) noexcept {
#if defined(TARPEG_X86)
  if (down_by == across_by && has_avx2()) {
    if (down_by == 1) return reduce_avx2<1, 1>(block, out, stride);
    if (down_by == 2) return reduce_avx2<2, 2>(block, out, stride);
    if (down_by == 4) return reduce_avx2<4, 4>(block, out, stride);
    return reduce_avx2<8, 8>(block, out, stride);
  }
#endif
  const int count = down_by * across_by, shift = __builtin_ctz(static_cast<unsigned>(count));
  for (int y = 0; y < 8; y += down_by, out += stride) {
    for (int x = 0; x < 8; x += across_by) {
      int sum = count >> 1;
      for (int i = 0; i < down_by; ++i) {
        for (int j = 0; j < across_by; ++j) sum += block[8 * (y + i) + x + j];
      }
      out[x / across_by] = static_cast<uint8_t>(sum >> shift);
    }
  }
}

}  // namespace tarpeg
