#pragma once

#include <cstddef>
#include <cstdint>

namespace tarpeg {

enum class Type { kUint8, kFloat32, kFloat16, kBFloat16 };

inline size_t size_of(Type type) noexcept {
  return type == Type::kUint8 ? 1 : type == Type::kFloat32 ? 4 : 2;
}

// value * scale + shift, for each of R, G, B: in 32 bits, rounded to nearest even where the type has fewer.
struct Normalisation {
  Type type = Type::kUint8;
  float scale[3] = {1, 1, 1}, shift[3] = {0, 0, 0};
  bool planar = false;  // three planes one after the other; otherwise pixel by pixel
};

// Turns `pixels` RGB bytes triples into numbers of `normalisation.type`, which is not kUint8.
void normalise(const uint8_t* rgb, size_t pixels, const Normalisation& normalisation, void* out) noexcept;

}  // namespace tarpeg
