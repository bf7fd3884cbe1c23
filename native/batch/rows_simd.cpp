#include "batch/rows_simd.h"

#include "image/lanes.h"

namespace tarpeg {

#if defined(TARPEG_X86)
namespace {

TARPEG_AVX2 inline void widen(__m128i bytes, float* out) {
  _mm256_storeu_ps(out, _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(bytes)));
}

TARPEG_AVX2 int direct_avx2(const uint8_t* pixel, const Picture<uint8_t>& from, bool backwards, int count,
                            int at, Row* row) {
  float* out[3] = {row->r + at, row->g + at, row->b + at};
  int i = 0;
  if (from.pixel_stride == 1) {
    const __m128i order = backwards ? _mm_setr_epi8(7, 6, 5, 4, 3, 2, 1, 0, -1, -1, -1, -1, -1, -1, -1, -1)
                                    : _mm_setr_epi8(0, 1, 2, 3, 4, 5, 6, 7, -1, -1, -1, -1, -1, -1, -1, -1);
    for (; i + 8 <= count; i += 8) {
      const uint8_t* first = backwards ? pixel - i - 7 : pixel + i;
      for (int c = 0; c < 3; ++c) {
        fetch_ahead(first + c * from.channel_stride);
        widen(_mm_shuffle_epi8(load8(first + c * from.channel_stride), order), out[c] + i);
      }
    }
    return i;
  }
  const Picks picks = picks_of(kChannels[backwards]);
  for (; i + 8 <= count; i += 8) {
    const uint8_t* first = backwards ? pixel - 3 * (i + 7) : pixel + 3 * i;
    fetch_ahead(first);
    const __m128i low = load16(first), high = load8(first + 16);
    for (int c = 0; c < 3; ++c) {
      const __m128i bytes =
          _mm_or_si128(_mm_shuffle_epi8(low, picks.low[c]), _mm_shuffle_epi8(high, picks.high[c]));
      widen(bytes, out[c] + i);
    }
  }
  return i;
}

// As to_level() in augment.h, to eight bytes.
TARPEG_AVX2 inline __m128i levels8(const float* values) {
  const __m256 above = _mm256_max_ps(_mm256_loadu_ps(values), _mm256_setzero_ps());
  const __m256 held = _mm256_min_ps(above, _mm256_set1_ps(255));
  const __m256i whole = _mm256_cvttps_epi32(_mm256_add_ps(held, _mm256_set1_ps(0.5f)));
  const __m128i words = _mm_packus_epi32(_mm256_castsi256_si128(whole), _mm256_extracti128_si256(whole, 1));
  return _mm_packus_epi16(words, words);
}

template <Number kType, bool kStreams>
TARPEG_AVX2_F16C int store_avx2(const Row& row, const float* scale, const float* shift, int64_t pixel, int n,
                                const Target& target) {
  const int64_t plane = target.height * target.width;
  const float* channels[3] = {row.r, row.g, row.b};
  // Interleaved, number p of vector k belongs to pixel (8 k + p) / 3 and channel (8 k + p) % 3.
  const __m256i order[3] = {_mm256_setr_epi32(0, 0, 0, 1, 1, 1, 2, 2),
                            _mm256_setr_epi32(2, 3, 3, 3, 4, 4, 4, 5),
                            _mm256_setr_epi32(5, 5, 6, 6, 6, 7, 7, 7)};
  int i = 0;
  for (; i + 8 <= n; i += 8) {
    __m256 value[3];
    for (int c = 0; c < 3; ++c) {
      value[c] = _mm256_add_ps(_mm256_mul_ps(_mm256_loadu_ps(channels[c] + i), _mm256_set1_ps(scale[c])),
                               _mm256_set1_ps(shift[c]));
      if (target.planar) put8<kType, kStreams>(value[c], target.data, c * plane + pixel + i);
    }
    if (target.planar) continue;
    const int64_t at = 3 * (pixel + i);
    __m256 mixed[9];
    for (int k = 0; k < 3; ++k) {
      for (int c = 0; c < 3; ++c) mixed[3 * k + c] = _mm256_permutevar8x32_ps(value[c], order[k]);
    }
    put8<kType, kStreams>(_mm256_blend_ps(_mm256_blend_ps(mixed[0], mixed[1], 0x92), mixed[2], 0x24),
                          target.data, at);
    put8<kType, kStreams>(_mm256_blend_ps(_mm256_blend_ps(mixed[3], mixed[4], 0x24), mixed[5], 0x49),
                          target.data, at + 8);
    put8<kType, kStreams>(_mm256_blend_ps(_mm256_blend_ps(mixed[6], mixed[7], 0x49), mixed[8], 0x92),
                          target.data, at + 16);
  }
  return i;
}

template <Number kType>
int store_numbers(const Row& row, const float* scale, const float* shift, int64_t pixel, int n,
                  const Target& target) {
  return may_stream(target, pixel) ? store_avx2<kType, true>(row, scale, shift, pixel, n, target)
                                   : store_avx2<kType, false>(row, scale, shift, pixel, n, target);
}

TARPEG_AVX2 int store_levels_avx2(const Row& row, int64_t pixel, int n, const Target& target) {
  uint8_t* out = static_cast<uint8_t*>(target.data);
  const int64_t plane = target.height * target.width;
  int i = 0;
  for (; i + 8 <= n; i += 8) {
    const __m128i r = levels8(row.r + i), g = levels8(row.g + i), b = levels8(row.b + i);
    if (target.planar) {
      _mm_storel_epi64(reinterpret_cast<__m128i*>(out + pixel + i), r);
      _mm_storel_epi64(reinterpret_cast<__m128i*>(out + plane + pixel + i), g);
      _mm_storel_epi64(reinterpret_cast<__m128i*>(out + 2 * plane + pixel + i), b);
      continue;
    }
    const __m128i rg = _mm_unpacklo_epi8(r, g);  // r0 g0 r1 g1 ...
    const __m128i first = _mm_or_si128(
        _mm_shuffle_epi8(rg, _mm_setr_epi8(0, 1, -1, 2, 3, -1, 4, 5, -1, 6, 7, -1, 8, 9, -1, 10)),
        _mm_shuffle_epi8(b, _mm_setr_epi8(-1, -1, 0, -1, -1, 1, -1, -1, 2, -1, -1, 3, -1, -1, 4, -1)));
    const __m128i last = _mm_or_si128(
        _mm_shuffle_epi8(rg, _mm_setr_epi8(11, -1, 12, 13, -1, 14, 15, -1, -1, -1, -1, -1, -1, -1, -1, -1)),
        _mm_shuffle_epi8(b, _mm_setr_epi8(-1, 5, -1, -1, 6, -1, -1, 7, -1, -1, -1, -1, -1, -1, -1, -1)));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out + 3 * (pixel + i)), first);
    _mm_storel_epi64(reinterpret_cast<__m128i*>(out + 3 * (pixel + i) + 16), last);
  }
  return i;
}

}  // namespace

int direct_simd(const uint8_t* pixel, const Picture<uint8_t>& from, bool backwards, int count, int at,
                Row* row) {
  return has_avx2() ? direct_avx2(pixel, from, backwards, count, at, row) : 0;
}

int store_simd(const Row& row, const float* scale, const float* shift, int64_t x, int64_t y, int n,
               const Target& target) {
  if (!has_avx2()) return 0;
  const int64_t pixel = y * target.width + x;
  switch (target.type) {
    case Number::kUint8:
      return store_levels_avx2(row, pixel, n, target);
    case Number::kFloat32:
      return store_numbers<Number::kFloat32>(row, scale, shift, pixel, n, target);
    case Number::kFloat16:
      return store_numbers<Number::kFloat16>(row, scale, shift, pixel, n, target);
    case Number::kBFloat16:
      return store_numbers<Number::kBFloat16>(row, scale, shift, pixel, n, target);
  }
  return 0;
}

void finish_stores() { _mm_sfence(); }

#else

void finish_stores() {}

int direct_simd(const uint8_t*, const Picture<uint8_t>&, bool, int, int, Row*) { return 0; }

int store_simd(const Row&, const float*, const float*, int64_t, int64_t, int, const Target&) { return 0; }

#endif

}  // namespace tarpeg
