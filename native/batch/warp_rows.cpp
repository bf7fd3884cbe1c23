#include "batch/warp_rows.h"

#include "base/simd.h"
#include "batch/rows.h"

// Sampling of a warped image, a span of one row at a time.
namespace tarpeg {
namespace {

#if defined(TARPEG_AVX2)

// As floored() in warp.h.
TARPEG_AVX2 inline __m256i floored8(__m256 value, __m256* behind) {
  const __m256 low = _mm256_floor_ps(value);
  *behind = _mm256_sub_ps(value, low);
  const __m256 far = _mm256_set1_ps(static_cast<float>(kFarWay));
  const __m256 above = _mm256_max_ps(low, _mm256_sub_ps(_mm256_setzero_ps(), far));
  return _mm256_cvttps_epi32(_mm256_min_ps(above, far));
}

// Whether 0 <= value <= most in every lane.
TARPEG_AVX2 inline bool all_within(__m256i value, int32_t most) {
  const __m256i held = _mm256_min_epu32(value, _mm256_set1_epi32(most));
  return _mm256_movemask_epi8(_mm256_cmpeq_epi32(held, value)) == -1;
}

// Whether value < low or value > high in every lane.
TARPEG_AVX2 inline __m256i is_outside(__m256i value, int32_t low, int32_t high) {
  return _mm256_or_si256(_mm256_cmpgt_epi32(_mm256_set1_epi32(low), value),
                         _mm256_cmpgt_epi32(value, _mm256_set1_epi32(high)));
}

TARPEG_AVX2 inline __m256 channel8(__m256i pixels, int bits) {
  return _mm256_cvtepi32_ps(_mm256_and_si256(_mm256_srli_epi32(pixels, bits), _mm256_set1_epi32(255)));
}

TARPEG_AVX2 inline __m256 between8(__m256 first, __m256 second, __m256 share) {
  return _mm256_add_ps(first, _mm256_mul_ps(share, _mm256_sub_ps(second, first)));
}

TARPEG_AVX2 inline __m256i gather8(const uint8_t* data, __m256i offsets) {
  return _mm256_i32gather_epi32(reinterpret_cast<const int*>(data), offsets, 1);
}

// Four bytes at each offset, but none after the last of `bytes`: bytes read before the offset instead are
// shifted out.
TARPEG_AVX2 inline __m256i gather_inside(const uint8_t* data, __m256i offsets, int32_t bytes) {
  const __m256i held = _mm256_min_epi32(offsets, _mm256_set1_epi32(bytes - 4));
  return _mm256_srlv_epi32(gather8(data, held), _mm256_slli_epi32(_mm256_sub_epi32(offsets, held), 3));
}

// Eight times two neighbours, each of three bytes, as eight bytes from their offset on. Loads of eight bytes
// are faster than gathers here.
struct Pairs {
  __m256i first, second;  // of the places 0, 1, 4, 5 and 2, 3, 6, 7

  // Byte `at` of the left neighbours, and of the right ones.
  TARPEG_AVX2 inline void channel(int at, __m256* left, __m256* right) const {
    const int l = at, r = at + 3;
    const __m128i order = _mm_setr_epi32(l | ~255, (l + 8) | ~255, r | ~255, (r + 8) | ~255);
    const __m256i both = _mm256_broadcastsi128_si256(order);
    const __m256i one = _mm256_shuffle_epi8(first, both), two = _mm256_shuffle_epi8(second, both);
    *left = _mm256_cvtepi32_ps(_mm256_unpacklo_epi64(one, two));
    *right = _mm256_cvtepi32_ps(_mm256_unpackhi_epi64(one, two));
  }
};

TARPEG_AVX2 inline __m128i two_at(const uint8_t* data, int32_t first, int32_t second) {
  return _mm_unpacklo_epi64(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(data + first)),
                            _mm_loadl_epi64(reinterpret_cast<const __m128i*>(data + second)));
}

TARPEG_AVX2 inline Pairs pairs_at(const uint8_t* data, const int32_t* offsets) {
  const __m128i a = two_at(data, offsets[0], offsets[1]), b = two_at(data, offsets[2], offsets[3]);
  const __m128i c = two_at(data, offsets[4], offsets[5]), d = two_at(data, offsets[6], offsets[7]);
  return {_mm256_set_m128i(c, a), _mm256_set_m128i(d, b)};
}

// Four taps around each of eight places, all of them inside. A gather reads four bytes although one, two or
// three are needed: the upper row's extend into the lower one, the lower row's begin earlier, so none is
// outside the image.
TARPEG_AVX2 inline void bilinear8(const Picture<uint8_t>& source, __m256i pixels, __m256 right, __m256 below,
                                  int i, Row* row) {
  float* out[3] = {row->r + i, row->g + i, row->b + i};
  const int64_t width = source.width;
  if (source.is_planar()) {
    for (int c = 0; c < source.channels; ++c) {
      const uint8_t* plane = source.data + c * source.height * width;
      const __m256i upper = gather8(plane, pixels), lower = gather8(plane + width - 2, pixels);
      const __m256 top = between8(channel8(upper, 0), channel8(upper, 8), right);
      const __m256 bottom = between8(channel8(lower, 16), channel8(lower, 24), right);
      _mm256_storeu_ps(out[c], between8(top, bottom, below));
    }
    return;
  }
  alignas(32) int32_t offsets[8];
  _mm256_store_si256(reinterpret_cast<__m256i*>(offsets),
                     _mm256_add_epi32(pixels, _mm256_slli_epi32(pixels, 1)));
  const Pairs upper = pairs_at(source.data, offsets), lower = pairs_at(source.data + 3 * width - 2, offsets);
  for (int c = 0; c < 3; ++c) {
    __m256 left_above, right_above, left_below, right_below;
    upper.channel(c, &left_above, &right_above);
    lower.channel(c + 2, &left_below, &right_below);
    const __m256 top = between8(left_above, right_above, right);
    _mm256_storeu_ps(out[c], between8(top, between8(left_below, right_below, right), below));
  }
}

TARPEG_AVX2 inline void nearest8(const Picture<uint8_t>& source, __m256i pixels, int i, Row* row) {
  float* out[3] = {row->r + i, row->g + i, row->b + i};
  const int32_t plane = static_cast<int32_t>(source.height * source.width);
  if (source.is_planar()) {
    for (int c = 0; c < source.channels; ++c) {
      _mm256_storeu_ps(out[c], channel8(gather_inside(source.data + c * int64_t{plane}, pixels, plane), 0));
    }
    return;
  }
  const __m256i offsets = _mm256_add_epi32(pixels, _mm256_slli_epi32(pixels, 1));
  const __m256i found = gather_inside(source.data, offsets, 3 * plane);
  for (int c = 0; c < 3; ++c) _mm256_storeu_ps(out[c], channel8(found, 8 * c));
}

// One tap at each of eight places, or fill if that is outside.
TARPEG_AVX2 inline void tap8(const Picture<uint8_t>& source, __m256i x, __m256i y, const float* fill,
                             __m256* out) {
  const int32_t width = static_cast<int32_t>(source.width), height = static_cast<int32_t>(source.height);
  const __m256i outside = _mm256_or_si256(is_outside(x, 0, width - 1), is_outside(y, 0, height - 1));
  const __m256i pixels =
      _mm256_andnot_si256(outside, _mm256_add_epi32(_mm256_mullo_epi32(y, _mm256_set1_epi32(width)), x));
  const int32_t plane = width * height;
  const __m256i offsets = _mm256_add_epi32(pixels, _mm256_slli_epi32(pixels, 1));
  const __m256i found = source.is_planar() ? pixels : gather_inside(source.data, offsets, 3 * plane);
  for (int c = 0; c < source.channels; ++c) {
    const __m256 value = source.is_planar()
                             ? channel8(gather_inside(source.data + c * int64_t{plane}, pixels, plane), 0)
                             : channel8(found, 8 * c);
    out[c] = _mm256_blendv_ps(value, _mm256_set1_ps(fill[c]), _mm256_castsi256_ps(outside));
  }
}

// Eight places of which some are at the edge or outside.
TARPEG_AVX2 void edge8(const Picture<uint8_t>& source, __m256i x, __m256i y, __m256 right, __m256 below,
                       bool nearest, const float* fill, int i, Row* row) {
  float* out[3] = {row->r + i, row->g + i, row->b + i};
  const int edge = nearest ? 0 : 1, width = static_cast<int>(source.width),
            height = static_cast<int>(source.height);
  const __m256i nowhere = _mm256_or_si256(is_outside(x, -edge, width - 1), is_outside(y, -edge, height - 1));
  if (_mm256_movemask_epi8(nowhere) == -1) {
    for (int c = 0; c < source.channels; ++c) _mm256_storeu_ps(out[c], _mm256_set1_ps(fill[c]));
    return;
  }
  __m256 taps[4][3];
  tap8(source, x, y, fill, taps[0]);
  if (!nearest) {
    const __m256i one = _mm256_set1_epi32(1), x1 = _mm256_add_epi32(x, one), y1 = _mm256_add_epi32(y, one);
    tap8(source, x1, y, fill, taps[1]);
    tap8(source, x, y1, fill, taps[2]);
    tap8(source, x1, y1, fill, taps[3]);
  }
  for (int c = 0; c < source.channels; ++c) {
    __m256 value = taps[0][c];
    if (!nearest) {
      value =
          between8(between8(taps[0][c], taps[1][c], right), between8(taps[2][c], taps[3][c], right), below);
      // Far outside, the shares may be anything.
      value = _mm256_blendv_ps(value, _mm256_set1_ps(fill[c]), _mm256_castsi256_ps(nowhere));
    }
    _mm256_storeu_ps(out[c], value);
  }
}

TARPEG_AVX2 int warped_avx2(const Picture<uint8_t>& source, const Span& span, bool nearest, const float* fill,
                            int n, Row* row) {
  const int32_t width = static_cast<int32_t>(source.width), height = static_cast<int32_t>(source.height);
  const int edge = nearest ? 0 : 1;
  const __m256 rest_x = _mm256_set1_ps(span.rest_x), rest_y = _mm256_set1_ps(span.rest_y);
  const __m256 step_x = _mm256_set1_ps(span.step_x), step_y = _mm256_set1_ps(span.step_y);
  const __m256 shift = _mm256_set1_ps(nearest ? 0.5f : 0.0f);
  const __m256i whole_x = _mm256_set1_epi32(span.x), whole_y = _mm256_set1_epi32(span.y);
  __m256 steps = _mm256_setr_ps(0, 1, 2, 3, 4, 5, 6, 7);
  int i = 0;
  for (; i + 8 <= n; i += 8, steps = _mm256_add_ps(steps, _mm256_set1_ps(8))) {
    __m256 right, below;
    const __m256 at_x = _mm256_add_ps(_mm256_add_ps(rest_x, _mm256_mul_ps(step_x, steps)), shift);
    const __m256 at_y = _mm256_add_ps(_mm256_add_ps(rest_y, _mm256_mul_ps(step_y, steps)), shift);
    const __m256i x = _mm256_add_epi32(whole_x, floored8(at_x, &right));
    const __m256i y = _mm256_add_epi32(whole_y, floored8(at_y, &below));
    if (!all_within(x, width - 1 - edge) || !all_within(y, height - 1 - edge)) {
      edge8(source, x, y, right, below, nearest, fill, i, row);
      continue;
    }
    const __m256i pixels = _mm256_add_epi32(_mm256_mullo_epi32(y, _mm256_set1_epi32(width)), x);
    if (nearest) {
      nearest8(source, pixels, i, row);
    } else {
      bilinear8(source, pixels, right, below, i, row);
    }
  }
  return i;
}

#endif

// Samples the first pixels of a span and returns how many are done.
int warped_simd([[maybe_unused]] const Picture<uint8_t>& source, [[maybe_unused]] const Span& span,
                [[maybe_unused]] bool nearest, [[maybe_unused]] const float* fill, [[maybe_unused]] int n,
                [[maybe_unused]] Row* row) {
#if defined(TARPEG_AVX2)
  // Offsets are 32 bits; the gathers need an image of two rows and columns.
  const bool fits =
      source.height >= 2 && source.width >= 2 && source.height * source.width < (int64_t{1} << 29);
  if (fits && has_avx2()) return warped_avx2(source, span, nearest, fill, n, row);
#endif
  return 0;
}

}  // namespace

void fetch_warped(const Picture<uint8_t>& from, const Affine& map, bool nearest, const float* fill, int64_t x,
                  int64_t y, int n, Row* row) {
  if (!map.usable) return fill_row(fill, 0, n, row);
  const Span span = span_at(map, x, y);
  for (int i = warped_simd(from, span, nearest, fill, n, row); i < n; ++i) {
    const Place place = place_in(span, i, nearest ? 0.5f : 0.0f);
    row->r[i] = sampled(from, 0, place, nearest, fill[0]);
    if (from.channels == 1) continue;
    row->g[i] = sampled(from, 1, place, nearest, fill[1]);
    row->b[i] = sampled(from, 2, place, nearest, fill[2]);
  }
}

void warp_rgb(const WarpJob& job, const Affine& map, int64_t image, int64_t begin, int64_t end) {
  const BatchLayout& to = job.to;
  const Picture<uint8_t> from = job.picture<uint8_t>(image);
  const Target target = {static_cast<uint8_t*>(job.out) + image * to.numbers(),
                         Number::kUint8,
                         to.height,
                         to.width,
                         to.planar,
                         false};
  const float fill[3] = {job.fill_of(0), job.fill_of(1), job.fill_of(2)};
  Row row;
  for (int64_t y = begin; y < end; ++y) {
    for (int64_t x = 0; x < to.width; x += kSpan) {
      const int n = static_cast<int>(std::min<int64_t>(kSpan, to.width - x));
      fetch_warped(from, map, job.nearest, fill, x, y, n, &row);
      store(row, {}, x, y, n, target);
    }
  }
}

}  // namespace tarpeg
