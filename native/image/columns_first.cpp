#include "image/columns_first.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "base/simd.h"
#include "image/portable.h"

namespace tarpeg {
namespace {

constexpr int kMostPairs = 5;  // unrolled

constexpr int even(WeightPair pair) noexcept { return static_cast<int16_t>(pair & 0xFFFF); }
constexpr int odd(WeightPair pair) noexcept { return static_cast<int16_t>(pair >> 16); }

void blend_columns(const ColumnPass& pass, const uint8_t* row, int16_t* out) noexcept {
  constexpr int kSome = 64;  // pixels
  const WeightPair* weights = pass.weights;
  int32_t sums[4 * kSome];
  int16_t pixels[4 * kSome];
  for (int begin = 0; begin < pass.width; begin += kSome) {
    const int count = std::min(kSome, pass.width - begin);
    for (int x = 0; x < count; ++x, weights += pass.pairs) {
      const uint8_t* in = row + 4 * static_cast<ptrdiff_t>(pass.start[begin + x]);
      Sums products = {Sums::Four{} + (1 << (pass.shift - 1))};
      for (int pair = 0; pair < pass.pairs; ++pair) {
        const int16_t a = even(weights[pair]), b = odd(weights[pair]);
        products.add(shorts_at(in + 8 * pair), Shorts{a, a, a, a, b, b, b, b});
      }
      products.put(sums + 4 * x);
    }
    shift_between(sums, 4 * static_cast<size_t>(count), pass.shift, 0, kMostBetween, pixels);
    for (int x = 0; x < count; ++x, out += 3) std::memcpy(out, pixels + 4 * x, 3 * sizeof *out);
  }
}

#if defined(TARPEG_AVX2)

TARPEG_AVX2 inline __m256i two_rows(const uint8_t* upper, const uint8_t* lower) noexcept {
  const __m128i first = _mm_loadu_si128(reinterpret_cast<const __m128i*>(upper));
  const __m128i second = _mm_loadu_si128(reinterpret_cast<const __m128i*>(lower));
  return _mm256_inserti128_si256(_mm256_castsi128_si256(first), second, 1);
}

// Pointers of four rows: in registers, while stores could change what others point to.
template <class T>
struct Four {
  T *a, *b, *c, *d;
};

// Sums of one pixel in four rows, two rows in each vector. kPairs is the number of pairs of taps if it is a
// constant, which unrolls the loop; otherwise 0.
template <int kPairs>
TARPEG_AVX2 inline void add_taps(const Four<const uint8_t>& rows, ptrdiff_t at, const WeightPair* weights,
                                 int pairs, __m256i round, __m256i* sums) noexcept {
  // Bytes of two taps -> 16-bit numbers, tap by tap within each channel.
  const __m256i low = _mm256_setr_epi8(0, -1, 4, -1, 1, -1, 5, -1, 2, -1, 6, -1, 3, -1, 7, -1, 0, -1, 4, -1,
                                       1, -1, 5, -1, 2, -1, 6, -1, 3, -1, 7, -1);
  const __m256i high = _mm256_setr_epi8(8, -1, 12, -1, 9, -1, 13, -1, 10, -1, 14, -1, 11, -1, 15, -1, 8, -1,
                                        12, -1, 9, -1, 13, -1, 10, -1, 14, -1, 11, -1, 15, -1);
  sums[0] = sums[1] = round;
  for (int pair = 0; pair < (kPairs > 0 ? kPairs : pairs); pair += 2, at += 16) {
    const __m256i upper = two_rows(rows.a + at, rows.b + at), lower = two_rows(rows.c + at, rows.d + at);
    const __m256i first = _mm256_set1_epi32(weights[pair]);
    sums[0] = _mm256_add_epi32(sums[0], _mm256_madd_epi16(_mm256_shuffle_epi8(upper, low), first));
    sums[1] = _mm256_add_epi32(sums[1], _mm256_madd_epi16(_mm256_shuffle_epi8(lower, low), first));
    if (pair + 1 == (kPairs > 0 ? kPairs : pairs)) break;
    const __m256i second = _mm256_set1_epi32(weights[pair + 1]);
    sums[0] = _mm256_add_epi32(sums[0], _mm256_madd_epi16(_mm256_shuffle_epi8(upper, high), second));
    sums[1] = _mm256_add_epi32(sums[1], _mm256_madd_epi16(_mm256_shuffle_epi8(lower, high), second));
  }
}

template <int kPairs>
TARPEG_AVX2 void blend_columns_of(const ColumnPass& pass, const uint8_t* const* rows,
                                  int16_t* const* out) noexcept {
  const __m256i round = _mm256_set1_epi32(1 << (pass.shift - 1)), most = _mm256_set1_epi16(kMostBetween);
  const __m128i shift = _mm_cvtsi32_si128(pass.shift);
  const __m256i drop_x = _mm256_setr_epi8(0, 1, 2, 3, 4, 5, 8, 9, 10, 11, 12, 13, -1, -1, -1, -1, 0, 1, 2, 3,
                                          4, 5, 8, 9, 10, 11, 12, 13, -1, -1, -1, -1);
  const Four<const uint8_t> in{rows[0], rows[1], rows[2], rows[3]};
  Four<int16_t> to{out[0], out[1], out[2], out[3]};
  const int pairs = kPairs > 0 ? kPairs : pass.pairs;
  const int* start = pass.start;
  const WeightPair* weights = pass.weights;
  const auto put = [&](__m256i left, __m256i right, int16_t** upper, int16_t** lower) TARPEG_AVX2 {
    const __m256i words = _mm256_packus_epi32(_mm256_sra_epi32(left, shift), _mm256_sra_epi32(right, shift));
    const __m256i rgb = _mm256_shuffle_epi8(_mm256_min_epu16(words, most), drop_x);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(*upper), _mm256_castsi256_si128(rgb));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(*lower), _mm256_extracti128_si256(rgb, 1));
    *upper += 6;
    *lower += 6;
  };
  for (const int* const end = start + pass.width; start < end; start += 2, weights += 2 * pairs) {
    const int next = end - start > 1;  // past the end the last pixel is blended again
    __m256i left[2], right[2];
    add_taps<kPairs>(in, 4 * static_cast<ptrdiff_t>(start[0]), weights, pairs, round, left);
    add_taps<kPairs>(in, 4 * static_cast<ptrdiff_t>(start[next]), weights + next * pairs, pairs, round,
                     right);
    put(left[0], right[0], &to.a, &to.b);
    put(left[1], right[1], &to.c, &to.d);
  }
}

// kPairs as above. 32 bytes at a time.
template <int kPairs>
TARPEG_AVX2 void blend_rows_of(const RowPass& pass, size_t begin, uint8_t* out) noexcept {
  constexpr int kKept = kPairs > 0 ? kPairs : 1;
  const __m256i round = _mm256_set1_epi32(1 << (pass.shift - 1));
  const __m128i shift = _mm_cvtsi32_si128(pass.shift);
  __m256i kept[kKept];
  const int16_t* rows[2 * kKept];
  for (int pair = 0; pair < kPairs; ++pair) {
    kept[pair] = _mm256_set1_epi32(pass.weights[pair]);
    rows[2 * pair] = pass.rows[2 * pair];
    rows[2 * pair + 1] = pass.rows[2 * pair + 1];
  }
  const size_t length = pass.length;
  for (size_t x = begin; x < length; x += 32) {
    __m256i words[2];
    for (int half = 0; half < 2; ++half) {
      const size_t at = x + 16 * half;
      __m256i low = round, high = round;
      for (int pair = 0; pair < (kPairs > 0 ? kPairs : pass.pairs); ++pair) {
        const __m256i weights = kPairs > 0 ? kept[pair % kKept] : _mm256_set1_epi32(pass.weights[pair]);
        const int16_t* const* two = kPairs > 0 ? rows + 2 * pair : pass.rows + 2 * pair;
        const __m256i even = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(two[0] + at));
        const __m256i odd = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(two[1] + at));
        low = _mm256_add_epi32(low, _mm256_madd_epi16(_mm256_unpacklo_epi16(even, odd), weights));
        high = _mm256_add_epi32(high, _mm256_madd_epi16(_mm256_unpackhi_epi16(even, odd), weights));
      }
      words[half] = _mm256_packs_epi32(_mm256_sra_epi32(low, shift), _mm256_sra_epi32(high, shift));
    }
    const __m256i bytes = _mm256_packus_epi16(words[0], words[1]);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + x), _mm256_permute4x64_epi64(bytes, 0xD8));
  }
}

constexpr decltype(&blend_columns_of<0>) kColumns[] = {blend_columns_of<0>, blend_columns_of<1>,
                                                       blend_columns_of<2>, blend_columns_of<3>,
                                                       blend_columns_of<4>, blend_columns_of<5>};
constexpr decltype(&blend_rows_of<0>) kRows[] = {blend_rows_of<0>, blend_rows_of<1>, blend_rows_of<2>,
                                                 blend_rows_of<3>, blend_rows_of<4>, blend_rows_of<5>};

#endif

#if defined(TARPEG_AVX512)

// As in AVX2, 64 bytes at a time; returns how many are done.
template <int kPairs>
TARPEG_AVX512 size_t blend_rows_avx512(const RowPass& pass, uint8_t* out) noexcept {
  const __m512i round = _mm512_set1_epi32(1 << (pass.shift - 1));
  const __m512i order = _mm512_setr_epi64(0, 2, 4, 6, 1, 3, 5, 7);
  const __m128i shift = _mm_cvtsi32_si128(pass.shift);
  const int pairs = kPairs > 0 ? kPairs : pass.pairs;
  const int16_t* const* const rows = pass.rows;
  const WeightPair* const all_weights = pass.weights;
  size_t x = 0;
  for (const size_t length = pass.length; x + 32 < length; x += 64) {
    __m512i words[2];
    for (int half = 0; half < 2; ++half) {
      const size_t at = x + 32 * half;
      __m512i low = round, high = round;
      for (int pair = 0; pair < pairs; ++pair) {
        const __m512i weights = _mm512_set1_epi32(all_weights[pair]);
        const __m512i even = _mm512_loadu_si512(rows[2 * pair] + at);
        const __m512i odd = _mm512_loadu_si512(rows[2 * pair + 1] + at);
        low = _mm512_dpwssd_epi32(low, _mm512_unpacklo_epi16(even, odd), weights);
        high = _mm512_dpwssd_epi32(high, _mm512_unpackhi_epi16(even, odd), weights);
      }
      words[half] = _mm512_packs_epi32(_mm512_sra_epi32(low, shift), _mm512_sra_epi32(high, shift));
    }
    const __m512i bytes = _mm512_packus_epi16(words[0], words[1]);
    _mm512_storeu_si512(out + x, _mm512_permutexvar_epi64(order, bytes));
  }
  return x;
}

constexpr decltype(&blend_rows_avx512<0>) kRows512[] = {blend_rows_avx512<0>, blend_rows_avx512<1>,
                                                        blend_rows_avx512<2>, blend_rows_avx512<3>,
                                                        blend_rows_avx512<4>, blend_rows_avx512<5>};

#endif

}  // namespace

constexpr int kGroup = 5;  // pixels of three channels: 15 of the 16 sums of a register

void ColumnGroups::prepare(const ColumnPass& pass) {
  base_.clear();
  if (!has_avx512()) return;
  const int groups = (pass.width + kGroup - 1) / kGroup;
  // Starts ascend or descend. Past the end the last pixel is repeated, with weights of zero.
  const auto start = [&](int group, int i) {
    return pass.start[std::min(kGroup * group + i, pass.width - 1)];
  };
  for (int group = 0; group < groups; ++group) {
    if (std::abs(start(group, kGroup - 1) - start(group, 0)) + 2 * pass.pairs > 32) return;
  }
  base_.resize(groups);
  picks_.resize(64 * static_cast<size_t>(groups));
  weights_.assign(16 * static_cast<size_t>(groups) * pass.pairs, 0);
  for (int group = 0; group < groups; ++group) {
    const int base = std::min(start(group, 0), start(group, kGroup - 1));
    base_[group] = base;
    uint8_t* pick = picks_.data() + 64 * static_cast<ptrdiff_t>(group);
    for (int i = 0; i < kGroup; ++i) {
      for (int channel = 0; channel < 3; ++channel, pick += 4) {
        pick[0] = static_cast<uint8_t>(4 * (start(group, i) - base) + channel);
        pick[2] = static_cast<uint8_t>(pick[0] + 4);
      }
      const int x = kGroup * group + i;
      for (int pair = 0; pair < pass.pairs && x < pass.width; ++pair) {
        WeightPair* to = weights_.data() + 16 * (static_cast<ptrdiff_t>(group) * pass.pairs + pair) + 3 * i;
        to[0] = to[1] = to[2] = pass.weights[static_cast<ptrdiff_t>(x) * pass.pairs + pair];
      }
    }
  }
}

#if defined(TARPEG_AVX512)

struct ColumnGroupsCode {
  TARPEG_AVX512 static void blend(const ColumnPass& pass, const uint8_t* const* rows,
                                  int16_t* const* out) noexcept {
    const ColumnGroups& groups = *pass.groups;
    const __m512i round = _mm512_set1_epi32(1 << (pass.shift - 1)), zero = _mm512_setzero_si512();
    const __m256i most = _mm256_set1_epi16(kMostBetween);
    const __m128i shift = _mm_cvtsi32_si128(pass.shift);
    constexpr __mmask64 kLow = 0x5555555555555555;  // of each number of 16 bits
    const uint8_t* picks = groups.picks_.data();
    const WeightPair* weights = groups.weights_.data();
    ptrdiff_t at = 0;
    for (const int base : groups.base_) {
      __m512i low[kRowsAtOnce], high[kRowsAtOnce], sums[kRowsAtOnce];
      for (int row = 0; row < kRowsAtOnce; ++row) {
        low[row] = _mm512_loadu_si512(rows[row] + 4 * static_cast<ptrdiff_t>(base));
        high[row] = _mm512_loadu_si512(rows[row] + 4 * static_cast<ptrdiff_t>(base) + 64);
        sums[row] = round;
      }
      __m512i pick = _mm512_loadu_si512(picks);
      picks += 64;
      for (int pair = 0; pair < pass.pairs; ++pair, weights += 16) {
        const __m512i factors = _mm512_loadu_si512(weights);
        for (int row = 0; row < kRowsAtOnce; ++row) {
          const __m512i taps = _mm512_maskz_permutex2var_epi8(kLow, low[row], pick, high[row]);
          sums[row] = _mm512_dpwssd_epi32(sums[row], taps, factors);
        }
        pick = _mm512_add_epi8(pick, _mm512_set1_epi8(8));
      }
      for (int row = 0; row < kRowsAtOnce; ++row) {
        const __m512i positive = _mm512_max_epi32(_mm512_sra_epi32(sums[row], shift), zero);
        const __m256i words = _mm256_min_epu16(_mm512_cvtusepi32_epi16(positive), most);
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(out[row] + at), words);
      }
      at += 3 * kGroup;
    }
  }
};

#endif

void blend_columns_first(const ColumnPass& pass, const uint8_t* const* rows, int16_t* const* out) noexcept {
#if defined(TARPEG_AVX512)
  if (pass.groups->is_ready()) return ColumnGroupsCode::blend(pass, rows, out);
#endif
#if defined(TARPEG_AVX2)
  if (has_avx2()) return kColumns[pass.pairs > kMostPairs ? 0 : pass.pairs](pass, rows, out);
#endif
  for (int row = 0; row < kRowsAtOnce; ++row) blend_columns(pass, rows[row], out[row]);
}

void blend_rows_second(const RowPass& pass, uint8_t* out) noexcept {
  [[maybe_unused]] const int unrolled = pass.pairs > kMostPairs ? 0 : pass.pairs;
  [[maybe_unused]] size_t done = 0;
#if defined(TARPEG_AVX512)
  if (has_avx512()) done = kRows512[unrolled](pass, out);
#endif
#if defined(TARPEG_AVX2)
  if (has_avx2()) return kRows[unrolled](pass, done, out);
#endif
  blend_rows_portable(pass.rows, pass.weights, pass.pairs, pass.length, pass.shift, 0, 255, out);
}

}  // namespace tarpeg
