#include "base/simd.h"

#include <cstdlib>

namespace tarpeg {
namespace {

bool detect() noexcept {
#if defined(TARPEG_AVX2)
  // F16C is older than AVX2: no processor has the one without the other. FMA came with it.
  const bool supports = __builtin_cpu_supports("avx2") != 0 && __builtin_cpu_supports("fma") != 0;
  return supports && std::getenv("TARPEG_PORTABLE") == nullptr;
#else
  return false;
#endif
}

const bool kHasAvx2 = detect();

}  // namespace

bool has_avx2() noexcept { return kHasAvx2; }

}  // namespace tarpeg
