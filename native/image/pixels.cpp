#include "image/pixels.h"

#include <algorithm>
#include <cstddef>
#include <cstring>

#include "base/interleave.h"
#include "base/simd.h"

namespace tarpeg {
namespace {

constexpr int kLineBits = 7;  // fractional bits of a line before its colour is converted

// Of 2^15: R = Y + Cr + 0.402 Cr, G = Y - 0.344136 Cb - 0.714136 Cr, B = Y + Cb + 0.772 Cb.
constexpr int kRed = 13173, kGreenBlue = -11277, kGreenRed = -23401, kBlue = 25297;

inline int scaled(int16_t value, int factor) noexcept { return (value * factor + (1 << 14)) >> 15; }

inline uint8_t clamped(int level) noexcept {
  const int positive = level < 0 ? 0 : level;
  return static_cast<uint8_t>(positive > 255 ? 255 : positive);
}

inline uint8_t level_of(int value) noexcept {
  return clamped(((value + (1 << (kLineBits - 1))) >> kLineBits) + 128);
}

// The channels of lines that are levels.
struct FromLevels {
  const int16_t *red, *green, *blue;

  // See Note [plain loops] in jpeg/idct.cpp.
  void portable(int begin, int count, uint8_t* r, uint8_t* g, uint8_t* b) const noexcept {
    for (int i = 0; i < count; ++i) {
      r[i] = clamped(red[begin + i]);
      g[i] = clamped(green[begin + i]);
      b[i] = clamped(blue[begin + i]);
    }
  }
#if defined(TARPEG_AVX2)
  // Red and green, blue twice: as store_rgb() takes them.
  TARPEG_AVX2 void sixteen(int x, __m256i* rg, __m256i* bb) const noexcept {
    const __m256i b = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(blue + x));
    *rg = _mm256_packus_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(red + x)),
                              _mm256_loadu_si256(reinterpret_cast<const __m256i*>(green + x)));
    *bb = _mm256_packus_epi16(b, b);
  }
#endif
#if defined(TARPEG_AVX512)
  TARPEG_AVX512 void thirty_two(int x, __m512i* rg, __m512i* bb) const noexcept {
    const __m512i b = _mm512_loadu_si512(blue + x);
    *rg = _mm512_packus_epi16(_mm512_loadu_si512(red + x), _mm512_loadu_si512(green + x));
    *bb = _mm512_packus_epi16(b, b);
  }
#endif
};

// The channels of lines that are Y, Cb and Cr. A sum that saturates is beyond 0 and 255 in any case.
struct FromPlanes {
  const int16_t *luma, *blue, *red;

  void portable(int begin, int count, uint8_t* r, uint8_t* g, uint8_t* b) const noexcept {
    for (int i = 0; i < count; ++i) {
      const int16_t y = luma[begin + i], cb = blue[begin + i], cr = red[begin + i];
      r[i] = level_of(y + cr + scaled(cr, kRed));
      g[i] = level_of(y + scaled(cb, kGreenBlue) + scaled(cr, kGreenRed));
      b[i] = level_of(y + cb + scaled(cb, kBlue));
    }
  }
#if defined(TARPEG_AVX2)
  TARPEG_AVX2 void sixteen(int x, __m256i* rg, __m256i* bb) const noexcept {
    const __m256i round = _mm256_set1_epi16(1 << (kLineBits - 1)), center = _mm256_set1_epi8(-128);
    const __m256i y = _mm256_add_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(luma + x)), round);
    const __m256i cb = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(blue + x));
    const __m256i cr = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(red + x));
    const __m256i r_part = _mm256_add_epi16(cr, _mm256_mulhrs_epi16(cr, _mm256_set1_epi16(kRed)));
    const __m256i g_part = _mm256_add_epi16(_mm256_mulhrs_epi16(cb, _mm256_set1_epi16(kGreenBlue)),
                                            _mm256_mulhrs_epi16(cr, _mm256_set1_epi16(kGreenRed)));
    const __m256i b_part = _mm256_add_epi16(cb, _mm256_mulhrs_epi16(cb, _mm256_set1_epi16(kBlue)));
    const __m256i r = _mm256_srai_epi16(_mm256_adds_epi16(y, r_part), kLineBits);
    const __m256i g = _mm256_srai_epi16(_mm256_adds_epi16(y, g_part), kLineBits);
    const __m256i b = _mm256_srai_epi16(_mm256_adds_epi16(y, b_part), kLineBits);
    *rg = _mm256_xor_si256(_mm256_packs_epi16(r, g), center);
    *bb = _mm256_xor_si256(_mm256_packs_epi16(b, b), center);
  }
#endif
#if defined(TARPEG_AVX512)
  TARPEG_AVX512 void thirty_two(int x, __m512i* rg, __m512i* bb) const noexcept {
    const __m512i round = _mm512_set1_epi16(1 << (kLineBits - 1)), center = _mm512_set1_epi8(-128);
    const __m512i y = _mm512_add_epi16(_mm512_loadu_si512(luma + x), round);
    const __m512i cb = _mm512_loadu_si512(blue + x), cr = _mm512_loadu_si512(red + x);
    const __m512i r_part = _mm512_add_epi16(cr, _mm512_mulhrs_epi16(cr, _mm512_set1_epi16(kRed)));
    const __m512i g_part = _mm512_add_epi16(_mm512_mulhrs_epi16(cb, _mm512_set1_epi16(kGreenBlue)),
                                            _mm512_mulhrs_epi16(cr, _mm512_set1_epi16(kGreenRed)));
    const __m512i b_part = _mm512_add_epi16(cb, _mm512_mulhrs_epi16(cb, _mm512_set1_epi16(kBlue)));
    const __m512i r = _mm512_srai_epi16(_mm512_adds_epi16(y, r_part), kLineBits);
    const __m512i g = _mm512_srai_epi16(_mm512_adds_epi16(y, g_part), kLineBits);
    const __m512i b = _mm512_srai_epi16(_mm512_adds_epi16(y, b_part), kLineBits);
    *rg = _mm512_xor_si512(_mm512_packs_epi16(r, g), center);
    *bb = _mm512_xor_si512(_mm512_packs_epi16(b, b), center);
  }
#endif
};

#if defined(TARPEG_AVX2)

// 16 pixels at a time, the last 16 perhaps again in part: the bytes written must stay inside the row.
template <class Lines>
TARPEG_AVX2 void to_rgb_avx2(const Lines& lines, int width, uint8_t* rgb) noexcept {
  for (int next = 0; next < width; next += 16) {
    const int x = std::min(next, width - 16);
    __m256i rg, bb;
    lines.sixteen(x, &rg, &bb);
    store_rgb(rg, bb, rgb + 3 * static_cast<ptrdiff_t>(x));
  }
}

// Where the bytes of a channel lie in three vectors of pixels, each of which has its own.
struct Places {
  alignas(16) uint8_t bytes[3][16];
  alignas(16) uint8_t is_third[3][16], is_second[3][16];

  constexpr Places() : bytes(), is_third(), is_second() {
    for (int channel = 0; channel < 3; ++channel) {
      for (int i = 0; i < 16; ++i) {
        bytes[channel][i] = static_cast<uint8_t>((3 * i + channel) % 16);
        // Byte i of vector k is byte 16 k + i of the pixels.
        is_second[channel][i] = (16 + i) % 3 == channel ? 0xFF : 0;
        is_third[channel][i] = (32 + i) % 3 == channel ? 0xFF : 0;
      }
    }
  }
};
constexpr Places kPlaces;

// 16 pixels at a time.
TARPEG_AVX2 void split_avx2(const uint8_t* pixels, int width, uint8_t* red, ptrdiff_t step) noexcept {
  const auto vector = [](const void* at)
                          TARPEG_AVX2 { return _mm_loadu_si128(static_cast<const __m128i*>(at)); };
  for (int x = 0; x < width; x += 16, pixels += 48) {
    const __m128i first = vector(pixels), second = vector(pixels + 16), third = vector(pixels + 32);
    for (int channel = 0; channel < 3; ++channel) {
      const __m128i two = _mm_blendv_epi8(first, second, vector(kPlaces.is_second[channel]));
      const __m128i all = _mm_blendv_epi8(two, third, vector(kPlaces.is_third[channel]));
      _mm_storeu_si128(reinterpret_cast<__m128i*>(red + channel * step + x),
                       _mm_shuffle_epi8(all, vector(kPlaces.bytes[channel])));
    }
  }
}

// Five pixels at a time, and a byte of the next; returns how many are done.
TARPEG_AVX2 int reverse_rgb_avx2(const uint8_t* pixels, int count, uint8_t* out) noexcept {
  const __m128i places = _mm_setr_epi8(13, 14, 15, 10, 11, 12, 7, 8, 9, 4, 5, 6, 1, 2, 3, 0);
  int x = 0;
  for (; x + 5 < count; x += 5) {
    const auto* const five = reinterpret_cast<const __m128i*>(pixels + 3 * (count - x - 5) - 1);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out + 3 * x),
                     _mm_shuffle_epi8(_mm_loadu_si128(five), places));
  }
  return x;
}

#endif

#if defined(TARPEG_AVX512)

// Where the bytes of 21 pixels come from, in reverse.
struct ReversedPlaces {
  alignas(64) uint8_t place[64];

  constexpr ReversedPlaces() : place() {
    for (int i = 0; i < 63; ++i) place[i] = static_cast<uint8_t>(3 * (20 - i / 3) + i % 3);
  }
};
constexpr ReversedPlaces kReversedPlaces;

TARPEG_AVX512 void reverse_rgb_avx512(const uint8_t* pixels, int count, uint8_t* out) noexcept {
  const __m512i places = _mm512_load_si512(kReversedPlaces.place);
  for (; count > 21; count -= 21, out += 63) {
    const __m512i some = _mm512_maskz_loadu_epi8(~0ull >> 1, pixels + 3 * (count - 21));
    _mm512_mask_storeu_epi8(out, ~0ull >> 1, _mm512_permutexvar_epi8(places, some));
  }
  const __mmask64 is_left = ~0ull >> (64 - 3 * count);
  const __m512i rest = _mm512_maskz_loadu_epi8(is_left, pixels);
  const __m512i shift = _mm512_set1_epi8(static_cast<char>(3 * (21 - count)));
  _mm512_mask_storeu_epi8(out, is_left, _mm512_permutexvar_epi8(_mm512_sub_epi8(places, shift), rest));
}

// Where byte i of a channel lies in three vectors of pixels.
struct BytePlaces {
  alignas(64) uint8_t bytes[3][64];

  constexpr BytePlaces() : bytes() {
    for (int channel = 0; channel < 3; ++channel) {
      for (int i = 0; i < 64; ++i) bytes[channel][i] = static_cast<uint8_t>(3 * i + channel);
    }
  }
};
constexpr BytePlaces kBytePlaces;

// 64 pixels at a time; returns how many are done.
TARPEG_AVX512 int split_avx512(const uint8_t* pixels, int width, uint8_t* red, ptrdiff_t step) noexcept {
  int x = 0;
  for (; x + 64 <= width; x += 64, pixels += 192) {
    const __m512i first = _mm512_loadu_si512(pixels), second = _mm512_loadu_si512(pixels + 64),
                  third = _mm512_loadu_si512(pixels + 128);
    for (int channel = 0; channel < 3; ++channel) {
      const __m512i places = _mm512_load_si512(kBytePlaces.bytes[channel]);
      const __mmask64 is_third = _mm512_movepi8_mask(places);  // from 128 on
      const __m512i two = _mm512_permutex2var_epi8(first, places, second);
      _mm512_storeu_si512(red + channel * step + x,
                          _mm512_mask_permutexvar_epi8(two, is_third, places, third));
    }
  }
  return x;
}

// As in AVX2, 32 pixels at a time.
template <class Lines>
TARPEG_AVX512 void to_rgb_avx512(const Lines& lines, int width, uint8_t* rgb) noexcept {
  const StoreRgb store;
  for (int next = 0; next < width; next += 32) {
    const int x = std::min(next, width - 32);
    __m512i rg, bb;
    lines.thirty_two(x, &rg, &bb);
    store(rg, bb, rgb + 3 * static_cast<ptrdiff_t>(x));
  }
}

#endif

template <class Lines>
void to_rgb(const Lines& lines, int width, uint8_t* rgb) noexcept {
#if defined(TARPEG_AVX512)
  if (width >= 32 && has_avx512()) return to_rgb_avx512(lines, width, rgb);
#endif
#if defined(TARPEG_AVX2)
  if (width >= 16 && has_avx2()) return to_rgb_avx2(lines, width, rgb);
#endif
  uint8_t r[kSome], g[kSome], b[kSome];
  for (int begin = 0; begin < width; begin += kSome) {
    const int count = std::min(kSome, width - begin);
    lines.portable(begin, count, r, g, b);
    interleave(r, g, b, count, rgb + 3 * static_cast<ptrdiff_t>(begin));
  }
}

}  // namespace

void split_rgb(const uint8_t* pixels, int width, uint8_t* red, ptrdiff_t step) noexcept {
  int done = 0;
#if defined(TARPEG_AVX512)
  if (has_avx512()) done = split_avx512(pixels, width, red, step);
#endif
  pixels += 3 * static_cast<ptrdiff_t>(done);
#if defined(TARPEG_AVX2)
  if (has_avx2()) return split_avx2(pixels, width - done, red + done, step);
#endif
  for (int x = done; x < width; ++x, pixels += 3) {
    for (int channel = 0; channel < 3; ++channel) red[x + channel * step] = pixels[channel];
  }
}

void reverse_pixels(const uint8_t* pixels, int count, size_t pixel_bytes, uint8_t* out) noexcept {
  if (pixel_bytes == 1) {
    std::reverse_copy(pixels, pixels + count, out);
    return;
  }
#if defined(TARPEG_AVX512)
  if (has_avx512()) return reverse_rgb_avx512(pixels, count, out);
#endif
  int x = 0;
#if defined(TARPEG_AVX2)
  if (has_avx2()) x = reverse_rgb_avx2(pixels, count, out);
#endif
  for (; x < count; ++x) std::memcpy(out + 3 * x, pixels + 3 * (count - 1 - x), 3);
}

void levels_to_gray(const int16_t* __restrict levels, int width, uint8_t* __restrict gray) noexcept {
  for (int x = 0; x < width; ++x) gray[x] = static_cast<uint8_t>(std::clamp<int16_t>(levels[x], 0, 255));
}

void levels_to_rgb(const int16_t* red, const int16_t* green, const int16_t* blue, int width,
                   uint8_t* rgb) noexcept {
  to_rgb(FromLevels{red, green, blue}, width, rgb);
}

void planes_to_rgb(const int16_t* luma, const int16_t* cb, const int16_t* cr, int width,
                   uint8_t* rgb) noexcept {
  to_rgb(FromPlanes{luma, cb, cr}, width, rgb);
}

}  // namespace tarpeg
