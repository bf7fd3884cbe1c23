#include "batch/program_rows.h"

#include <cstring>

#include "base/simd.h"

namespace tarpeg::programs {
namespace {

constexpr int64_t kBlock = 1024;  // pixels of which intermediate results are kept

#if defined(TARPEG_AVX2)

// Each returns how many numbers or pixels are done; the callers do the rest.

TARPEG_AVX2 int64_t look_up_avx2(In levels, int64_t n, In table, Out out) {
  // A shuffle gives 0 for negative bytes. So a level finds its own part of the table and those before it; as
  // each is exclusive-or with the one before, their exclusive-or is the table's value.
  __m256i parts[16];
  __m128i before = _mm_setzero_si128();
  for (int k = 0; k < 16; ++k) {
    const __m128i part = _mm_loadu_si128(reinterpret_cast<const __m128i*>(table) + k);
    if (k == 8) before = _mm_set1_epi8(static_cast<char>(table[127]));
    parts[k] = _mm256_broadcastsi128_si256(_mm_xor_si128(part, before));
    before = part;
  }
  int64_t i = 0;
  for (; i + 32 <= n; i += 32) {
    const __m256i level = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(levels + i));
    __m256i low = _mm256_min_epu8(level, _mm256_set1_epi8(127));  // all levels above are 127 there
    __m256i high = _mm256_xor_si256(level, _mm256_set1_epi8(-128));
    __m256i found = _mm256_setzero_si256();
    for (int k = 0; k < 8; ++k) {
      found = _mm256_xor_si256(found, _mm256_shuffle_epi8(parts[k], low));
      found = _mm256_xor_si256(found, _mm256_shuffle_epi8(parts[8 + k], high));
      low = _mm256_subs_epi8(low, _mm256_set1_epi8(16));
      high = _mm256_subs_epi8(high, _mm256_set1_epi8(16));
    }
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + i), found);
  }
  return i;
}

#if defined(TARPEG_AVX512)

TARPEG_AVX512 int64_t look_up_avx512(In levels, int64_t n, In table, Out out) {
  __m512i parts[4];
  for (int k = 0; k < 4; ++k) parts[k] = _mm512_loadu_si512(table + 64 * k);
  int64_t i = 0;
  for (; i + 64 <= n; i += 64) {
    const __m512i at = _mm512_loadu_si512(levels + i);
    const __m512i low = _mm512_permutex2var_epi8(parts[0], at, parts[1]);
    const __m512i high = _mm512_permutex2var_epi8(parts[2], at, parts[3]);
    _mm512_storeu_si512(out + i, _mm512_mask_mov_epi8(low, _mm512_movepi8_mask(at), high));
  }
  return i;
}

#endif

TARPEG_AVX2 int64_t join_four_avx2(In r, In g, In b, int64_t n, Out four) {
  int64_t i = 0;
  for (; i + 16 <= n; i += 16) {
    const __m128i red = _mm_loadu_si128(reinterpret_cast<const __m128i*>(r + i));
    const __m128i green = _mm_loadu_si128(reinterpret_cast<const __m128i*>(g + i));
    const __m128i blue = _mm_loadu_si128(reinterpret_cast<const __m128i*>(b + i)), one = _mm_set1_epi8(1);
    const __m128i first = _mm_unpacklo_epi8(red, green), second = _mm_unpackhi_epi8(red, green);
    const __m128i third = _mm_unpacklo_epi8(blue, one), fourth = _mm_unpackhi_epi8(blue, one);
    __m128i* const out = reinterpret_cast<__m128i*>(four + 4 * i);
    _mm_storeu_si128(out, _mm_unpacklo_epi16(first, third));
    _mm_storeu_si128(out + 1, _mm_unpackhi_epi16(first, third));
    _mm_storeu_si128(out + 2, _mm_unpacklo_epi16(second, fourth));
    _mm_storeu_si128(out + 3, _mm_unpackhi_epi16(second, fourth));
  }
  return i;
}

TARPEG_AVX2 inline __m128i four_at(const uint8_t* four, const int32_t* at) {
  int32_t pixels[4];
  for (int k = 0; k < 4; ++k) std::memcpy(pixels + k, four + 4 * int64_t{at[k]}, 4);
  return _mm_setr_epi32(pixels[0], pixels[1], pixels[2], pixels[3]);
}

// Eight pixels of four bytes to three planes.
TARPEG_AVX2 inline void store_eight(__m128i first, __m128i second, uint8_t* r, uint8_t* g, uint8_t* b) {
  const __m128i order = _mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
  const __m128i one = _mm_shuffle_epi8(first, order), two = _mm_shuffle_epi8(second, order);
  const __m128i red_green = _mm_unpacklo_epi32(one, two);
  _mm_storel_epi64(reinterpret_cast<__m128i*>(r), red_green);
  _mm_storel_epi64(reinterpret_cast<__m128i*>(g), _mm_unpackhi_epi64(red_green, red_green));
  _mm_storel_epi64(reinterpret_cast<__m128i*>(b), _mm_unpackhi_epi32(one, two));
}

TARPEG_AVX2 int64_t pick_row_avx2(const uint8_t* four, const int32_t* at, int64_t n, Out r, Out g, Out b) {
  int64_t i = 0;
  for (; i + 8 <= n; i += 8) {
    store_eight(four_at(four, at + i), four_at(four, at + i + 4), r + i, g + i, b + i);
  }
  return i;
}

// As weighted() and filled(), to four whole numbers.
TARPEG_AVX2_FMA inline __m128i blend_pixel(const uint8_t* upper, const uint8_t* lower, const float* weights,
                                           int64_t n, bool fills, __m128 fill) {
  const __m256 top =
      _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(upper))));
  const __m256 bottom =
      _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(lower))));
  __m128 sum = _mm_mul_ps(_mm256_castps256_ps128(top), _mm_broadcast_ss(weights));
  sum = _mm_fmadd_ps(_mm256_extractf128_ps(top, 1), _mm_broadcast_ss(weights + n), sum);
  sum = _mm_fmadd_ps(_mm256_castps256_ps128(bottom), _mm_broadcast_ss(weights + 2 * n), sum);
  sum = _mm_fmadd_ps(_mm256_extractf128_ps(bottom, 1), _mm_broadcast_ss(weights + 3 * n), sum);
  if (fills) {
    const __m128 inside = _mm_permute_ps(sum, 0xFF);
    sum = _mm_add_ps(_mm_mul_ps(_mm_sub_ps(sum, fill), inside), fill);
  }
  return _mm_cvtps_epi32(sum);
}

template <bool kFills>
TARPEG_AVX2_FMA int64_t blend_row_of(const uint8_t* four, int64_t stride, const int32_t* at,
                                     const float* weights, int64_t n, __m128 fill, Out r, Out g, Out b) {
  int64_t i = 0;
  for (; i + 8 <= n; i += 8) {
    __m128i halves[2];
    for (int half = 0; half < 2; ++half) {
      __m128i pixel[4];
      for (int k = 0; k < 4; ++k) {
        const int64_t x = i + 4 * half + k;
        const uint8_t* upper = four + 4 * int64_t{at[x]};
        pixel[k] = blend_pixel(upper, upper + 4 * stride, weights + x, n, kFills, fill);
      }
      halves[half] =
          _mm_packus_epi16(_mm_packus_epi32(pixel[0], pixel[1]), _mm_packus_epi32(pixel[2], pixel[3]));
    }
    store_eight(halves[0], halves[1], r + i, g + i, b + i);
  }
  return i;
}

TARPEG_AVX2_FMA int64_t blend_row_avx2(const uint8_t* four, int64_t stride, const int32_t* at,
                                       const float* weights, int64_t n, const float* fill, Out r, Out g,
                                       Out b) {
  if (!fill) return blend_row_of<false>(four, stride, at, weights, n, _mm_setzero_ps(), r, g, b);
  const __m128 levels = _mm_setr_ps(fill[0], fill[1], fill[2], 0);
  return blend_row_of<true>(four, stride, at, weights, n, levels, r, g, b);
}

TARPEG_AVX2_FMA int64_t blur_row_avx2(const float* const* rows, const Blur& blur, int64_t n,
                                      float* __restrict out) {
  int64_t x = 0;
  for (; x + 32 <= n; x += 32) {
    const __m256 middle = _mm256_broadcast_ss(blur.weights);
    __m256 sum[4];
    for (int k = 0; k < 4; ++k) sum[k] = _mm256_mul_ps(middle, _mm256_loadu_ps(rows[0] + x + 8 * k));
    for (int i = 1; i <= blur.radius; ++i) {
      const float *before = rows[-i] + x, *after = rows[i] + x;
      const __m256 weight = _mm256_broadcast_ss(blur.weights + i);
      for (int k = 0; k < 4; ++k) {
        const __m256 pair = _mm256_add_ps(_mm256_loadu_ps(before + 8 * k), _mm256_loadu_ps(after + 8 * k));
        sum[k] = _mm256_fmadd_ps(weight, pair, sum[k]);
      }
    }
    for (int k = 0; k < 4; ++k) _mm256_storeu_ps(out + x + 8 * k, sum[k]);
  }
  return x;
}

#endif

}  // namespace

TARPEG_HD void split_of(In pixels, int64_t n, Out r, Out g, Out b) {
  for (int64_t i = 0; i < n; ++i) {
    r[i] = pixels[3 * i];
    g[i] = pixels[3 * i + 1];
    b[i] = pixels[3 * i + 2];
  }
}
TARPEG_VECTORISED(void, split, (In pixels, int64_t n, Out r, Out g, Out b), (pixels, n, r, g, b))

TARPEG_HD void join_of(In r, In g, In b, int64_t n, Out pixels) {
  for (int64_t i = 0; i < n; ++i) {
    pixels[3 * i] = r[i];
    pixels[3 * i + 1] = g[i];
    pixels[3 * i + 2] = b[i];
  }
}
TARPEG_VECTORISED(void, join, (In r, In g, In b, int64_t n, Out pixels), (r, g, b, n, pixels))

void look_up(In levels, int64_t n, In table, Out out) {
  int64_t i = 0;
#if defined(TARPEG_AVX512)
  if (has_avx512()) i = look_up_avx512(levels, n, table, out);
#endif
#if defined(TARPEG_AVX2)
  if (i == 0 && has_avx2()) i = look_up_avx2(levels, n, table, out);
#endif
  for (; i < n; ++i) out[i] = table[levels[i]];
}

TARPEG_HD void reverse_of(In levels, int64_t n, Out out) {
  for (int64_t i = 0; i < n; ++i) out[i] = levels[n - 1 - i];
}
TARPEG_VECTORISED(void, reverse, (In levels, int64_t n, Out out), (levels, n, out))

TARPEG_HD void extremes_of(In levels, int64_t n, uint8_t* lowest, uint8_t* highest) {
  uint8_t low = 255, high = 0;
  for (int64_t i = 0; i < n; ++i) {
    low = levels[i] < low ? levels[i] : low;
    high = levels[i] > high ? levels[i] : high;
  }
  *lowest = low;
  *highest = high;
}
TARPEG_VECTORISED(void, extremes, (In levels, int64_t n, uint8_t* low, uint8_t* high), (levels, n, low, high))

TARPEG_HD void to_gray_of(In r, In g, In b, int64_t n, Out gray) {
  for (int64_t i = 0; i < n; ++i) gray[i] = static_cast<uint8_t>(whole_gray(r[i], g[i], b[i]));
}
TARPEG_VECTORISED(void, to_gray, (In r, In g, In b, int64_t n, Out gray), (r, g, b, n, gray))

TARPEG_HD int64_t sum_gray_of(In r, In g, In b, int64_t n) {
  int64_t sum = 0;
  for (int64_t begin = 0; begin < n; begin += kBlock) {
    const int64_t end = begin + kBlock < n ? begin + kBlock : n;
    int32_t part = 0;
    for (int64_t i = begin; i < end; ++i) part += whole_gray(r[i], g[i], b[i]);
    sum += part;
  }
  return sum;
}
TARPEG_VECTORISED(int64_t, sum_gray, (In r, In g, In b, int64_t n), (r, g, b, n))

TARPEG_HD void saturate_planes_of(In r, In g, In b, int64_t n, float ratio, Out out_r, Out out_g, Out out_b) {
  const float rest = rest_of(ratio);
  for (int64_t i = 0; i < n; ++i) {
    const float red = r[i], green = g[i], blue = b[i];
    const float gray = static_cast<float>(whole_gray(red, green, blue));
    out_r[i] = blend_levels(red, ratio, gray, rest);
    out_g[i] = blend_levels(green, ratio, gray, rest);
    out_b[i] = blend_levels(blue, ratio, gray, rest);
  }
}
TARPEG_VECTORISED(void, saturate_planes, (In r, In g, In b, int64_t n, float ratio, Out x, Out y, Out z),
                  (r, g, b, n, ratio, x, y, z))

TARPEG_HD void turn_of(In r, In g, In b, int64_t n, float hue, Out out_r, Out out_g, Out out_b) {
  for (int64_t i = 0; i < n; ++i) shift_hue(hue, r[i], g[i], b[i], out_r + i, out_g + i, out_b + i);
}
TARPEG_VECTORISED(void, turn, (In r, In g, In b, int64_t n, float hue, Out x, Out y, Out z),
                  (r, g, b, n, hue, x, y, z))

TARPEG_HD void sharpen_of(In above, In here, In below, int64_t width, float rest, Out out) {
  for (int64_t i = 1; i < width - 1; ++i) {
    const int sum = above[i - 1] + above[i] + above[i + 1] + here[i - 1] + 5 * here[i] + here[i + 1] +
                    below[i - 1] + below[i] + below[i + 1];
    out[i] = sharpened(here[i], sum, rest);
  }
}
TARPEG_VECTORISED(void, sharpen, (In above, In here, In below, int64_t width, float rest, Out out),
                  (above, here, below, width, rest, out))

void join_four(In r, In g, In b, int64_t n, Out four) {
  int64_t i = 0;
#if defined(TARPEG_AVX2)
  if (has_avx2()) i = join_four_avx2(r, g, b, n, four);
#endif
  for (; i < n; ++i) {
    four[4 * i] = r[i];
    four[4 * i + 1] = g[i];
    four[4 * i + 2] = b[i];
    four[4 * i + 3] = 1;
  }
}

TARPEG_HD void indices_of(const Grid& whole, int y, int width, int32_t* __restrict out) {
  const Grid grid = whole;
  for (int x = 0; x < width; ++x) out[x] = index_at(grid, x, y) + 1;
}
TARPEG_VECTORISED(void, indices, (const Grid& grid, int y, int width, int32_t* __restrict out),
                  (grid, y, width, out))

void pick_row(const uint8_t* four, const int32_t* at, int64_t n, Out r, Out g, Out b) {
  int64_t i = 0;
#if defined(TARPEG_AVX2)
  if (has_avx2()) i = pick_row_avx2(four, at, n, r, g, b);
#endif
  for (; i < n; ++i) {
    const uint8_t* pixel = four + 4 * int64_t{at[i]};
    r[i] = pixel[0];
    g[i] = pixel[1];
    b[i] = pixel[2];
  }
}

TARPEG_HD void all_taps_of(const Grid& whole, int y, int width, int32_t* __restrict at,
                           float* __restrict weights) {
  const Grid grid = whole;
  const int32_t stride = static_cast<int32_t>(grid.width) + 2;
  float* __restrict ne = weights + width;
  float* __restrict sw = ne + width;
  float* __restrict se = sw + width;
  for (int x = 0; x < width; ++x) {
    const Taps taps = taps_at(grid, x, y);
    at[x] = taps.x < -1 ? 0 : (taps.y + 1) * stride + taps.x + 1;
    weights[x] = taps.nw;
    ne[x] = taps.ne;
    sw[x] = taps.sw;
    se[x] = taps.se;
  }
}
TARPEG_VECTORISED(void, all_taps,
                  (const Grid& grid, int y, int width, int32_t* __restrict at, float* __restrict weights),
                  (grid, y, width, at, weights))

void blend_row(const uint8_t* four, int64_t stride, const int32_t* at, const float* weights, int64_t n,
               const float* fill, Out r, Out g, Out b) {
  int64_t i = 0;
#if defined(TARPEG_AVX2)
  if (has_avx2()) i = blend_row_avx2(four, stride, at, weights, n, fill, r, g, b);
#endif
  for (; i < n; ++i) {
    const uint8_t *upper = four + 4 * int64_t{at[i]}, *lower = upper + 4 * stride;
    const float of[4] = {weights[i], weights[n + i], weights[2 * n + i], weights[3 * n + i]};
    float value[4];
    for (int c = 0; c < 4; ++c) value[c] = weighted(upper[c], upper[c + 4], lower[c], lower[c + 4], of);
    uint8_t level[3];
    for (int c = 0; c < 3; ++c) level[c] = rounded(fill ? filled(value[c], value[3], fill[c]) : value[c]);
    r[i] = level[0];
    g[i] = level[1];
    b[i] = level[2];
  }
}

TARPEG_HD void widen_of(In levels, int64_t n, float* __restrict out) {
  for (int64_t i = 0; i < n; ++i) out[i] = static_cast<float>(levels[i]);
}
TARPEG_VECTORISED(void, widen, (In levels, int64_t n, float* __restrict out), (levels, n, out))

void blur_row(const float* const* rows, const Blur& blur, int64_t n, float* __restrict out) {
  int64_t x = 0;
#if defined(TARPEG_AVX2)
  if (has_avx2()) x = blur_row_avx2(rows, blur, n, out);
#endif
  for (; x < n; ++x) {
    float sum = blur.weights[0] * rows[0][x];
    for (int i = 1; i <= blur.radius; ++i) sum = fused(blur.weights[i], rows[-i][x] + rows[i][x], sum);
    out[x] = sum;
  }
}

TARPEG_HD void round_row_of(const float* __restrict from, int64_t n, Out out) {
  for (int64_t i = 0; i < n; ++i) out[i] = rounded(from[i]);
}
TARPEG_VECTORISED(void, round_row, (const float* __restrict from, int64_t n, Out out), (from, n, out))

TARPEG_HD void mix_of(const uint8_t* const* parts, const float* weights, int64_t count, int64_t n, Out out) {
  float sum[kBlock];
  for (int64_t begin = 0; begin < n; begin += kBlock) {
    const int64_t block = n - begin < kBlock ? n - begin : kBlock;
    for (int64_t part = 0; part < count; ++part) {
      In levels = parts[part] + begin;
      const float weight = weights[part];
      if (part == 0) {
        for (int64_t i = 0; i < block; ++i) sum[i] = weight * static_cast<float>(levels[i]);
      } else {
        for (int64_t i = 0; i < block; ++i) sum[i] = mixed_in(sum[i], weight, levels[i]);
      }
    }
    for (int64_t i = 0; i < block; ++i) out[begin + i] = cut(sum[i]);
  }
}
TARPEG_VECTORISED(void, mix,
                  (const uint8_t* const* parts, const float* weights, int64_t count, int64_t n, Out out),
                  (parts, weights, count, n, out))

}  // namespace tarpeg::programs
