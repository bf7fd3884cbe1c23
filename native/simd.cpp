#include "simd.h"

#include <cstdlib>

namespace tarpeg {
namespace {

bool detect() noexcept {
#if defined(TARPEG_X86)
  return __builtin_cpu_supports("avx2") != 0 && __builtin_cpu_supports("f16c") != 0 &&
         std::getenv("TARPEG_PORTABLE") == nullptr;
#else
  return false;
#endif
}

const bool kHasAvx2 = detect();

}  // namespace

bool has_avx2() noexcept { return kHasAvx2; }

}  // namespace tarpeg
