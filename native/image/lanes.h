#pragma once

#include "base/number.h"
#include "base/simd.h"
#include "image/normalise.h"

// Vector code that reads and writes eight RGB pixels at a time.
#if defined(TARPEG_AVX2)
namespace tarpeg {

TARPEG_AVX2 inline __m128i load8(const uint8_t* at) {
  return _mm_loadl_epi64(reinterpret_cast<const __m128i*>(at));
}

TARPEG_AVX2 inline __m128i load16(const uint8_t* at) {
  return _mm_loadu_si128(reinterpret_cast<const __m128i*>(at));
}

// Prefetches some rows ahead, not into the higher cache levels: a batch is read once, and the processor's own
// prefetcher stops at the end of every page (22 us per image of 224 x 224 without, 15 with). A prefetch
// beyond the end reads nothing.
inline void fetch_ahead(const uint8_t* at) {
  _mm_prefetch(reinterpret_cast<const char*>(at + 1536), _MM_HINT_NTA);
}

// 24 bytes RGBRGB... -> three parts of eight bytes. Each mask picks from the first 16 or the last 8.
struct PickBytes {
  alignas(16) int8_t low[3][16];
  alignas(16) int8_t high[3][16];
};

struct Picks {
  __m128i low[3], high[3];
};

// place(k, i): which of the 24 bytes is number i of part k.
template <class Place>
constexpr PickBytes pick_bytes(Place place) {
  PickBytes bytes{};
  for (int k = 0; k < 3; ++k) {
    for (int i = 0; i < 16; ++i) {
      const int at = place(k, i);
      bytes.low[k][i] = static_cast<int8_t>(i < 8 && at < 16 ? at : -1);
      bytes.high[k][i] = static_cast<int8_t>(i < 8 && at >= 16 ? at - 16 : -1);
    }
  }
  return bytes;
}

TARPEG_AVX2 inline Picks picks_of(const PickBytes& bytes) {
  Picks picks;
  for (int k = 0; k < 3; ++k) {
    picks.low[k] = _mm_load_si128(reinterpret_cast<const __m128i*>(bytes.low[k]));
    picks.high[k] = _mm_load_si128(reinterpret_cast<const __m128i*>(bytes.high[k]));
  }
  return picks;
}

// Part c is channel c of eight pixels, in order ([0]) or reversed ([1]).
inline constexpr PickBytes kChannels[2] = {pick_bytes([](int c, int i) { return 3 * i + c; }),
                                           pick_bytes([](int c, int i) { return 3 * (7 - i) + c; })};

// Rounded to nearest even, as torch rounds. Streaming goes past the caches, which saves reading the memory
// first; it needs aligned memory.
template <Number kType, bool kStreams>
TARPEG_AVX2_F16C inline void put8(__m256 value, void* data, int64_t at) {
  if constexpr (kType == Number::kFloat32) {
    float* const out = static_cast<float*>(data) + at;
    if (kStreams) {
      _mm256_stream_ps(out, value);
    } else {
      _mm256_storeu_ps(out, value);
    }
  } else {
    __m128i packed;
    if constexpr (kType == Number::kFloat16) {
      const __m256 nan = _mm256_castsi256_ps(_mm256_set1_epi32(0x7FC00000));
      const __m256 number = _mm256_blendv_ps(value, nan, _mm256_cmp_ps(value, value, _CMP_UNORD_Q));
      packed = _mm256_cvtps_ph(number, _MM_FROUND_TO_NEAREST_INT);
    } else {
      const __m256i bits = _mm256_castps_si256(value);
      const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
      const __m256i sum = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7FFF)));
      const __m256i is_nan = _mm256_castps_si256(_mm256_cmp_ps(value, value, _CMP_UNORD_Q));
      const __m256i rounded =
          _mm256_blendv_epi8(_mm256_srli_epi32(sum, 16), _mm256_set1_epi32(0x7FC0), is_nan);
      packed = _mm256_castsi256_si128(_mm256_permute4x64_epi64(_mm256_packus_epi32(rounded, rounded), 0x08));
    }
    __m128i* const out = reinterpret_cast<__m128i*>(static_cast<uint16_t*>(data) + at);
    if (kStreams) {
      _mm_stream_si128(out, packed);
    } else {
      _mm_storeu_si128(out, packed);
    }
  }
}

// Whether a row from `pixel` on may be streamed by stores of `bytes`: every one is aligned if the first one
// is.
inline bool may_stream(const Target& target, int64_t pixel, int64_t bytes = 32) {
  const int64_t size = size_of(target.type), first = (target.planar ? pixel : 3 * pixel) * size;
  const int64_t plane = target.planar ? target.height * target.width * size : 0;
  return target.streams && plane % bytes == 0 &&
         (reinterpret_cast<uintptr_t>(target.data) + static_cast<uintptr_t>(first)) %
                 static_cast<uintptr_t>(bytes) ==
             0;
}

}  // namespace tarpeg
#endif
