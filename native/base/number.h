#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

namespace tarpeg {

// The element types of tensors.
enum class Number { kUint8, kFloat32, kFloat16, kBFloat16 };

// In bytes.
inline int64_t size_of(Number type) noexcept {
  return type == Number::kUint8 ? 1 : type == Number::kFloat32 ? 4 : 2;
}

// Rounded to nearest even. Every NaN becomes the same one, without sign: processors and GPUs keep different
// parts of a NaN.
inline uint16_t to_bfloat16(float value) noexcept {
  uint32_t bits;
  std::memcpy(&bits, &value, 4);
  if (std::isnan(value)) return 0x7FC0;
  return static_cast<uint16_t>((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}

// IEEE 754 binary16, rounded to nearest even, as the F16C instructions convert; NaN as above.
inline uint16_t to_float16(float value) noexcept {
  uint32_t bits;
  std::memcpy(&bits, &value, 4);
  const uint32_t sign = bits >> 16 & 0x8000;
  bits &= 0x7FFFFFFF;
  if (bits > 0x7F800000) return 0x7E00;
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

// Writes a floating-point number of `kType` to data[at].
template <Number kType>
inline void put_number(float value, void* data, int64_t at) noexcept {
  static_assert(kType != Number::kUint8, "a level is rounded by to_level()");
  if constexpr (kType == Number::kFloat32) {
    static_cast<float*>(data)[at] = value;
  } else {
    static_cast<uint16_t*>(data)[at] = kType == Number::kFloat16 ? to_float16(value) : to_bfloat16(value);
  }
}

}  // namespace tarpeg
