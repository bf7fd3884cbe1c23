#pragma once

#include <cstdint>
#include <cstring>

#include "base/simd.h"

namespace tarpeg {

#if defined(TARPEG_AVX2)

// Stores 16 pixels of `step` channels, 3 or 4, from the results of _mm256_packus_epi16(red, green) and
// (blue, 255): lanes hold pixels 0-7 and 8-15.
TARPEG_AVX2 inline void store_pixels(__m256i rg, __m256i bx, int step, uint8_t* out) noexcept {
  const __m128i drop_x = _mm_setr_epi8(0, 1, 2, 4, 5, 6, 8, 9, 10, 12, 13, 14, -1, -1, -1, -1);
  const __m256i rgs = _mm256_unpacklo_epi8(rg, _mm256_srli_si256(rg, 8));
  const __m256i bxs = _mm256_unpacklo_epi8(bx, _mm256_srli_si256(bx, 8));
  const __m256i low = _mm256_unpacklo_epi16(rgs, bxs), high = _mm256_unpackhi_epi16(rgs, bxs);
  const __m128i quads[4] = {_mm256_castsi256_si128(low), _mm256_castsi256_si128(high),
                            _mm256_extracti128_si256(low, 1), _mm256_extracti128_si256(high, 1)};
  if (step == 4) {
    for (int i = 0; i < 4; ++i) _mm_storeu_si128(reinterpret_cast<__m128i*>(out + 16 * i), quads[i]);
    return;
  }
  for (int i = 0; i < 3; ++i) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out + 12 * i), _mm_shuffle_epi8(quads[i], drop_x));
  }
  const __m128i last = _mm_shuffle_epi8(quads[3], drop_x);
  _mm_storel_epi64(reinterpret_cast<__m128i*>(out + 36), last);
  const int tail = _mm_extract_epi32(last, 2);
  std::memcpy(out + 44, &tail, 4);
}

#endif

#if defined(TARPEG_AVX512)

// Places of the bytes of 32 pixels of kStep channels: from red and green below 64, and blue and 255 from
// there on, eight of each in turn.
template <int kStep>
struct InterleavedPlaces {
  alignas(64) uint8_t place[128];

  constexpr InterleavedPlaces() : place() {
    for (int i = 0; i < 32 * kStep; ++i) {
      const int pixel = i / kStep, channel = i % kStep;
      place[i] = static_cast<uint8_t>(channel / 2 * 64 + pixel / 8 * 16 + channel % 2 * 8 + pixel % 8);
    }
  }
};
template <int kStep>
inline constexpr InterleavedPlaces<kStep> kInterleavedPlaces;

// Stores 32 pixels from the results of _mm512_packus_epi16(red, green) and (blue, 255).
template <int kStep>
struct Interleaved {
  __m512i first = _mm512_load_si512(kInterleavedPlaces<kStep>.place);
  __m512i second = _mm512_load_si512(kInterleavedPlaces<kStep>.place + 64);

  TARPEG_AVX512 Interleaved() noexcept {}
  TARPEG_AVX512 void store(__m512i rg, __m512i bx, uint8_t* out) const noexcept {
    _mm512_storeu_si512(out, _mm512_permutex2var_epi8(rg, first, bx));
    const __m512i rest = _mm512_permutex2var_epi8(rg, second, bx);
    if constexpr (kStep == 3) {
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + 64), _mm512_castsi512_si256(rest));
    } else {
      _mm512_storeu_si512(out + 64, rest);
    }
  }
};

#endif

}  // namespace tarpeg
