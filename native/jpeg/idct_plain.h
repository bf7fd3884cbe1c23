#pragma once

#include <cstdint>

#include "base/device.h"
#include "jpeg/idct_constants.h"

// The inverse DCT of eight numbers in plain code, for processors without vector code and for devices. Numbers
// are `step` apart; `out` may be `in`. Sums of 16 bits wrap; the results of the first pass saturate.
namespace tarpeg {

// Sums wrap. Those of the second pass are small after the shift.
template <int kShift>
TARPEG_HD int16_t descaled(uint32_t sum) {
  int value = static_cast<int>(sum + (1u << (kShift - 1))) >> kShift;
  if (kShift < 16) {
    value = value < -32768 ? -32768 : value;
    value = value > 32767 ? 32767 : value;
  }
  return static_cast<int16_t>(value);
}

template <int kShift>
TARPEG_HD void transform(const int16_t* in, int16_t* out, int step) {
  const int16_t i0 = in[0], i1 = in[step], i2 = in[2 * step], i3 = in[3 * step], i4 = in[4 * step],
                i5 = in[5 * step], i6 = in[6 * step], i7 = in[7 * step];
  const int even2 = i2 * k0541 + i6 * (k0541 - k1847), even3 = i2 * (k0541 + k0765) + i6 * k0541;
  const int16_t sum04 = static_cast<int16_t>(i0 + i4), rest04 = static_cast<int16_t>(i0 - i4);
  const int even0 = sum04 * (1 << kConstBits), even1 = rest04 * (1 << kConstBits);
  const int t10 = even0 + even3, t13 = even0 - even3, t11 = even1 + even2, t12 = even1 - even2;
  const int16_t s3 = static_cast<int16_t>(i7 + i3), s4 = static_cast<int16_t>(i5 + i1);
  const int z3 = s3 * (k1175 - k1961) + s4 * k1175, z4 = s3 * k1175 + s4 * (k1175 - k0390);
  const int odd0 = i7 * (k0298 - k0899) + i1 * -k0899 + z3, odd3 = i7 * -k0899 + i1 * (k1501 - k0899) + z4;
  const int odd1 = i5 * (k2053 - k2562) + i3 * -k2562 + z4, odd2 = i5 * -k2562 + i3 * (k3072 - k2562) + z3;
  out[0] = descaled<kShift>(static_cast<uint32_t>(t10 + odd3));
  out[step] = descaled<kShift>(static_cast<uint32_t>(t11 + odd2));
  out[2 * step] = descaled<kShift>(static_cast<uint32_t>(t12 + odd1));
  out[3 * step] = descaled<kShift>(static_cast<uint32_t>(t13 + odd0));
  out[4 * step] = descaled<kShift>(static_cast<uint32_t>(t13 - odd0));
  out[5 * step] = descaled<kShift>(static_cast<uint32_t>(t12 - odd1));
  out[6 * step] = descaled<kShift>(static_cast<uint32_t>(t11 - odd2));
  out[7 * step] = descaled<kShift>(static_cast<uint32_t>(t10 - odd3));
}

// Four means of two neighbours each: equal to those of transform(), except for rounding. The fifth number
// belongs to a wave that cancels out in every pair.
template <int kShift>
TARPEG_HD void halve(const int16_t* in, int16_t* out, int step) {
  const auto times = [in, step](int k, int factor) { return static_cast<uint32_t>(in[k * step] * factor); };
  const uint32_t center = static_cast<uint32_t>(static_cast<int>(in[0])) << (kConstBits + 1);
  const uint32_t even = times(2, k1847) - times(6, k0765);
  const uint32_t odd1 = times(1, k1061) - times(3, k2172) + times(5, k1451) - times(7, k0211);
  const uint32_t odd0 = times(1, k2562) + times(3, k0899) - times(5, k0601) - times(7, k0509);
  out[0] = descaled<kShift>(center + even + odd0);
  out[step] = descaled<kShift>(center - even + odd1);
  out[2 * step] = descaled<kShift>(center - even - odd1);
  out[3 * step] = descaled<kShift>(center + even - odd0);
}

}  // namespace tarpeg
