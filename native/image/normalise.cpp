#include "image/normalise.h"

#include <cmath>

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

#endif

#if defined(TARPEG_AVX512)

// Which of the 48 bytes of 16 pixels is number i of vector k, in byte 4 i: in order or reversed, for planes
// (vector k is channel k) or as they lie.
struct Lanes {
  alignas(64) uint8_t from[3][64];

  constexpr Lanes(bool planar, bool backwards) : from() {
    for (int k = 0; k < 3; ++k) {
      for (int i = 0; i < 16; ++i) {
        const int pixel = planar ? i : (16 * k + i) / 3, channel = planar ? k : (16 * k + i) % 3;
        from[k][4 * i] = static_cast<uint8_t>(3 * (backwards ? 15 - pixel : pixel) + channel);
      }
    }
  }
};
constexpr Lanes kLanesOf[2][2] = {{{false, false}, {false, true}}, {{true, false}, {true, true}}};

template <bool kStreams>
TARPEG_AVX512 inline void put64(__m512i bytes, void* data) noexcept {
  if (kStreams) {
    _mm512_stream_si512(static_cast<__m512i*>(data), bytes);
  } else {
    _mm512_storeu_si512(data, bytes);
  }
}

// 32 numbers that are no NaN.
template <Number kType, bool kStreams>
TARPEG_AVX512 inline void put32(__m512 low, __m512 high, void* data, int64_t at) noexcept {
  if constexpr (kType == Number::kFloat32) {
    put64<kStreams>(_mm512_castps_si512(low), static_cast<float*>(data) + at);
    put64<kStreams>(_mm512_castps_si512(high), static_cast<float*>(data) + at + 16);
    return;
  }
  uint16_t* const out = static_cast<uint16_t*>(data) + at;
  if constexpr (kType == Number::kFloat16) {
    const __m256i half = _mm512_cvtps_ph(low, _MM_FROUND_TO_NEAREST_INT);
    put64<kStreams>(
        _mm512_inserti64x4(_mm512_castsi256_si512(half), _mm512_cvtps_ph(high, _MM_FROUND_TO_NEAREST_INT), 1),
        out);
  } else {
    const auto rounded = [](__m512 value) TARPEG_AVX512 {
      const __m512i bits = _mm512_castps_si512(value);
      const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
      return _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7FFF)), odd);
    };
    // The upper half of each number.
    alignas(64) static constexpr uint16_t kUpper[32] = {1,  3,  5,  7,  9,  11, 13, 15, 17, 19, 21,
                                                        23, 25, 27, 29, 31, 33, 35, 37, 39, 41, 43,
                                                        45, 47, 49, 51, 53, 55, 57, 59, 61, 63};
    put64<kStreams>(_mm512_permutex2var_epi16(rounded(low), _mm512_load_si512(kUpper), rounded(high)), out);
  }
}

// 32 RGB pixels at a time; returns how many are done.
template <Number kType, bool kPlanar, bool kStreams>
TARPEG_AVX512 int64_t normalise_avx512(const RgbRow& row, const Normalisation& how, int64_t at, int64_t n,
                                       const Target& target) noexcept {
  __m512 scales[3], shifts[3];
  __m512i lanes[3];
  for (int k = 0; k < 3; ++k) {
    alignas(64) float scale[16], shift[16];
    for (int i = 0; i < 16; ++i) {
      scale[i] = how.scale[kPlanar ? k : (16 * k + i) % 3];
      shift[i] = how.shift[kPlanar ? k : (16 * k + i) % 3];
    }
    scales[k] = _mm512_load_ps(scale);
    shifts[k] = _mm512_load_ps(shift);
    lanes[k] = _mm512_load_si512(kLanesOf[kPlanar][row.backwards].from[k]);
  }
  const int64_t plane = target.height * target.width;
  int64_t i = 0;
  for (; i + 32 <= n; i += 32) {
    __m512 numbers[6];
    for (int half = 0; half < 2; ++half) {
      const int64_t x = i + 16 * half;
      const uint8_t* const first = row.first + 3 * (row.backwards ? -(x + 15) : x);
      fetch_ahead(first);
      const __m512i pixels = _mm512_maskz_loadu_epi8(~0ull >> 16, first);
      for (int k = 0; k < 3; ++k) {
        const __m512i bytes = _mm512_maskz_permutexvar_epi8(0x1111111111111111, lanes[k], pixels);
        const __m512 product = _mm512_mul_ps(_mm512_cvtepi32_ps(bytes), scales[k]);
        numbers[3 * half + k] = _mm512_add_ps(product, shifts[k]);
      }
    }
    for (int k = 0; k < 3; ++k) {
      if (kPlanar) {
        put32<kType, kStreams>(numbers[k], numbers[3 + k], target.data, k * plane + at + i);
      } else {
        put32<kType, kStreams>(numbers[2 * k], numbers[2 * k + 1], target.data, 3 * (at + i) + 32 * k);
      }
    }
  }
  return i;
}

// How many pixels are done; none if a number may be a NaN.
template <Number kType>
int64_t normalise_most(const RgbRow& row, const Normalisation& how, int64_t at, int64_t n,
                       const Target& target) noexcept {
  bool is_finite = true;
  for (int c = 0; c < 3; ++c) is_finite &= std::isfinite(how.scale[c]) && std::isfinite(how.shift[c]);
  const bool streams = may_stream(target, at, 64);
  if (!has_avx512() || !is_finite || row.pixel_stride != 3 || row.channel_stride != 1) return 0;
  if (target.planar) {
    return streams ? normalise_avx512<kType, true, true>(row, how, at, n, target)
                   : normalise_avx512<kType, true, false>(row, how, at, n, target);
  }
  return streams ? normalise_avx512<kType, false, true>(row, how, at, n, target)
                 : normalise_avx512<kType, false, false>(row, how, at, n, target);
}

#elif defined(TARPEG_AVX2)

template <Number kType>
int64_t normalise_most(const RgbRow&, const Normalisation&, int64_t, int64_t, const Target&) noexcept {
  return 0;
}

#endif

#if defined(TARPEG_AVX2)

template <Number kType>
int64_t normalise_vectors(const RgbRow& row, const Normalisation& how, int64_t at, int64_t n,
                          const Target& target) noexcept {
  const int64_t done = normalise_most<kType>(row, how, at, n, target);
  RgbRow rest = row;
  rest.first += (row.backwards ? -done : done) * row.pixel_stride;
  return done + (may_stream(target, at + done)
                     ? normalise_avx2<kType, true>(rest, how, at + done, n - done, target)
                     : normalise_avx2<kType, false>(rest, how, at + done, n - done, target));
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
