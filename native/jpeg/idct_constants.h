#pragma once

namespace tarpeg {

// Constants of jidctint.c and jidctred.c, 13 fractional bits.
constexpr int k0298 = 2446, k0390 = 3196, k0541 = 4433, k0765 = 6270, k0899 = 7373, k1175 = 9633,
              k1501 = 12299, k1847 = 15137, k1961 = 16069, k2053 = 16819, k2562 = 20995, k3072 = 25172;
constexpr int k0211 = 1730, k0509 = 4176, k0601 = 4926, k1061 = 8697, k1451 = 11893, k2172 = 17799;
constexpr int kConstBits = 13, kPassBits = 2;
constexpr int kFirstShift = kConstBits - kPassBits, kSecondShift = kConstBits + kPassBits + 3;
// For the first pass of means of two; the additional bit halves the sums.
constexpr int kHalvedShift = kConstBits - kPassBits + 1;

}  // namespace tarpeg
