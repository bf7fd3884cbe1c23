#include "base/simd.h"

#include <algorithm>
#include <cstdlib>
#include <string_view>

namespace tarpeg {
namespace {

Vectors supported() noexcept {
#if defined(__x86_64__)
  // F16C is older than AVX2: no processor has the one without the other. FMA came with it.
  if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma")) return Vectors::kNone;
  const bool wide = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                    __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
                    __builtin_cpu_supports("avx512vbmi") && __builtin_cpu_supports("avx512vbmi2") &&
                    __builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("bmi2");
  return wide ? Vectors::kAvx512 : Vectors::kAvx2;
#elif defined(TARPEG_AVX2)
  return Vectors::kAvx2;
#else
  return Vectors::kNone;
#endif
}

std::string_view variable() noexcept {
  const char* value = std::getenv("TARPEG_VECTORS");
  return value == nullptr ? "" : value;
}

Vectors allowed() noexcept {
  if (std::getenv("TARPEG_PORTABLE") != nullptr || variable() == "none") return Vectors::kNone;
  return variable() == "avx2" ? Vectors::kAvx2 : Vectors::kAvx512;
}

const Vectors kVectors = std::min(supported(), allowed());

}  // namespace

Vectors vectors() noexcept { return kVectors; }

const char* vectors_name() noexcept {
#if defined(__x86_64__)
  return has_avx512() ? "AVX-512" : has_avx2() ? "AVX2" : "none";
#elif defined(TARPEG_AVX2)
  return has_avx2() ? "NEON" : "none";
#else
  return "none";
#endif
}

bool is_vectors_variable_valid() noexcept {
  const std::string_view value = variable();
  return value.empty() || value == "avx512" || value == "avx2" || value == "none";
}

}  // namespace tarpeg
