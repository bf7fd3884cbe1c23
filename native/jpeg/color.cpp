#include "jpeg/color.h"

#include <algorithm>
#include <cstring>

#include "base/interleave.h"
#include "base/simd.h"

namespace tarpeg {
namespace {

// 16 fractional bits. 1.402 = 1 + 0.402, 1.772 = 2 - 0.228, 0.71414 = 1 - 0.28586: the rest fits 16 bits.
constexpr int kRed = 26345, kBlue = -14942, kGreenBlue = -22554, kGreenRed = 18734, kHalf = 1 << 15;

inline uint8_t clamped(int16_t value) noexcept {
  const int16_t positive = value < 0 ? 0 : value;
  return static_cast<uint8_t>(positive > 255 ? 255 : positive);
}

// (factor * value + half) >> 16, of which 16 bits suffice in every step but one.
inline int16_t scaled(int16_t value, int factor) noexcept {
  return static_cast<int16_t>(((2 * value * factor >> 16) + 1) >> 1);
}

// See Note [plain loops] in idct.cpp.
void convert_portable(const uint8_t* luma, const uint8_t* blue, const uint8_t* red, int begin, int end,
                      RgbLine rgb) noexcept {
  uint8_t r[kSome], g[kSome], b[kSome];
  for (int x = begin; x < end; x += kSome) {
    const int count = std::min(kSome, end - x);
    for (int i = 0; i < count; ++i) {
      const int16_t y = luma[x + i], cb = static_cast<int16_t>(blue[x + i] - 128),
                    cr = static_cast<int16_t>(red[x + i] - 128);
      const int16_t green = static_cast<int16_t>((kGreenBlue * cb + kGreenRed * cr + kHalf) >> 16);
      r[i] = clamped(static_cast<int16_t>(y + cr + scaled(cr, kRed)));
      g[i] = clamped(static_cast<int16_t>(y - cr + green));
      b[i] = clamped(static_cast<int16_t>(y + 2 * cb + scaled(cb, kBlue)));
    }
    if (rgb.plane == 0) {
      interleave(r, g, b, count, rgb.out + 3 * static_cast<ptrdiff_t>(x));
      continue;
    }
    std::memcpy(rgb.out + x, r, count);
    std::memcpy(rgb.out + rgb.plane + x, g, count);
    std::memcpy(rgb.out + 2 * rgb.plane + x, b, count);
  }
}

#if defined(TARPEG_AVX2)

// (factor * c + 2^15) >> 16 is (factor / 2 * c + 2^14) >> 15, for kRed too: 13173 is half a unit more than
// its half, but the result is the same for each c from -128 to 127.
constexpr int kHalfRed = (kRed + 1) / 2;
constexpr int kGreen =
    static_cast<int>(static_cast<uint32_t>(kGreenRed) << 16 | (static_cast<uint32_t>(kGreenBlue) & 0xFFFF));

TARPEG_AVX2 inline __m256i widened(const uint8_t* at) noexcept {
  return _mm256_cvtepu8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(at)));
}

// a and b, 16 lanes of at most 255 each, as a0 b0 a1 b1 ...
TARPEG_AVX2 inline void store_interleaved(__m256i a, __m256i b, uint8_t* out) noexcept {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(out), _mm256_or_si256(a, _mm256_slli_epi16(b, 8)));
}

TARPEG_AVX2 int convert_avx2(const uint8_t* luma, const uint8_t* blue, const uint8_t* red, int count,
                             RgbLine rgb) noexcept {
  const __m256i center = _mm256_set1_epi16(128), green = _mm256_set1_epi32(kGreen);
  const __m256i half = _mm256_set1_epi32(kHalf);
  if (count < 16) return 0;
  // 16 pixels at a time, the last 16 perhaps again in part: the bytes written must stay inside the row.
  for (int next = 0; next < count; next += 16) {
    const int x = std::min(next, count - 16);
    const __m256i y = widened(luma + x);
    const __m256i cb = _mm256_sub_epi16(widened(blue + x), center);
    const __m256i cr = _mm256_sub_epi16(widened(red + x), center);
    const __m256i r_part = _mm256_mulhrs_epi16(cr, _mm256_set1_epi16(kHalfRed));
    const __m256i b_part = _mm256_mulhrs_epi16(cb, _mm256_set1_epi16(kBlue / 2));
    const __m256i g_low = _mm256_srai_epi32(
        _mm256_add_epi32(_mm256_madd_epi16(_mm256_unpacklo_epi16(cb, cr), green), half), 16);
    const __m256i g_high = _mm256_srai_epi32(
        _mm256_add_epi32(_mm256_madd_epi16(_mm256_unpackhi_epi16(cb, cr), green), half), 16);
    const __m256i r = _mm256_add_epi16(y, _mm256_add_epi16(cr, r_part));
    const __m256i g = _mm256_add_epi16(_mm256_sub_epi16(y, cr), _mm256_packs_epi32(g_low, g_high));
    const __m256i b = _mm256_add_epi16(y, _mm256_add_epi16(_mm256_add_epi16(cb, cb), b_part));
    const __m256i rg = _mm256_packus_epi16(r, g), bb = _mm256_packus_epi16(b, b);
    if (rgb.plane == 0) {
      store_rgb(rg, bb, rgb.out + 3 * static_cast<ptrdiff_t>(x));
      continue;
    }
    const __m256i in_order = _mm256_permute4x64_epi64(rg, 0xD8);
    uint8_t* const out = rgb.out + x;
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out), _mm256_castsi256_si128(in_order));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out + rgb.plane), _mm256_extracti128_si256(in_order, 1));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out + 2 * rgb.plane),
                     _mm256_castsi256_si128(_mm256_permute4x64_epi64(bb, 0xD8)));
  }
  return count;
}

TARPEG_AVX2 void h2v1_avx2(const uint8_t* in, int count, uint8_t* out) noexcept {
  const __m256i one = _mm256_set1_epi16(1), two = _mm256_set1_epi16(2);
  for (int x = 0; x < count; x += 16) {
    const __m256i here = widened(in + x);
    const __m256i three = _mm256_add_epi16(here, _mm256_add_epi16(here, here));
    const __m256i left = _mm256_add_epi16(_mm256_add_epi16(three, widened(in + x - 1)), one);
    const __m256i right = _mm256_add_epi16(_mm256_add_epi16(three, widened(in + x + 1)), two);
    store_interleaved(_mm256_srli_epi16(left, 2), _mm256_srli_epi16(right, 2), out + 2 * x);
  }
}

TARPEG_AVX2 void h2v2_avx2(const ChromaRow& row, int16_t* sums, uint8_t* out) noexcept {
  for (int x = 0; x < row.count; x += 16) {
    const __m256i near = widened(row.near + x);
    const __m256i sum =
        _mm256_add_epi16(_mm256_add_epi16(near, _mm256_add_epi16(near, near)), widened(row.far + x));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(sums + x), sum);
  }
  const __m256i seven = _mm256_set1_epi16(7), eight = _mm256_set1_epi16(8);
  for (int x = 0; x < row.count; x += 16) {
    const __m256i here = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(sums + x));
    const __m256i before = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(sums + x - 1));
    const __m256i after = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(sums + x + 1));
    const __m256i three = _mm256_add_epi16(here, _mm256_add_epi16(here, here));
    const __m256i left = _mm256_add_epi16(_mm256_add_epi16(three, before), eight);
    const __m256i right = _mm256_add_epi16(_mm256_add_epi16(three, after), seven);
    store_interleaved(_mm256_srli_epi16(left, 4), _mm256_srli_epi16(right, 4), out + 2 * x);
  }
}

#endif

#if defined(TARPEG_AVX512)

TARPEG_AVX512 inline __m512i widened512(const uint8_t* at) noexcept {
  return _mm512_cvtepu8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(at)));
}

// RGB of 32 pixels, from Y and twice Cb - 128 and Cr - 128: a product rounded to nearest of 15 fractional
// bits is then libjpeg's for each of their 256 values.
template <bool kIsPlanar>
struct ToRgb512 {
  const __m512i red = _mm512_set1_epi16(22970), blue = _mm512_set1_epi16(29033);
  const __m512i green = _mm512_set1_epi32(static_cast<int>(0xA4970000u | (0xFFFF & -11277)));
  const __m512i half = _mm512_set1_epi32(kHalf), order = _mm512_setr_epi64(0, 2, 4, 6, 1, 3, 5, 7);
  const StoreRgb store_rgb;
  const RgbLine rgb;

  TARPEG_AVX512 explicit ToRgb512(RgbLine row) noexcept : rgb(row) {}
  TARPEG_AVX512 void store(__m512i y, __m512i cb, __m512i cr, int x) const noexcept {
    const __m512i g_low = _mm512_dpwssd_epi32(half, _mm512_unpacklo_epi16(cb, cr), green);
    const __m512i g_high = _mm512_dpwssd_epi32(half, _mm512_unpackhi_epi16(cb, cr), green);
    const __m512i g_part = _mm512_packs_epi32(_mm512_srai_epi32(g_low, 16), _mm512_srai_epi32(g_high, 16));
    const __m512i r = _mm512_add_epi16(y, _mm512_mulhrs_epi16(cr, red));
    const __m512i b = _mm512_add_epi16(y, _mm512_mulhrs_epi16(cb, blue));
    const __m512i rg = _mm512_packus_epi16(r, _mm512_add_epi16(y, g_part)), bb = _mm512_packus_epi16(b, b);
    if constexpr (!kIsPlanar) return store_rgb(rg, bb, rgb.out + 3 * static_cast<ptrdiff_t>(x));
    const __m512i in_order = _mm512_permutexvar_epi64(order, rg);
    put(_mm512_castsi512_si256(in_order), rgb.out + x);
    put(_mm512_extracti64x4_epi64(in_order, 1), rgb.out + rgb.plane + x);
    put(_mm512_castsi512_si256(_mm512_permutexvar_epi64(order, bb)), rgb.out + 2 * rgb.plane + x);
  }
  TARPEG_AVX512 static void put(__m256i levels, uint8_t* out) noexcept {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out), levels);
  }
};

template <bool kIsPlanar>
TARPEG_AVX512 int convert_avx512(const uint8_t* luma, const uint8_t* blue, const uint8_t* red, int count,
                                 RgbLine rgb) noexcept {
  const __m512i center = _mm512_set1_epi16(256);
  const ToRgb512<kIsPlanar> to_rgb(rgb);
  // The last 32 pixels perhaps again in part, as in AVX2.
  for (int next = 0; next < count; next += 32) {
    const int x = std::min(next, count - 32);
    const __m512i cb = _mm512_sub_epi16(_mm512_slli_epi16(widened512(blue + x), 1), center);
    const __m512i cr = _mm512_sub_epi16(_mm512_slli_epi16(widened512(red + x), 1), center);
    to_rgb.store(widened512(luma + x), cb, cr, x);
  }
  return count;
}

// For 32 pixels, of which the first has an even ([0]) or odd number: the samples that each mixes, from those
// that begin with the one before the first pixel's; their weights; and its rounding term with and without
// mixed rows. A pixel is three quarters of its own sample.
struct alignas(64) Mix {
  uint8_t samples[64];
  int8_t weights[64], near_weights[64];
  int16_t rounds[2][32];
};

constexpr Mix mix_of(int first) {
  Mix mix{};
  for (int i = 0; i < 32; ++i) {
    const int pixel = first + i, is_odd = pixel % 2;
    for (int k = 0; k < 2; ++k) {
      mix.samples[2 * i + k] = static_cast<uint8_t>(pixel / 2 + is_odd + k);
      mix.weights[2 * i + k] = static_cast<int8_t>(k == is_odd ? 1 : 3);
      mix.near_weights[2 * i + k] = static_cast<int8_t>(3 * mix.weights[2 * i + k]);
    }
    // Without, the row is mixed with itself, and rounding is the other way round. Minus 128 levels.
    for (int mixes = 0; mixes < 2; ++mixes)
      mix.rounds[mixes][i] = static_cast<int16_t>((mixes != is_odd ? 8 : 7) - 16 * 128);
  }
  return mix;
}
constexpr Mix kMix[2] = {mix_of(0), mix_of(1)};

struct Mixer512 {
  const __m512i places, weights, near_weights, rounds;

  TARPEG_AVX512 Mixer512(const Mix& mix, bool mixes_rows) noexcept
      : places(_mm512_load_si512(mix.samples)),
        weights(_mm512_load_si512(mix.weights)),
        near_weights(_mm512_load_si512(mix.near_weights)),
        rounds(_mm512_load_si512(mix.rounds[mixes_rows])) {}
  TARPEG_AVX512 __m512i pairs(const uint8_t* samples) const noexcept {
    const __m256i some = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(samples));
    return _mm512_permutexvar_epi8(places, _mm512_castsi256_si512(some));
  }
  // Twice a component of 32 pixels, minus 128.
  TARPEG_AVX512 __m512i twice(const uint8_t* near, const uint8_t* far) const noexcept {
    const __m512i sum = _mm512_add_epi16(_mm512_maddubs_epi16(pairs(near), near_weights),
                                         _mm512_maddubs_epi16(pairs(far), weights));
    return _mm512_and_si512(_mm512_srai_epi16(_mm512_add_epi16(sum, rounds), 3), _mm512_set1_epi16(-2));
  }
};

template <bool kIsPlanar>
TARPEG_AVX512 void mix_and_convert(const uint8_t* luma, const ChromaRow& cb, const ChromaRow& cr,
                                   bool mixes_rows, int left, int count, RgbLine rgb) noexcept {
  const ToRgb512<kIsPlanar> to_rgb(rgb);
  const uint8_t *const near_cb = cb.near, *const far_cb = cb.far, *const near_cr = cr.near,
                       *const far_cr = cr.far;
  const auto convert = [=](const Mixer512& mixer, int x) TARPEG_AVX512 {
    const ptrdiff_t at = (left + x) / 2 - 1;
    to_rgb.store(widened512(luma + x), mixer.twice(near_cb + at, far_cb + at),
                 mixer.twice(near_cr + at, far_cr + at), x);
  };
  const Mixer512 mixer(kMix[left % 2], mixes_rows);
  int x = 0;
  for (; x + 32 <= count; x += 32) convert(mixer, x);
  if (x < count) convert(Mixer512(kMix[(left + count) % 2], mixes_rows), count - 32);
}

#endif

}  // namespace

void upsample_h2v1(const ChromaRow& row, uint8_t* out) noexcept {
  const uint8_t* in = row.near;
  const int n = row.count;
#if defined(TARPEG_AVX2)
  if (has_avx2()) return h2v1_avx2(in, n, out);
#endif
  for (int x = 0; x < n; ++x) {
    out[2 * x] = static_cast<uint8_t>((3 * in[x] + in[x - 1] + 1) >> 2);
    out[2 * x + 1] = static_cast<uint8_t>((3 * in[x] + in[x + 1] + 2) >> 2);
  }
}

void upsample_h2v2(const ChromaRow& row, int16_t* sums, uint8_t* out) noexcept {
  const int n = row.count;
  ++sums;  // the number before the first is read, not used
#if defined(TARPEG_AVX2)
  if (has_avx2()) return h2v2_avx2(row, sums, out);
#endif
  for (int x = 0; x < n; ++x) sums[x] = static_cast<int16_t>(3 * row.near[x] + row.far[x]);
  for (int x = 0; x < n; ++x) {
    out[2 * x] = static_cast<uint8_t>((3 * sums[x] + sums[x - 1] + 8) >> 4);
    out[2 * x + 1] = static_cast<uint8_t>((3 * sums[x] + sums[x + 1] + 7) >> 4);
  }
}

void upsample_h1v2(const ChromaRow& row, bool is_lower, uint8_t* out) noexcept {
  const int bias = is_lower ? 2 : 1;
  for (int x = 0; x < row.count; ++x)
    out[x] = static_cast<uint8_t>((3 * row.near[x] + row.far[x] + bias) >> 2);
}

void replicate(const ChromaRow& row, int times, uint8_t* out) noexcept {
  for (int x = 0; x < row.count; ++x) {
    for (int i = 0; i < times; ++i) out[x * times + i] = row.near[x];
  }
}

void ycc_to_rgb(const uint8_t* luma, const uint8_t* cb, const uint8_t* cr, int count, RgbLine rgb) noexcept {
  int done = 0;
#if defined(TARPEG_AVX512)
  if (count >= 32 && has_avx512()) {
    done = (rgb.plane == 0 ? convert_avx512<false> : convert_avx512<true>)(luma, cb, cr, count, rgb);
  }
#endif
#if defined(TARPEG_AVX2)
  if (done == 0 && has_avx2()) done = convert_avx2(luma, cb, cr, count, rgb);
#endif
  convert_portable(luma, cb, cr, done, count, rgb);
}

bool upsample_to_rgb([[maybe_unused]] const uint8_t* luma, [[maybe_unused]] const ChromaRow& cb,
                     [[maybe_unused]] const ChromaRow& cr, [[maybe_unused]] bool mixes_rows,
                     [[maybe_unused]] int left, [[maybe_unused]] int count,
                     [[maybe_unused]] RgbLine rgb) noexcept {
#if defined(TARPEG_AVX512)
  if (count >= 32 && has_avx512()) {
    (rgb.plane == 0 ? mix_and_convert<false> : mix_and_convert<true>)(luma, cb, cr, mixes_rows, left, count,
                                                                      rgb);
    return true;
  }
#endif
  return false;
}

void rgb_to_gray(const uint8_t* rgb, int count, uint8_t* gray) noexcept {
  for (int x = 0; x < count; ++x, rgb += 3) {
    gray[x] = static_cast<uint8_t>((19595 * rgb[0] + 38470 * rgb[1] + 7471 * rgb[2] + kHalf) >> 16);
  }
}

void gray_to_rgb(const uint8_t* luma, int count, RgbLine rgb) noexcept {
  if (rgb.plane == 0) {
    for (int x = 0; x < count; ++x) std::memset(rgb.out + 3 * static_cast<ptrdiff_t>(x), luma[x], 3);
  } else {
    for (int i = 0; i < 3; ++i) std::memcpy(rgb.out + i * rgb.plane, luma, count);
  }
}

}  // namespace tarpeg
