#include "base/simd.h"

#include <cstdlib>

namespace tarpeg {
namespace {

bool detect() noexcept {
#if defined(TARPEG_X86)
  // F16C is older than AVX2: no processor has the one without the other.
  return __builtin_cpu_supports("avx2") != 0 && std::getenv("TARPEG_PORTABLE") == nullptr;
#else
  return false;
#endif
}

const bool kHasAvx2 = detect();

}  // namespace

bool has_avx2() noexcept { return kHasAvx2; }

}  // namespace tarpeg
