#include "image/plane_passes.h"

#include <algorithm>
#include <cstring>

#include "base/interleave.h"
#include "base/simd.h"
#include "image/portable.h"
#include "jpeg/color.h"

namespace tarpeg {
namespace {

constexpr int kLineBits = 7;  // fractional bits of a line before its colour is converted
constexpr int kMostSpan = 6;  // of the starts of four outputs whose first two taps are among eight samples

// Of 2^15: R = Y + Cr + 0.402 Cr, G = Y - 0.344136 Cb - 0.714136 Cr, B = Y + Cb + 0.772 Cb.
constexpr int kRed = 13173, kGreenBlue = -11277, kGreenRed = -23401, kBlue = 25297;

inline int scaled(int16_t value, int factor) noexcept { return (value * factor + (1 << 14)) >> 15; }

inline uint8_t level_of(int value) noexcept {
  const int level = ((value + (1 << (kLineBits - 1))) >> kLineBits) + 128;
  const int positive = level < 0 ? 0 : level;
  return static_cast<uint8_t>(positive > 255 ? 255 : positive);
}

// See Note [plain loops] in jpeg/idct.cpp.
void to_rgb_portable(const int16_t* luma, const int16_t* blue, const int16_t* red, int begin, int width,
                     uint8_t* rgb) noexcept {
  uint8_t r[kSome], g[kSome], b[kSome];
  for (; begin < width; begin += kSome) {
    const int count = std::min(kSome, width - begin);
    for (int i = 0; i < count; ++i) {
      const int16_t y = luma[begin + i], cb = blue[begin + i], cr = red[begin + i];
      r[i] = level_of(y + cr + scaled(cr, kRed));
      g[i] = level_of(y + scaled(cb, kGreenBlue) + scaled(cr, kGreenRed));
      b[i] = level_of(y + cb + scaled(cb, kBlue));
    }
    interleave_portable(r, g, b, count, 3, rgb + 3 * static_cast<ptrdiff_t>(begin));
  }
}

void blend_rows(const PlaneRows& rows, int16_t* out) noexcept {
  for (size_t x = 0; x < rows.length; ++x) out[x] = 0;
  for (int tap = 0; tap < 2 * rows.pairs; ++tap) {
    const uint8_t* in = rows.rows[tap];
    const int weight = rows.weights[tap];
    for (size_t x = 0; x < rows.length; ++x) out[x] = static_cast<int16_t>(out[x] + weight * (in[x] - 128));
  }
}

#if defined(TARPEG_AVX2)

// A sum of pairs is 16 bits: the weights are at most 256 together, samples -128 to 127.
template <int kPairs>
TARPEG_AVX2 void blend_rows_of(const PlaneRows& rows, size_t begin, int16_t* out) noexcept {
  const int pairs = kPairs > 0 ? kPairs : rows.pairs;
  const __m256i center = _mm256_set1_epi8(-128);
  for (size_t x = begin; x < rows.length; x += 32) {
    __m256i low = _mm256_setzero_si256(), high = low;
    for (int pair = 0; pair < pairs; ++pair) {
      const __m256i weights =
          _mm256_set1_epi16(static_cast<int16_t>(rows.weights[2 * pair] | rows.weights[2 * pair + 1] << 8));
      const __m256i even = _mm256_xor_si256(
          _mm256_loadu_si256(reinterpret_cast<const __m256i*>(rows.rows[2 * pair] + x)), center);
      const __m256i odd = _mm256_xor_si256(
          _mm256_loadu_si256(reinterpret_cast<const __m256i*>(rows.rows[2 * pair + 1] + x)), center);
      low = _mm256_add_epi16(low, _mm256_maddubs_epi16(weights, _mm256_unpacklo_epi8(even, odd)));
      high = _mm256_add_epi16(high, _mm256_maddubs_epi16(weights, _mm256_unpackhi_epi8(even, odd)));
    }
    __m256i* const target = reinterpret_cast<__m256i*>(out + x);
    _mm256_storeu_si256(target, _mm256_permute2x128_si256(low, high, 0x20));
    _mm256_storeu_si256(target + 1, _mm256_permute2x128_si256(low, high, 0x31));
  }
}

TARPEG_AVX2 int to_rgb_avx2(const int16_t* luma, const int16_t* blue, const int16_t* red, int width,
                            uint8_t* rgb) noexcept {
  if (width < 16) return 0;
  const __m256i round = _mm256_set1_epi16(1 << (kLineBits - 1)), center = _mm256_set1_epi8(-128);
  // 16 pixels at a time, the last 16 perhaps again in part: the bytes written must stay inside the row.
  for (int next = 0; next < width; next += 16) {
    const int x = std::min(next, width - 16);
    const __m256i y = _mm256_add_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(luma + x)), round);
    const __m256i cb = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(blue + x));
    const __m256i cr = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(red + x));
    const __m256i r_part = _mm256_add_epi16(cr, _mm256_mulhrs_epi16(cr, _mm256_set1_epi16(kRed)));
    const __m256i g_part = _mm256_add_epi16(_mm256_mulhrs_epi16(cb, _mm256_set1_epi16(kGreenBlue)),
                                            _mm256_mulhrs_epi16(cr, _mm256_set1_epi16(kGreenRed)));
    const __m256i b_part = _mm256_add_epi16(cb, _mm256_mulhrs_epi16(cb, _mm256_set1_epi16(kBlue)));
    // A sum that saturates is beyond 0 and 255 in any case.
    const __m256i r = _mm256_srai_epi16(_mm256_adds_epi16(y, r_part), kLineBits);
    const __m256i g = _mm256_srai_epi16(_mm256_adds_epi16(y, g_part), kLineBits);
    const __m256i b = _mm256_srai_epi16(_mm256_adds_epi16(y, b_part), kLineBits);
    store_pixels(_mm256_xor_si256(_mm256_packs_epi16(r, g), center),
                 _mm256_xor_si256(_mm256_packs_epi16(b, b), center), 3, rgb + 3 * static_cast<ptrdiff_t>(x));
  }
  return width;
}

#endif

#if defined(TARPEG_AVX512)

// As in AVX2, 64 samples at a time; returns how many are done.
template <int kPairs>
TARPEG_AVX512 size_t blend_rows_avx512(const PlaneRows& rows, int16_t* out) noexcept {
  const int pairs = kPairs > 0 ? kPairs : rows.pairs;
  const __m512i center = _mm512_set1_epi8(-128);
  const __m512i first = _mm512_setr_epi64(0, 1, 8, 9, 2, 3, 10, 11),
                second = _mm512_setr_epi64(4, 5, 12, 13, 6, 7, 14, 15);
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
    _mm512_storeu_si512(out + x, _mm512_permutex2var_epi64(low, first, high));
    _mm512_storeu_si512(out + x + 32, _mm512_permutex2var_epi64(low, second, high));
  }
  return x;
}

// As in AVX2, 32 pixels at a time.
TARPEG_AVX512 int to_rgb_avx512(const int16_t* luma, const int16_t* blue, const int16_t* red, int width,
                                uint8_t* rgb) noexcept {
  if (width < 32) return 0;
  const __m512i round = _mm512_set1_epi16(1 << (kLineBits - 1)), center = _mm512_set1_epi8(-128);
  const Interleaved<3> order;
  for (int next = 0; next < width; next += 32) {
    const int x = std::min(next, width - 32);
    const __m512i y = _mm512_add_epi16(_mm512_loadu_si512(luma + x), round);
    const __m512i cb = _mm512_loadu_si512(blue + x), cr = _mm512_loadu_si512(red + x);
    const __m512i r_part = _mm512_add_epi16(cr, _mm512_mulhrs_epi16(cr, _mm512_set1_epi16(kRed)));
    const __m512i g_part = _mm512_add_epi16(_mm512_mulhrs_epi16(cb, _mm512_set1_epi16(kGreenBlue)),
                                            _mm512_mulhrs_epi16(cr, _mm512_set1_epi16(kGreenRed)));
    const __m512i b_part = _mm512_add_epi16(cb, _mm512_mulhrs_epi16(cb, _mm512_set1_epi16(kBlue)));
    const __m512i r = _mm512_srai_epi16(_mm512_adds_epi16(y, r_part), kLineBits);
    const __m512i g = _mm512_srai_epi16(_mm512_adds_epi16(y, g_part), kLineBits);
    const __m512i b = _mm512_srai_epi16(_mm512_adds_epi16(y, b_part), kLineBits);
    order.store(_mm512_xor_si512(_mm512_packs_epi16(r, g), center),
                _mm512_xor_si512(_mm512_packs_epi16(b, b), center), rgb + 3 * static_cast<ptrdiff_t>(x));
  }
  return width;
}

#endif

}  // namespace

// The loops of the second pass.
struct PlaneColumnsCode {
  // Four outputs at a time, four taps of two outputs in each vector.
  static Shorts two_fours(const int16_t* first, const int16_t* second) noexcept {
    int16_t both[8];
    std::memcpy(both, first, 4 * sizeof *both);
    std::memcpy(both + 4, second, 4 * sizeof *both);
    return shorts_at(both);
  }

  static void portable(const PlaneColumns& columns, const int16_t* row, int16_t* out) noexcept {
    const int blocks = columns.blocks_, shift = columns.shift_;
    const int* start = columns.start_.data();
    const int16_t* weights = columns.weights_.data();
    for (int x = 0; x < columns.width_; x += 4, start += 4, weights += 16 * blocks) {
      Sums::Four left = {}, right = {};
      for (int block = 0; block < blocks; ++block) {
        const int16_t* in = row + 4 * block;
        left += paired_products(two_fours(in + start[0], in + start[1]), shorts_at(weights + 8 * block));
        right += paired_products(two_fours(in + start[2], in + start[3]),
                                 shorts_at(weights + 8 * (blocks + block)));
      }
      const Sums::Four sums =
          TARPEG_MIX(Sums::Four, left, right, 0, 2, 4, 6) + TARPEG_MIX(Sums::Four, left, right, 1, 3, 5, 7);
      const Sums::Four levels = (sums + (1 << (shift - 1))) >> shift;
      for (int i = 0; i < 4; ++i) out[x + i] = static_cast<int16_t>(levels[i]);
    }
  }

#if defined(TARPEG_AVX2)
  // 16 outputs at a time; kPairs is the number of pairs of taps if it is a constant, otherwise 0.
  template <int kPairs>
  TARPEG_AVX2 static void near(const PlaneColumns& columns, const int16_t* row, int16_t* out) noexcept {
    const int pairs = kPairs > 0 ? kPairs : columns.pairs_;
    const __m256i round = _mm256_set1_epi32(1 << (columns.shift_ - 1));
    const __m128i shift = _mm_cvtsi32_si128(columns.shift_);
    const int* start = columns.start_.data();
    const int16_t* weights = columns.weights_.data();
    const uint8_t* picks = columns.picks_.data();
    for (int x = 0; x < columns.width_; x += 16) {
      __m256i sums[2];
      for (int half = 0; half < 2; ++half, start += 2, picks += 32) {
        const __m256i pick = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(picks));
        const int16_t *low = row + start[0], *high = row + start[1];
        __m256i sum = round;
        for (int pair = 0; pair < pairs; ++pair, low += 2, high += 2, weights += 16) {
          const __m256i samples = _mm256_inserti128_si256(
              _mm256_castsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(low))),
              _mm_loadu_si128(reinterpret_cast<const __m128i*>(high)), 1);
          const __m256i factors = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(weights));
          sum = _mm256_add_epi32(sum, _mm256_madd_epi16(_mm256_shuffle_epi8(samples, pick), factors));
        }
        sums[half] = _mm256_sra_epi32(sum, shift);
      }
      const __m256i words = _mm256_permute4x64_epi64(_mm256_packs_epi32(sums[0], sums[1]), 0xD8);
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + x), words);
    }
  }

  // Sums of outputs x (low half) and x + 1, four partial sums each.
  TARPEG_AVX2 static inline __m256i two(const PlaneColumns& columns, const int16_t* row, int x) noexcept {
    const int16_t *even = row + columns.start_[x], *odd = row + columns.start_[x + 1];
    const int16_t* weights = columns.weights_.data() + static_cast<ptrdiff_t>(x) * columns.blocks_ * 8;
    __m256i sum = _mm256_setzero_si256();
    for (int block = 0; block < columns.blocks_; ++block) {
      const __m128i low = _mm_loadu_si128(reinterpret_cast<const __m128i*>(even + 8 * block));
      const __m128i high = _mm_loadu_si128(reinterpret_cast<const __m128i*>(odd + 8 * block));
      const __m256i factors = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(weights + 16 * block));
      sum = _mm256_add_epi32(sum, _mm256_madd_epi16(_mm256_set_m128i(high, low), factors));
    }
    return sum;
  }

  TARPEG_AVX2 static void far(const PlaneColumns& columns, const int16_t* row, int16_t* out) noexcept {
    const __m256i round = _mm256_set1_epi32(1 << (columns.shift_ - 1));
    const __m128i shift = _mm_cvtsi32_si128(columns.shift_);
    for (int x = 0; x < columns.width_; x += 8) {
      const __m256i first = _mm256_hadd_epi32(two(columns, row, x), two(columns, row, x + 2));
      const __m256i second = _mm256_hadd_epi32(two(columns, row, x + 4), two(columns, row, x + 6));
      // Outputs 0, 2, 4, 6 in the low half, 1, 3, 5, 7 in the high one.
      const __m256i sums = _mm256_sra_epi32(_mm256_add_epi32(_mm256_hadd_epi32(first, second), round), shift);
      const __m256i words = _mm256_packs_epi32(sums, sums);
      const __m128i mixed =
          _mm_unpacklo_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
      _mm_storeu_si128(reinterpret_cast<__m128i*>(out + x), mixed);
    }
  }
#endif

#if defined(TARPEG_AVX512)
  // 16 outputs at a time, picked from kReach samples.
  template <int kReach>
  TARPEG_AVX512 static void sixteen(const PlaneColumns& columns, const int16_t* row, int16_t* out) noexcept {
    const __m512i round = _mm512_set1_epi32(1 << (columns.shift_ - 1));
    const __m128i shift = _mm_cvtsi32_si128(columns.shift_);
    const int* start = columns.start_.data();
    const int16_t* weights = columns.weights_.data();
    const uint8_t* picks = columns.picks_.data();
    for (int x = 0; x < columns.width_; x += 16, ++start, picks += 64) {
      const int16_t* in = row + *start;
      const __m512i low = _mm512_loadu_si512(in), high = kReach == 32 ? low : _mm512_loadu_si512(in + 32);
      __m512i sum = round, pick = _mm512_loadu_si512(picks);
      for (int pair = 0; pair < columns.pairs_; ++pair, weights += 32) {
        const __m512i samples =
            kReach == 32 ? _mm512_permutexvar_epi16(pick, low) : _mm512_permutex2var_epi16(low, pick, high);
        sum = _mm512_dpwssd_epi32(sum, samples, _mm512_loadu_si512(weights));
        pick = _mm512_add_epi16(pick, _mm512_set1_epi16(2));
      }
      const __m256i words = _mm512_cvtsepi32_epi16(_mm512_sra_epi32(sum, shift));
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + x), words);
    }
  }
#endif
};

void blend_plane_rows(const PlaneRows& rows, int16_t* out) noexcept {
  size_t done = 0;
#if defined(TARPEG_AVX512)
  if (has_avx512()) {
    done = rows.pairs == 1   ? blend_rows_avx512<1>(rows, out)
           : rows.pairs == 2 ? blend_rows_avx512<2>(rows, out)
           : rows.pairs == 3 ? blend_rows_avx512<3>(rows, out)
                             : blend_rows_avx512<0>(rows, out);
  }
#endif
#if defined(TARPEG_AVX2)
  if (has_avx2()) {
    return rows.pairs == 1   ? blend_rows_of<1>(rows, done, out)
           : rows.pairs == 2 ? blend_rows_of<2>(rows, done, out)
           : rows.pairs == 3 ? blend_rows_of<3>(rows, done, out)
                             : blend_rows_of<0>(rows, done, out);
  }
#endif
  blend_rows(rows, out);
}

void PlaneColumns::prepare(const Axis& axis, int first, bool reversed, int dropped) {
  shift_ = axis.precision + dropped;
  width_ = (axis.out + 15) / 16 * 16;
  pairs_ = (axis.taps + 1) / 2;
  const auto column = [&](int x) { return reversed ? axis.out - 1 - x : x; };
  // Past the end the last output is repeated, with weights of zero.
  const auto start = [&](int x) { return axis.start[column(std::min(x, axis.out - 1))] - first; };
  int reach = 0;  // samples under sixteen outputs; starts ascend or descend
  for (int x = 0; x < width_; x += 16)
    reach = std::max(reach, std::abs(start(x + 15) - start(x)) + 2 * pairs_);
  reach_ = !has_avx512() || reach > 64 ? 0 : reach > 32 ? 64 : 32;
  start_.resize(width_);
  if (!has_avx2()) {
    blocks_ = (axis.taps + 3) / 4;
    weights_.assign(static_cast<size_t>(width_) * 4 * blocks_, 0);
    for (int x = 0; x < width_; ++x) start_[x] = start(x);
    for (int x = 0; x < axis.out; ++x) {
      const int16_t* from = axis.weights.data() + static_cast<ptrdiff_t>(column(x)) * axis.taps;
      int16_t* to = weights_.data() + static_cast<ptrdiff_t>(x / 2) * blocks_ * 8 + x % 2 * 4;
      for (int tap = 0; tap < axis.taps; ++tap) to[tap / 4 * 8 + tap % 4] = from[tap];
    }
    return;
  }
  picks_.resize(static_cast<size_t>(width_) * 4);
  const int together = reach_ > 0 ? 16 : 4;
  uint8_t* pick = picks_.data();
  for (int x = 0; x < width_; x += together) {
    const int low = std::min(start(x), start(x + together - 1));
    start_[x / together] = low;
    for (int i = 0; i < together; ++i, pick += 4) {
      const int span = start(x + i) - low;
      if (reach_ == 0 && (span < 0 || span > kMostSpan)) pairs_ = 0;
      for (int byte = 0; byte < 4; ++byte)
        pick[byte] = static_cast<uint8_t>(reach_ == 0 ? 2 * span + byte : byte % 2 ? 0 : span + byte / 2);
    }
  }
  blocks_ = (axis.taps + 7) / 8;
  weights_.assign(static_cast<size_t>(width_) * (pairs_ > 0 ? 2 * pairs_ : 8 * blocks_), 0);
  const int group = reach_ > 0 ? 16 : 8;
  for (int x = 0; x < axis.out; ++x) {
    const int16_t* from = axis.weights.data() + static_cast<ptrdiff_t>(column(x)) * axis.taps;
    if (pairs_ > 0) {
      int16_t* to = weights_.data() + static_cast<ptrdiff_t>(x / group) * pairs_ * 2 * group + x % group * 2;
      for (int tap = 0; tap < axis.taps; ++tap) to[tap / 2 * 2 * group + tap % 2] = from[tap];
    } else {
      int16_t* to = weights_.data() + static_cast<ptrdiff_t>(x / 2) * blocks_ * 16 + x % 2 * 8;
      for (int tap = 0; tap < axis.taps; ++tap) to[tap / 8 * 16 + tap % 8] = from[tap];
    }
  }
  for (int x = 0; x < width_ && pairs_ == 0; ++x) start_[x] = start(x);
}

void PlaneColumns::blend(const int16_t* row, int16_t* out) const noexcept {
#if defined(TARPEG_AVX512)
  if (reach_ == 32) return PlaneColumnsCode::sixteen<32>(*this, row, out);
  if (reach_ == 64) return PlaneColumnsCode::sixteen<64>(*this, row, out);
#endif
#if defined(TARPEG_AVX2)
  if (has_avx2()) {
    return pairs_ == 0   ? PlaneColumnsCode::far(*this, row, out)
           : pairs_ == 1 ? PlaneColumnsCode::near<1>(*this, row, out)
           : pairs_ == 2 ? PlaneColumnsCode::near<2>(*this, row, out)
           : pairs_ == 3 ? PlaneColumnsCode::near<3>(*this, row, out)
                         : PlaneColumnsCode::near<0>(*this, row, out);
  }
#endif
  PlaneColumnsCode::portable(*this, row, out);
}

void planes_to_rgb(const int16_t* luma, const int16_t* cb, const int16_t* cr, int width,
                   uint8_t* rgb) noexcept {
  int done = 0;
#if defined(TARPEG_AVX512)
  if (has_avx512()) done = to_rgb_avx512(luma, cb, cr, width, rgb);
#endif
#if defined(TARPEG_AVX2)
  if (done == 0 && has_avx2()) done = to_rgb_avx2(luma, cb, cr, width, rgb);
#endif
  to_rgb_portable(luma, cb, cr, done, width, rgb);
}

}  // namespace tarpeg
