#include "batch/rows_simd.h"
#include "image/lanes.h"

// Rows of which nothing is asked but to be mirrored and normalised: from bytes to numbers in registers.
namespace tarpeg {

#if defined(TARPEG_X86)
namespace {

template <Number kType, bool kStreams>
TARPEG_AVX2_F16C inline void normalise8(__m128i bytes, __m256 scale, __m256 shift, void* data, int64_t at) {
  const __m256 value = _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(bytes));
  put8<kType, kStreams>(_mm256_add_ps(_mm256_mul_ps(value, scale), shift), data, at);
}

// Part k is bytes 8 k to 8 k + 7 of eight pixels RGBRGB... in order ([0]) or reversed ([1]).
constexpr PickBytes kThirds[2] = {
    pick_bytes([](int k, int i) { return 8 * k + i; }),
    pick_bytes([](int k, int i) { return 3 * (7 - (8 * k + i) / 3) + (8 * k + i) % 3; })};

// Number i of vector k is that of channel (8 k + i) % 3.
TARPEG_AVX2 inline void in_turn(const float* channels, __m256* vectors) {
  const __m256 r = _mm256_set1_ps(channels[0]), g = _mm256_set1_ps(channels[1]),
               b = _mm256_set1_ps(channels[2]);
  vectors[0] = _mm256_blend_ps(_mm256_blend_ps(r, g, 0x92), b, 0x24);
  vectors[1] = _mm256_blend_ps(_mm256_blend_ps(r, g, 0x24), b, 0x49);
  vectors[2] = _mm256_blend_ps(_mm256_blend_ps(r, g, 0x49), b, 0x92);
}

template <Number kType, bool kStreams>
TARPEG_AVX2_F16C int plain_avx2(const uint8_t* pixel, const Picture<uint8_t>& from, bool backwards,
                                const float* scale, const float* shift, int64_t at, int n,
                                const Target& target) {
  // Vector k: of channel k where the target is planar, otherwise the k-th of three with the channels in turn.
  __m256 scales[3], shifts[3];
  if (target.planar) {
    for (int c = 0; c < 3; ++c) {
      scales[c] = _mm256_set1_ps(scale[c]);
      shifts[c] = _mm256_set1_ps(shift[c]);
    }
  } else {
    in_turn(scale, scales);
    in_turn(shift, shifts);
  }
  const Picks picks = picks_of((target.planar ? kChannels : kThirds)[backwards]);
  const __m128i order = backwards ? _mm_setr_epi8(7, 6, 5, 4, 3, 2, 1, 0, -1, -1, -1, -1, -1, -1, -1, -1)
                                  : _mm_setr_epi8(0, 1, 2, 3, 4, 5, 6, 7, -1, -1, -1, -1, -1, -1, -1, -1);
  const int64_t step = target.planar ? target.height * target.width : 8, width = target.planar ? 1 : 3;
  int i = 0;
  for (; i + 8 <= n; i += 8) {
    const uint8_t* first = pixel + (backwards ? -(i + 7) : i) * from.pixel_stride;
    const int64_t out = width * (at + i);
    if (from.pixel_stride == 1) {
      for (int k = 0; k < 3; ++k) {
        fetch_ahead(first + k * from.channel_stride);
        const __m128i bytes = _mm_shuffle_epi8(load8(first + k * from.channel_stride), order);
        normalise8<kType, kStreams>(bytes, scales[k], shifts[k], target.data, out + k * step);
      }
      continue;
    }
    fetch_ahead(first);
    const __m128i low = load16(first), high = load8(first + 16);
    for (int k = 0; k < 3; ++k) {
      const __m128i bytes =
          _mm_or_si128(_mm_shuffle_epi8(low, picks.low[k]), _mm_shuffle_epi8(high, picks.high[k]));
      normalise8<kType, kStreams>(bytes, scales[k], shifts[k], target.data, out + k * step);
    }
  }
  return i;
}

template <Number kType>
int plain_numbers(const uint8_t* pixel, const Picture<uint8_t>& from, bool backwards, const float* scale,
                  const float* shift, int64_t at, int n, const Target& target) {
  return may_stream(target, at)
             ? plain_avx2<kType, true>(pixel, from, backwards, scale, shift, at, n, target)
             : plain_avx2<kType, false>(pixel, from, backwards, scale, shift, at, n, target);
}

}  // namespace

int plain_simd(const uint8_t* pixel, const Picture<uint8_t>& from, bool backwards, const float* scale,
               const float* shift, int64_t at, int n, const Target& target) {
  const bool is_known = from.pixel_stride == 3 || target.planar;
  if (!is_known || !has_avx2()) return 0;
  switch (target.type) {
    case Number::kUint8:
      return 0;
    case Number::kFloat32:
      return plain_numbers<Number::kFloat32>(pixel, from, backwards, scale, shift, at, n, target);
    case Number::kFloat16:
      return plain_numbers<Number::kFloat16>(pixel, from, backwards, scale, shift, at, n, target);
    case Number::kBFloat16:
      return plain_numbers<Number::kBFloat16>(pixel, from, backwards, scale, shift, at, n, target);
  }
  return 0;
}

#else

int plain_simd(const uint8_t*, const Picture<uint8_t>&, bool, const float*, const float*, int64_t, int,
               const Target&) {
  return 0;
}

#endif

}  // namespace tarpeg
