#include "batch/rows.h"

#include <algorithm>

#include "base/simd.h"
#include "batch/levels.h"
#include "image/lanes.h"

namespace tarpeg {
namespace {

template <Number kType>
void store_portable(const Row& row, const Normalisation& how, int64_t pixel, int begin, int n,
                    const Target& target) {
  const int64_t plane = target.height * target.width;
  for (int64_t c = 0; c < target.channels; ++c) {
    for (int i = begin; i < n; ++i) {
      const int64_t at = target.planar ? c * plane + pixel + i : 3 * (pixel + i) + c;
      if constexpr (kType == Number::kUint8) {
        static_cast<uint8_t*>(target.data)[at] = to_level(row.channels[c][i]);
      } else {
        put_number<kType>(row.channels[c][i] * how.scale[c] + how.shift[c], target.data, at);
      }
    }
  }
}

#if defined(TARPEG_AVX2)

TARPEG_AVX2 inline void widen(__m128i bytes, float* out) {
  _mm256_storeu_ps(out, _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(bytes)));
}

TARPEG_AVX2 int direct_avx2(const uint8_t* pixel, const Picture<uint8_t>& from, bool backwards, int count,
                            int at, Row* row) {
  int i = 0;
  if (from.pixel_stride == 1) {
    const __m128i order = backwards ? _mm_setr_epi8(7, 6, 5, 4, 3, 2, 1, 0, -1, -1, -1, -1, -1, -1, -1, -1)
                                    : _mm_setr_epi8(0, 1, 2, 3, 4, 5, 6, 7, -1, -1, -1, -1, -1, -1, -1, -1);
    for (; i + 8 <= count; i += 8) {
      const uint8_t* first = backwards ? pixel - i - 7 : pixel + i;
      for (int c = 0; c < from.channels; ++c) {
        fetch_ahead(first + c * from.channel_stride);
        widen(_mm_shuffle_epi8(load8(first + c * from.channel_stride), order), row->channels[c] + at + i);
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
      widen(bytes, row->channels[c] + at + i);
    }
  }
  return i;
}

// As to_level(), to eight bytes.
TARPEG_AVX2 inline __m128i levels8(const float* values) {
  const __m256 above = _mm256_max_ps(_mm256_loadu_ps(values), _mm256_setzero_ps());
  const __m256 held = _mm256_min_ps(above, _mm256_set1_ps(255));
  const __m256i whole = _mm256_cvttps_epi32(_mm256_add_ps(held, _mm256_set1_ps(0.5f)));
  const __m128i words = _mm_packus_epi32(_mm256_castsi256_si128(whole), _mm256_extracti128_si256(whole, 1));
  return _mm_packus_epi16(words, words);
}

template <Number kType, bool kStreams>
TARPEG_AVX2_F16C int store_avx2(const Row& row, const Normalisation& how, int64_t pixel, int n,
                                const Target& target) {
  const int64_t plane = target.height * target.width;
  // Interleaved, number p of vector k belongs to pixel (8 k + p) / 3 and channel (8 k + p) % 3.
  const __m256i order[3] = {_mm256_setr_epi32(0, 0, 0, 1, 1, 1, 2, 2),
                            _mm256_setr_epi32(2, 3, 3, 3, 4, 4, 4, 5),
                            _mm256_setr_epi32(5, 5, 6, 6, 6, 7, 7, 7)};
  int i = 0;
  for (; i + 8 <= n; i += 8) {
    __m256 value[3];
    for (int c = 0; c < 3; ++c) {
      if (c == target.channels) break;
      value[c] =
          _mm256_add_ps(_mm256_mul_ps(_mm256_loadu_ps(row.channels[c] + i), _mm256_set1_ps(how.scale[c])),
                        _mm256_set1_ps(how.shift[c]));
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

TARPEG_AVX2 int store_levels_avx2(const Row& row, int64_t pixel, int n, const Target& target) {
  uint8_t* out = static_cast<uint8_t*>(target.data);
  const int64_t plane = target.height * target.width;
  int i = 0;
  for (; i + 8 <= n; i += 8) {
    if (target.channels == 1) {
      _mm_storel_epi64(reinterpret_cast<__m128i*>(out + pixel + i), levels8(row.channels[0] + i));
      continue;
    }
    const __m128i r = levels8(row.channels[0] + i), g = levels8(row.channels[1] + i),
                  b = levels8(row.channels[2] + i);
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

#endif

// Reads `count` pixels from `pixel` on (backwards: leftwards) into row[at..] and returns how many are done.
int direct_simd([[maybe_unused]] const uint8_t* pixel, [[maybe_unused]] const Picture<uint8_t>& from,
                [[maybe_unused]] bool backwards, [[maybe_unused]] int count, [[maybe_unused]] int at,
                [[maybe_unused]] Row* row) {
#if defined(TARPEG_AVX2)
  if (has_avx2()) return direct_avx2(pixel, from, backwards, count, at, row);
#endif
  return 0;
}

template <Number kType>
void store_as(const Row& row, const Normalisation& how, int64_t pixel, int n, const Target& target) {
  int done = 0;
#if defined(TARPEG_AVX2)
  if (has_avx2()) {
    if constexpr (kType == Number::kUint8) {
      done = store_levels_avx2(row, pixel, n, target);
    } else if (may_stream(target, pixel)) {
      done = store_avx2<kType, true>(row, how, pixel, n, target);
    } else {
      done = store_avx2<kType, false>(row, how, pixel, n, target);
    }
  }
#endif
  store_portable<kType>(row, how, pixel, done, n, target);
}

}  // namespace

void fetch_direct(const Picture<uint8_t>& from, const Affine& map, const float* fill, int64_t x, int64_t y,
                  int n, Row* row) {
  const int64_t source_y = static_cast<int64_t>(map.yy) * y + static_cast<int64_t>(map.y0);
  const int64_t step = static_cast<int64_t>(map.xx), first = step * x + static_cast<int64_t>(map.x0);
  // Which of the n pixels come from inside the image: 0 <= first + step * i < width.
  int64_t begin = step > 0 ? -first : first - from.width + 1, end = step > 0 ? from.width - first : first + 1;
  begin = std::min<int64_t>(std::max<int64_t>(begin, 0), n);
  end = std::max(begin, std::min<int64_t>(end, n));
  if (source_y < 0 || source_y >= from.height) end = begin = 0;
  fill_row(fill, 0, begin, row);
  fill_row(fill, end, n, row);
  if (begin == end) return;
  const uint8_t* pixel = from.data + source_y * from.row_stride + (first + step * begin) * from.pixel_stride;
  const int count = static_cast<int>(end - begin);
  const int done = direct_simd(pixel, from, step < 0, count, static_cast<int>(begin), row);
  pixel += done * step * from.pixel_stride;
  for (int64_t i = begin + done; i < end; ++i, pixel += step * from.pixel_stride) {
    for (int c = 0; c < from.channels; ++c) {
      row->channels[c][i] = static_cast<float>(pixel[c * from.channel_stride]);
    }
  }
}

TARPEG_HD void recolour_row_of(const float* matrix, int n, Row* row) {
  float m[12];  // the compiler cannot know that the row is not the matrix
  std::copy(matrix, matrix + 12, m);
  float *const r = row->channels[0], *const g = row->channels[1], *const b = row->channels[2];
  for (int i = 0; i < n; ++i) recolour(m, r + i, g + i, b + i);
}
TARPEG_VECTORISED(void, recolour_row, (const float* matrix, int n, Row* row), (matrix, n, row))

void store(const Row& row, const Normalisation& how, int64_t x, int64_t y, int n, const Target& target) {
  const int64_t pixel = y * target.width + x;
  switch (target.type) {
    case Number::kUint8:
      return store_as<Number::kUint8>(row, how, pixel, n, target);
    case Number::kFloat32:
      return store_as<Number::kFloat32>(row, how, pixel, n, target);
    case Number::kFloat16:
      return store_as<Number::kFloat16>(row, how, pixel, n, target);
    case Number::kBFloat16:
      return store_as<Number::kBFloat16>(row, how, pixel, n, target);
  }
}

}  // namespace tarpeg
