#include "batch/program_rows.h"

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
