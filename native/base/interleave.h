#pragma once

#include <cstdint>
#include <cstring>

#include "base/simd.h"

// RGB, pixel by pixel, from the three channels.
namespace tarpeg {

// At most kSome pixels. Four bytes are written at a time, the last of which belongs to the next pixel.
constexpr int kSome = 64;
inline void interleave(const uint8_t* r, const uint8_t* g, const uint8_t* b, int count,
                       uint8_t* __restrict out) noexcept {
  uint32_t pixels[kSome];
  for (int i = 0; i < count; ++i) pixels[i] = uint32_t{b[i]} << 16 | uint32_t{g[i]} << 8 | r[i];
  for (int i = 0; i < count - 1; ++i) std::memcpy(out + 3 * i, pixels + i, 4);
  if (count > 0) std::memcpy(out + 3 * (count - 1), pixels + count - 1, 3);
}

#if defined(TARPEG_AVX2)

// Stores 16 pixels from the results of _mm256_packus_epi16(red, green) and (blue, any): lanes hold pixels 0-7
// and 8-15.
TARPEG_AVX2 inline void store_rgb(__m256i rg, __m256i bx, uint8_t* out) noexcept {
  const __m128i drop_x = _mm_setr_epi8(0, 1, 2, 4, 5, 6, 8, 9, 10, 12, 13, 14, -1, -1, -1, -1);
  const __m256i rgs = _mm256_unpacklo_epi8(rg, _mm256_srli_si256(rg, 8));
  const __m256i bxs = _mm256_unpacklo_epi8(bx, _mm256_srli_si256(bx, 8));
  const __m256i low = _mm256_unpacklo_epi16(rgs, bxs), high = _mm256_unpackhi_epi16(rgs, bxs);
  const __m128i quads[4] = {_mm256_castsi256_si128(low), _mm256_castsi256_si128(high),
                            _mm256_extracti128_si256(low, 1), _mm256_extracti128_si256(high, 1)};
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

// Places of the bytes of 32 pixels: from red and green below 64, and blue from there on, eight of each in
// turn.
struct RgbPlaces {
  alignas(64) uint8_t place[128];

  constexpr RgbPlaces() : place() {
    for (int i = 0; i < 96; ++i) {
      const int pixel = i / 3, channel = i % 3;
      place[i] = static_cast<uint8_t>(channel / 2 * 64 + pixel / 8 * 16 + channel % 2 * 8 + pixel % 8);
    }
  }
};
inline constexpr RgbPlaces kRgbPlaces;

// Stores 32 pixels from the results of _mm512_packus_epi16(red, green) and (blue, any).
struct StoreRgb {
  __m512i first = _mm512_load_si512(kRgbPlaces.place);
  __m512i second = _mm512_load_si512(kRgbPlaces.place + 64);

  TARPEG_AVX512 StoreRgb() noexcept {}
  TARPEG_AVX512 void operator()(__m512i rg, __m512i bx, uint8_t* out) const noexcept {
    _mm512_storeu_si512(out, _mm512_permutex2var_epi8(rg, first, bx));
    const __m512i rest = _mm512_permutex2var_epi8(rg, second, bx);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + 64), _mm512_castsi512_si256(rest));
  }
};

#endif

}  // namespace tarpeg
