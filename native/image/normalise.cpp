#include "image/normalise.h"

#include "image/lanes.h"

namespace tarpeg {
namespace {

template <Number kType>
void normalise_portable(const RgbRow& row, const Normalisation& how, int64_t begin, int64_t at, int64_t n,
                        const Target& target) noexcept {
  const int64_t step = row.backwards ? -row.pixel_stride : row.pixel_stride;
  const int64_t plane = target.height * target.width;
  for (int64_t i = begin; i < n; ++i) {
    for (int64_t c = 0; c < row.channels; ++c) {
      const float product = static_cast<float>(row.first[i * step + c * row.channel_stride]) * how.scale[c];
      put_number<kType>(product + how.shift[c], target.data,
                        target.planar ? c * plane + at + i : 3 * (at + i) + c);
    }
  }
}

#if defined(TARPEG_AVX2)

// Eight numbers from eight bytes.
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
TARPEG_AVX2 inline void repeat_channels(const float* channels, __m256* vectors) {
  const __m256 r = _mm256_set1_ps(channels[0]), g = _mm256_set1_ps(channels[1]),
               b = _mm256_set1_ps(channels[2]);
  vectors[0] = _mm256_blend_ps(_mm256_blend_ps(r, g, 0x92), b, 0x24);
  vectors[1] = _mm256_blend_ps(_mm256_blend_ps(r, g, 0x24), b, 0x49);
  vectors[2] = _mm256_blend_ps(_mm256_blend_ps(r, g, 0x49), b, 0x92);
}

template <Number kType, bool kStreams>
TARPEG_AVX2_F16C int64_t normalise_avx2(const RgbRow& row, const Normalisation& how, int64_t at, int64_t n,
                                        const Target& target) noexcept {
  // Vector k: of channel k if the target is planar, otherwise the k-th of three with the channels in turn.
  __m256 scales[3], shifts[3];
  if (target.planar) {
    for (int c = 0; c < 3; ++c) {
      scales[c] = _mm256_set1_ps(how.scale[c]);
      shifts[c] = _mm256_set1_ps(how.shift[c]);
    }
  } else {
    repeat_channels(how.scale, scales);
    repeat_channels(how.shift, shifts);
  }
  const Picks picks = picks_of((target.planar ? kChannels : kThirds)[row.backwards]);
  const __m128i order = row.backwards ? _mm_setr_epi8(7, 6, 5, 4, 3, 2, 1, 0, -1, -1, -1, -1, -1, -1, -1, -1)
                                      : _mm_setr_epi8(0, 1, 2, 3, 4, 5, 6, 7, -1, -1, -1, -1, -1, -1, -1, -1);
  const int64_t step = target.planar ? target.height * target.width : 8, width = target.planar ? 1 : 3;
  int64_t i = 0;
  for (; i + 8 <= n; i += 8) {
    const uint8_t* first = row.first + (row.backwards ? -(i + 7) : i) * row.pixel_stride;
    const int64_t out = width * (at + i);
    if (row.pixel_stride == 1) {
      for (int k = 0; k < row.channels; ++k) {
        fetch_ahead(first + k * row.channel_stride);
        const __m128i bytes = _mm_shuffle_epi8(load8(first + k * row.channel_stride), order);
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
int64_t normalise_vectors(const RgbRow& row, const Normalisation& how, int64_t at, int64_t n,
                          const Target& target) noexcept {
  return may_stream(target, at) ? normalise_avx2<kType, true>(row, how, at, n, target)
                                : normalise_avx2<kType, false>(row, how, at, n, target);
}

#endif

}  // namespace

int64_t normalise_simd([[maybe_unused]] const RgbRow& row, [[maybe_unused]] const Normalisation& how,
                       [[maybe_unused]] int64_t at, [[maybe_unused]] int64_t n,
                       [[maybe_unused]] const Target& target) noexcept {
#if defined(TARPEG_AVX2)
  const bool is_known = row.pixel_stride == 3 || (row.pixel_stride == 1 && target.planar);
  if (is_known && has_avx2()) {
    switch (target.type) {
      case Number::kUint8:
        return 0;
      case Number::kFloat32:
        return normalise_vectors<Number::kFloat32>(row, how, at, n, target);
      case Number::kFloat16:
        return normalise_vectors<Number::kFloat16>(row, how, at, n, target);
      case Number::kBFloat16:
        return normalise_vectors<Number::kBFloat16>(row, how, at, n, target);
    }
  }
#endif
  return 0;
}

void normalise(const RgbRow& row, const Normalisation& how, int64_t at, int64_t n,
               const Target& target) noexcept {
  const int64_t done = normalise_simd(row, how, at, n, target);
  switch (target.type) {
    case Number::kUint8:
      return;
    case Number::kFloat32:
      return normalise_portable<Number::kFloat32>(row, how, done, at, n, target);
    case Number::kFloat16:
      return normalise_portable<Number::kFloat16>(row, how, done, at, n, target);
    case Number::kBFloat16:
      return normalise_portable<Number::kBFloat16>(row, how, done, at, n, target);
  }
}

void finish_stores() noexcept {
#if defined(TARPEG_AVX2)
  _mm_sfence();
#endif
}

}  // namespace tarpeg
