#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "base/simd.h"

// Resampling without AVX2: see Note [plain loops] in jpeg/idct.cpp.
namespace tarpeg {

// Eight numbers, in the compiler's own terms.
using Shorts = int16_t __attribute__((vector_size(16)));

inline Shorts shorts_at(const int16_t* at) noexcept {
  Shorts numbers;
  std::memcpy(&numbers, at, sizeof numbers);
  return numbers;
}
inline Shorts shorts_at(const uint8_t* at) noexcept {
  uint8_t __attribute__((vector_size(8))) bytes;
  std::memcpy(&bytes, at, sizeof bytes);
  return __builtin_convertvector(bytes, Shorts);
}

// Sums of products, of eight numbers each.
struct Sums {
  using Four = int32_t __attribute__((vector_size(16)));
  Four low = {}, high = {};

  void add(Shorts a, Shorts b) noexcept {
#if defined(__SSE2__)  // where compilers multiply 32 bits in eight instructions
    const __m128i lower = _mm_mullo_epi16((__m128i)a, (__m128i)b);
    const __m128i upper = _mm_mulhi_epi16((__m128i)a, (__m128i)b);
    low += (Four)_mm_unpacklo_epi16(lower, upper);
    high += (Four)_mm_unpackhi_epi16(lower, upper);
#else
    using Eight = int32_t __attribute__((vector_size(32)));
    const Eight products = __builtin_convertvector(a, Eight) * __builtin_convertvector(b, Eight);
    Four halves[2];
    std::memcpy(halves, &products, sizeof halves);
    low += halves[0];
    high += halves[1];
#endif
  }
  // Sums of number i and number i + 4.
  void put(int32_t* out) const noexcept {
    const Four both = low + high;
    std::memcpy(out, &both, sizeof both);
  }
};

// Sums of neighbouring products, of eight numbers.
inline Sums::Four paired_products(Shorts a, Shorts b) noexcept {
#if defined(__SSE2__)
  return (Sums::Four)_mm_madd_epi16((__m128i)a, (__m128i)b);
#else
  Sums products;
  products.add(a, b);
  return TARPEG_MIX(Sums::Four, products.low, products.high, 0, 2, 4, 6) +
         TARPEG_MIX(Sums::Four, products.low, products.high, 1, 3, 5, 7);
#endif
}

// Adds a row and the next one, weighted, to `count` sums.
template <class T>
void add_rows(const T* __restrict even, const T* __restrict odd, int32_t weights, size_t count,
              int32_t* __restrict sums) noexcept {
  const int16_t first = static_cast<int16_t>(weights & 0xFFFF), second = static_cast<int16_t>(weights >> 16);
  for (size_t x = 0; x < count; ++x) {
    const int16_t a = even[x], b = odd[x];
    sums[x] += a * first + b * second;
  }
}

// Numbers that are shifted to the right and held between two limits.
template <class T>
void shift_between(const int32_t* __restrict sums, size_t count, int shift, int lowest, int highest,
                   T* __restrict out) noexcept {
  for (size_t i = 0; i < count; ++i) {
    int value = sums[i] >> shift;
    value = value < lowest ? lowest : value;
    out[i] = static_cast<T>(value > highest ? highest : value);
  }
}

// All weighted rows: `length` numbers, rounded up to a multiple of 32, in blocks that stay in the first-level
// cache.
template <class T, class Out>
void blend_rows_portable(const T* const* rows, const int32_t* weights, int pairs, size_t length, int shift,
                         int lowest, int highest, Out* out) noexcept {
  constexpr size_t kSome = 256;
  int32_t sums[kSome];
  for (size_t begin = 0; begin < length; begin += kSome) {
    const size_t left = (length - begin + 31) / 32 * 32, count = left < kSome ? left : kSome;
    for (size_t x = 0; x < count; ++x) sums[x] = 1 << (shift - 1);
    for (int pair = 0; pair < pairs; ++pair) {
      add_rows(rows[2 * pair] + begin, rows[2 * pair + 1] + begin, weights[pair], count, sums);
    }
    shift_between(sums, count, shift, lowest, highest, out + begin);
  }
}

}  // namespace tarpeg
