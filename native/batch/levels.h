#pragma once

#include <cmath>
#include <cstdint>

#include "base/device.h"

// From numbers to levels of 0 to 255. See Note [one arithmetic] in base/device.h.
namespace tarpeg {

TARPEG_HD float in_levels(float value) {
  const float above = value > 0 ? value : 0;  // NaN becomes 0
  return above < 255 ? above : 255;
}

TARPEG_HD uint8_t to_level(float value) { return static_cast<uint8_t>(in_levels(value) + 0.5f); }

// torchvision cuts the fraction off, except after interpolation and blur, which round half to even.
TARPEG_HD uint8_t cut(float value) { return static_cast<uint8_t>(static_cast<int32_t>(in_levels(value))); }
TARPEG_HD uint8_t rounded(float value) {
  return static_cast<uint8_t>(static_cast<int32_t>(rintf(in_levels(value))));
}

}  // namespace tarpeg
