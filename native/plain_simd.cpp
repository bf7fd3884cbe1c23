#include "augment_simd.h"
#include "lanes.h"

// Rows of which nothing is asked but to be mirrored and normalised: from bytes to numbers in registers.
namespace tarpeg {

#if defined(TARPEG_X86)
namespace {

template <Number kType, bool kStreams>
TARPEG_AVX2_F16C inline void normalise8(__m128i bytes, __m256 scale, __m256 shift, void* data, int64_t at) {
  const __m256 value = _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(bytes));
  put8<kType, kStreams>(_mm256_add_ps(_mm256_mul_ps(value, scale), shift), data, at);
}

// 24 bytes RGBRGB... of which the pixels are in order or reversed, in three parts of eight bytes.
TARPEG_AVX2 Picks thirds_of(bool backwards) {
  Picks picks;
  for (int k = 0; k < 3; ++k) {
    alignas(16) int8_t low[16], high[16];
    for (int i = 0; i < 16; ++i) {
      const int pixel = (8 * k + i) / 3, channel = (8 * k + i) % 3;
      const int at = 3 * (backwards ? 7 - pixel : pixel) + channel;
      low[i] = static_cast<int8_t>(i < 8 && at < 16 ? at : -1);
      high[i] = static_cast<int8_t>(i < 8 && at >= 16 ? at - 16 : -1);
    }
    picks.low[k] = _mm_load_si128(reinterpret_cast<const __m128i*>(low));
    picks.high[k] = _mm_load_si128(reinterpret_cast<const __m128i*>(high));
  }
  return picks;
}

template <Number kType, bool kStreams>
TARPEG_AVX2_F16C int plain_avx2(const uint8_t* pixel, const Picture<uint8_t>& from, bool backwards,
                                const float* scale, const float* shift, int64_t at, int n,
                                const Target& target) {
  // Vector k: of channel k where the target is planar, otherwise the k-th of three with the channels in turn.
  __m256 scales[3], shifts[3];
  for (int k = 0; k < 3; ++k) {
    alignas(32) float a[8], b[8];
    for (int i = 0; i < 8; ++i) {
      a[i] = scale[target.planar ? k : (8 * k + i) % 3];
      b[i] = shift[target.planar ? k : (8 * k + i) % 3];
    }
    scales[k] = _mm256_load_ps(a);
    shifts[k] = _mm256_load_ps(b);
  }
  const Picks picks = target.planar ? picks_of(backwards) : thirds_of(backwards);
  const __m128i order = backwards ? _mm_setr_epi8(7, 6, 5, 4, 3, 2, 1, 0, -1, -1, -1, -1, -1, -1, -1, -1)
                                  : _mm_setr_epi8(0, 1, 2, 3, 4, 5, 6, 7, -1, -1, -1, -1, -1, -1, -1, -1);
  const int64_t step = target.planar ? target.height * target.width : 8, width = target.planar ? 1 : 3;
  int i = 0;
  for (; i + 8 <= n; i += 8) {
    const uint8_t* first = pixel + (backwards ? -(i + 7) : i) * from.pixel_stride;
    const int64_t out = width * (at + i);
    if (from.pixel_stride == 1) {
      for (int k = 0; k < 3; ++k) {
        const __m128i bytes = _mm_shuffle_epi8(load8(first + k * from.channel_stride), order);
        normalise8<kType, kStreams>(bytes, scales[k], shifts[k], target.data, out + k * step);
      }
      continue;
    }
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
