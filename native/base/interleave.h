#pragma once

#include <cstdint>

#include "base/simd.h"

#if defined(TARPEG_AVX512)
namespace tarpeg {

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

}  // namespace tarpeg
#endif
