#include "image/row_passes.h"

#include <algorithm>

#include "base/simd.h"

namespace tarpeg {
namespace {

constexpr int kMostPairs = 5;  // unrolled

// See Note [plain loops] in jpeg/idct.cpp.
inline int16_t saturated(int value) noexcept {
  value = value < INT16_MIN ? INT16_MIN : value;
  return static_cast<int16_t>(value > INT16_MAX ? INT16_MAX : value);
}

// Adds a row and the next one, weighted, to `count` sums.
template <class T>
void add_rows(const T* __restrict even, const T* __restrict odd, int32_t weights, size_t count,
              int32_t* __restrict sums) noexcept {
  const int16_t first = static_cast<int16_t>(weights & 0xFFFF), second = static_cast<int16_t>(weights >> 16);
  for (size_t x = 0; x < count; ++x) {
    const int16_t a = even[x], b = odd[x];
    sums[x] += a * first + b * second;
  }
}

// All weighted rows: `length` numbers, rounded up to a multiple of 32, in blocks that stay in the first-level
// cache.
template <class T>
void blend_portable(const Rows<T>& pass, int16_t* out) noexcept {
  constexpr size_t kSome = 256;
  int32_t sums[kSome];
  for (size_t begin = 0; begin < pass.length; begin += kSome) {
    const size_t count = std::min(kSome, (pass.length - begin + 31) / 32 * 32);
    for (size_t x = 0; x < count; ++x) sums[x] = 1 << (pass.shift - 1);
    for (int pair = 0; pair < pass.pairs; ++pair) {
      add_rows(pass.rows[2 * pair] + begin, pass.rows[2 * pair + 1] + begin, pass.weights[pair], count, sums);
    }
    for (size_t x = 0; x < count; ++x) out[begin + x] = saturated(sums[x] >> pass.shift);
  }
}

void blend_plane_rows_portable(const PlaneRows& rows, int16_t* out) noexcept {
  for (size_t x = 0; x < rows.length; ++x) out[x] = 0;
  for (int tap = 0; tap < 2 * rows.pairs; ++tap) {
    const uint8_t* in = rows.rows[tap];
    const int weight = rows.weights[tap];
    for (size_t x = 0; x < rows.length; ++x) out[x] = static_cast<int16_t>(out[x] + weight * (in[x] - 128));
  }
}

#if defined(TARPEG_AVX2)

TARPEG_AVX2 inline __m256i load(const void* at) noexcept {
  return _mm256_loadu_si256(static_cast<const __m256i*>(at));
}

// 32 numbers of two rows, interleaved: four vectors of pairs, in an order that put() undoes.
TARPEG_AVX2 inline void load_pairs(const uint8_t* even, const uint8_t* odd, __m256i* pairs) noexcept {
  const __m256i zero = _mm256_setzero_si256(), upper = load(even), lower = load(odd);
  const __m256i low = _mm256_unpacklo_epi8(upper, lower), high = _mm256_unpackhi_epi8(upper, lower);
  pairs[0] = _mm256_unpacklo_epi8(low, zero);
  pairs[1] = _mm256_unpackhi_epi8(low, zero);
  pairs[2] = _mm256_unpacklo_epi8(high, zero);
  pairs[3] = _mm256_unpackhi_epi8(high, zero);
}

TARPEG_AVX2 inline void load_pairs(const int16_t* even, const int16_t* odd, __m256i* pairs) noexcept {
  for (int half = 0; half < 2; ++half) {
    const __m256i upper = load(even + 16 * half), lower = load(odd + 16 * half);
    pairs[2 * half] = _mm256_unpacklo_epi16(upper, lower);
    pairs[2 * half + 1] = _mm256_unpackhi_epi16(upper, lower);
  }
}

// kPairs is the number of pairs of rows if it is a constant, which unrolls the loop; otherwise 0.
template <class T, int kPairs>
TARPEG_AVX2 void blend_avx2(const Rows<T>& pass, size_t begin, int16_t* out) noexcept {
  constexpr bool kIsBytes = sizeof(T) == 1;
  const __m256i round = _mm256_set1_epi32(1 << (pass.shift - 1));
  const __m128i shift = _mm_cvtsi32_si128(pass.shift);
  const T* const* const rows = pass.rows;
  const WeightPair* const weights = pass.weights;
  const int pairs = kPairs > 0 ? kPairs : pass.pairs;
  const size_t length = pass.length;
  for (size_t x = begin; x < length; x += 32) {
    __m256i sums[4] = {round, round, round, round};
    for (int pair = 0; pair < pairs; ++pair) {
      const __m256i factors = _mm256_set1_epi32(weights[pair]);
      __m256i numbers[4];
      load_pairs(rows[2 * pair] + x, rows[2 * pair + 1] + x, numbers);
      for (int i = 0; i < 4; ++i) sums[i] = _mm256_add_epi32(sums[i], _mm256_madd_epi16(numbers[i], factors));
    }
    const __m256i first =
        _mm256_packs_epi32(_mm256_sra_epi32(sums[0], shift), _mm256_sra_epi32(sums[1], shift));
    const __m256i second =
        _mm256_packs_epi32(_mm256_sra_epi32(sums[2], shift), _mm256_sra_epi32(sums[3], shift));
    __m256i* const target = reinterpret_cast<__m256i*>(out + x);
    _mm256_storeu_si256(target, kIsBytes ? _mm256_permute2x128_si256(first, second, 0x20) : first);
    _mm256_storeu_si256(target + 1, kIsBytes ? _mm256_permute2x128_si256(first, second, 0x31) : second);
  }
}

// A sum of pairs is 16 bits: the weights are at most 256 together, samples -128 to 127. kPairs as above.
template <int kPairs>
TARPEG_AVX2 void blend_planes_avx2(const PlaneRows& rows, size_t begin, int16_t* out) noexcept {
  const int pairs = kPairs > 0 ? kPairs : rows.pairs;
  const __m256i center = _mm256_set1_epi8(-128);
  for (size_t x = begin; x < rows.length; x += 32) {
    __m256i low = _mm256_setzero_si256(), high = low;
    for (int pair = 0; pair < pairs; ++pair) {
      const __m256i weights =
          _mm256_set1_epi16(static_cast<int16_t>(rows.weights[2 * pair] | rows.weights[2 * pair + 1] << 8));
      const __m256i even = _mm256_xor_si256(load(rows.rows[2 * pair] + x), center);
      const __m256i odd = _mm256_xor_si256(load(rows.rows[2 * pair + 1] + x), center);
      low = _mm256_add_epi16(low, _mm256_maddubs_epi16(weights, _mm256_unpacklo_epi8(even, odd)));
      high = _mm256_add_epi16(high, _mm256_maddubs_epi16(weights, _mm256_unpackhi_epi8(even, odd)));
    }
    __m256i* const target = reinterpret_cast<__m256i*>(out + x);
    _mm256_storeu_si256(target, _mm256_permute2x128_si256(low, high, 0x20));
    _mm256_storeu_si256(target + 1, _mm256_permute2x128_si256(low, high, 0x31));
  }
}

template <class T>
constexpr decltype(&blend_avx2<T, 0>) kBlendAvx2[] = {blend_avx2<T, 0>, blend_avx2<T, 1>, blend_avx2<T, 2>,
                                                      blend_avx2<T, 3>, blend_avx2<T, 4>, blend_avx2<T, 5>};
constexpr decltype(&blend_planes_avx2<0>) kBlendPlanesAvx2[] = {blend_planes_avx2<0>, blend_planes_avx2<1>,
                                                                blend_planes_avx2<2>, blend_planes_avx2<3>};

#endif

#if defined(TARPEG_AVX512)

// As in AVX2, 64 numbers at a time.
TARPEG_AVX512 inline void load_pairs(const uint8_t* even, const uint8_t* odd, __m512i* pairs) noexcept {
  const __m512i zero = _mm512_setzero_si512(), upper = _mm512_loadu_si512(even),
                lower = _mm512_loadu_si512(odd);
  const __m512i low = _mm512_unpacklo_epi8(upper, lower), high = _mm512_unpackhi_epi8(upper, lower);
  pairs[0] = _mm512_unpacklo_epi8(low, zero);
  pairs[1] = _mm512_unpackhi_epi8(low, zero);
  pairs[2] = _mm512_unpacklo_epi8(high, zero);
  pairs[3] = _mm512_unpackhi_epi8(high, zero);
}

TARPEG_AVX512 inline void load_pairs(const int16_t* even, const int16_t* odd, __m512i* pairs) noexcept {
  for (int half = 0; half < 2; ++half) {
    const __m512i upper = _mm512_loadu_si512(even + 32 * half), lower = _mm512_loadu_si512(odd + 32 * half);
    pairs[2 * half] = _mm512_unpacklo_epi16(upper, lower);
    pairs[2 * half + 1] = _mm512_unpackhi_epi16(upper, lower);
  }
}

// Quarters of two vectors in turn: numbers that were interleaved within quarters are in order again.
TARPEG_AVX512 inline void put_in_turn(__m512i first, __m512i second, int16_t* out) noexcept {
  const __m512i lower = _mm512_setr_epi64(0, 1, 8, 9, 2, 3, 10, 11),
                upper = _mm512_setr_epi64(4, 5, 12, 13, 6, 7, 14, 15);
  _mm512_storeu_si512(out, _mm512_permutex2var_epi64(first, lower, second));
  _mm512_storeu_si512(out + 32, _mm512_permutex2var_epi64(first, upper, second));
}

// Returns how many numbers are done.
template <class T, int kPairs>
TARPEG_AVX512 size_t blend_avx512(const Rows<T>& pass, int16_t* out) noexcept {
  const __m512i round = _mm512_set1_epi32(1 << (pass.shift - 1));
  const __m128i shift = _mm_cvtsi32_si128(pass.shift);
  const T* const* const rows = pass.rows;
  const WeightPair* const weights = pass.weights;
  const int pairs = kPairs > 0 ? kPairs : pass.pairs;
  size_t x = 0;
  for (const size_t length = pass.length; x + 32 < length; x += 64) {
    __m512i sums[4] = {round, round, round, round};
    for (int pair = 0; pair < pairs; ++pair) {
      const __m512i factors = _mm512_set1_epi32(weights[pair]);
      __m512i numbers[4];
      load_pairs(rows[2 * pair] + x, rows[2 * pair + 1] + x, numbers);
      for (int i = 0; i < 4; ++i) sums[i] = _mm512_dpwssd_epi32(sums[i], numbers[i], factors);
    }
    const __m512i first =
        _mm512_packs_epi32(_mm512_sra_epi32(sums[0], shift), _mm512_sra_epi32(sums[1], shift));
    const __m512i second =
        _mm512_packs_epi32(_mm512_sra_epi32(sums[2], shift), _mm512_sra_epi32(sums[3], shift));
    if (sizeof(T) == 1) {
      put_in_turn(first, second, out + x);
    } else {
      _mm512_storeu_si512(out + x, first);
      _mm512_storeu_si512(out + x + 32, second);
    }
  }
  return x;
}

template <int kPairs>
TARPEG_AVX512 size_t blend_planes_avx512(const PlaneRows& rows, int16_t* out) noexcept {
  const int pairs = kPairs > 0 ? kPairs : rows.pairs;
  const __m512i center = _mm512_set1_epi8(-128);
  size_t x = 0;
  for (; x + 32 < rows.length; x += 64) {
    __m512i low = _mm512_setzero_si512(), high = low;
    for (int pair = 0; pair < pairs; ++pair) {
      const __m512i weights =
          _mm512_set1_epi16(static_cast<int16_t>(rows.weights[2 * pair] | rows.weights[2 * pair + 1] << 8));
      const __m512i even = _mm512_xor_si512(_mm512_loadu_si512(rows.rows[2 * pair] + x), center);
      const __m512i odd = _mm512_xor_si512(_mm512_loadu_si512(rows.rows[2 * pair + 1] + x), center);
      low = _mm512_add_epi16(low, _mm512_maddubs_epi16(weights, _mm512_unpacklo_epi8(even, odd)));
      high = _mm512_add_epi16(high, _mm512_maddubs_epi16(weights, _mm512_unpackhi_epi8(even, odd)));
    }
    put_in_turn(low, high, out + x);
  }
  return x;
}

template <class T>
constexpr decltype(&blend_avx512<T, 0>) kBlendAvx512[] = {blend_avx512<T, 0>, blend_avx512<T, 1>,
                                                          blend_avx512<T, 2>, blend_avx512<T, 3>,
                                                          blend_avx512<T, 4>, blend_avx512<T, 5>};
constexpr decltype(&blend_planes_avx512<0>) kBlendPlanesAvx512[] = {
    blend_planes_avx512<0>, blend_planes_avx512<1>, blend_planes_avx512<2>, blend_planes_avx512<3>};

#endif

template <class T>
void blend(const Rows<T>& rows, int16_t* out) noexcept {
  [[maybe_unused]] const int unrolled = rows.pairs > kMostPairs ? 0 : rows.pairs;
  [[maybe_unused]] size_t done = 0;
#if defined(TARPEG_AVX512)
  if (has_avx512()) done = kBlendAvx512<T>[unrolled](rows, out);
#endif
#if defined(TARPEG_AVX2)
  if (has_avx2()) return kBlendAvx2<T>[unrolled](rows, done, out);
#endif
  blend_portable(rows, out);
}

}  // namespace

void blend_rows(const Rows<uint8_t>& rows, int16_t* out) noexcept { blend(rows, out); }

void blend_rows(const Rows<int16_t>& rows, int16_t* out) noexcept { blend(rows, out); }

void blend_plane_rows(const PlaneRows& rows, int16_t* out) noexcept {
  [[maybe_unused]] const int unrolled = rows.pairs > 3 ? 0 : rows.pairs;
  [[maybe_unused]] size_t done = 0;
#if defined(TARPEG_AVX512)
  if (has_avx512()) done = kBlendPlanesAvx512[unrolled](rows, out);
#endif
#if defined(TARPEG_AVX2)
  if (has_avx2()) return kBlendPlanesAvx2[unrolled](rows, done, out);
#endif
  blend_plane_rows_portable(rows, out);
}

}  // namespace tarpeg
