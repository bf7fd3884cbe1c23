#include "image/normalise.h"

#include <cmath>
#include <cstring>

#include "base/simd.h"

namespace tarpeg {
namespace {

uint16_t to_bfloat16(float value) noexcept {
  uint32_t bits;
  std::memcpy(&bits, &value, 4);
  if (std::isnan(value)) return 0x7FC0;
  return static_cast<uint16_t>((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}

// IEEE 754 binary16, round to nearest even, as the F16C instructions convert.
uint16_t to_float16(float value) noexcept {
  uint32_t bits;
  std::memcpy(&bits, &value, 4);
  const uint32_t sign = bits >> 16 & 0x8000;
  bits &= 0x7FFFFFFF;
  if (bits > 0x7F800000) return static_cast<uint16_t>(sign | 0x7E00);
  if (bits >= 0x477FF000) return static_cast<uint16_t>(sign | 0x7C00);  // rounds to infinity
  if (bits >= 0x38800000) {                                             // a normal number
    const uint32_t odd = bits >> 13 & 1;
    return static_cast<uint16_t>(sign | ((bits - 0x38000000 + 0xFFF + odd) >> 13));
  }
  // Subnormal: adding 0.5 puts the rounded digits into the lowest bits.
  float magnitude;
  std::memcpy(&magnitude, &bits, 4);
  magnitude += 0.5f;
  std::memcpy(&bits, &magnitude, 4);
  return static_cast<uint16_t>(sign | (bits - 0x3F000000));
}

void store(float value, Type type, void* out, size_t at) noexcept {
  if (type == Type::kFloat32) {
    static_cast<float*>(out)[at] = value;
  } else {
    static_cast<uint16_t*>(out)[at] = type == Type::kFloat16 ? to_float16(value) : to_bfloat16(value);
  }
}

void normalise_portable(const uint8_t* rgb, size_t begin, size_t pixels, const Normalisation& how,
                        void* out) noexcept {
  for (size_t i = begin; i < pixels; ++i) {
    for (size_t c = 0; c < 3; ++c) {
      const float product = static_cast<float>(rgb[3 * i + c]) * how.scale[c];
      store(product + how.shift[c], how.type, out, how.planar ? c * pixels + i : 3 * i + c);
    }
  }
}

#if defined(TARPEG_X86)

// Eight numbers from eight bytes; a multiplication and an addition, not a fused one, which would round
// otherwise.
template <Type kType>
TARPEG_AVX2_F16C inline void store8(__m128i bytes, __m256 scale, __m256 shift, void* out,
                                    size_t at) noexcept {
  const __m256 value =
      _mm256_add_ps(_mm256_mul_ps(_mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(bytes)), scale), shift);
  if constexpr (kType == Type::kFloat32) {
    _mm256_storeu_ps(static_cast<float*>(out) + at, value);
  } else if constexpr (kType == Type::kFloat16) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(static_cast<uint16_t*>(out) + at),
                     _mm256_cvtps_ph(value, _MM_FROUND_TO_NEAREST_INT));
  } else {
    const __m256i bits = _mm256_castps_si256(value);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    const __m256i rounded =
        _mm256_srli_epi32(_mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7FFF))), 16);
    const __m256i packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(rounded, rounded), 0x08);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(static_cast<uint16_t*>(out) + at),
                     _mm256_castsi256_si128(packed));
  }
}

// Eight pixels at a time; returns how many were done.
template <Type kType>
TARPEG_AVX2_F16C size_t normalise_avx2(const uint8_t* rgb, size_t pixels, const Normalisation& how,
                                       void* out) noexcept {
  __m256 scale[3], shift[3];
  for (int v = 0; v < 3; ++v) {
    alignas(32) float s[8], t[8];
    for (int i = 0; i < 8; ++i) {
      s[i] = how.scale[how.planar ? v : (8 * v + i) % 3];
      t[i] = how.shift[how.planar ? v : (8 * v + i) % 3];
    }
    scale[v] = _mm256_load_ps(s);
    shift[v] = _mm256_load_ps(t);
  }
  size_t i = 0;
  for (; i + 8 <= pixels; i += 8) {
    const uint8_t* at = rgb + 3 * i;
    if (!how.planar) {
      for (size_t v = 0; v < 3; ++v) {
        const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(at + 8 * v));
        store8<kType>(bytes, scale[v], shift[v], out, 3 * i + 8 * v);
      }
      continue;
    }
    const __m128i low = _mm_loadu_si128(reinterpret_cast<const __m128i*>(at));
    const __m128i high = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(at + 16));
    const __m128i red = _mm_or_si128(
        _mm_shuffle_epi8(low, _mm_setr_epi8(0, 3, 6, 9, 12, 15, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1)),
        _mm_shuffle_epi8(high, _mm_setr_epi8(-1, -1, -1, -1, -1, -1, 2, 5, -1, -1, -1, -1, -1, -1, -1, -1)));
    const __m128i green = _mm_or_si128(
        _mm_shuffle_epi8(low, _mm_setr_epi8(1, 4, 7, 10, 13, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1)),
        _mm_shuffle_epi8(high, _mm_setr_epi8(-1, -1, -1, -1, -1, 0, 3, 6, -1, -1, -1, -1, -1, -1, -1, -1)));
    const __m128i blue = _mm_or_si128(
        _mm_shuffle_epi8(low, _mm_setr_epi8(2, 5, 8, 11, 14, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1)),
        _mm_shuffle_epi8(high, _mm_setr_epi8(-1, -1, -1, -1, -1, 1, 4, 7, -1, -1, -1, -1, -1, -1, -1, -1)));
    store8<kType>(red, scale[0], shift[0], out, i);
    store8<kType>(green, scale[1], shift[1], out, pixels + i);
    store8<kType>(blue, scale[2], shift[2], out, 2 * pixels + i);
  }
  return i;
}

#endif

}  // namespace

void normalise(const uint8_t* rgb, size_t pixels, const Normalisation& how, void* out) noexcept {
  size_t done = 0;
#if defined(TARPEG_X86)
  if (has_avx2()) {
    switch (how.type) {
      case Type::kFloat32:
        done = normalise_avx2<Type::kFloat32>(rgb, pixels, how, out);
        break;
      case Type::kFloat16:
        done = normalise_avx2<Type::kFloat16>(rgb, pixels, how, out);
        break;
      default:
        done = normalise_avx2<Type::kBFloat16>(rgb, pixels, how, out);
        break;
    }
  }
#endif
  normalise_portable(rgb, done, pixels, how, out);
}

}  // namespace tarpeg
