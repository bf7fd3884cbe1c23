#pragma once

// Vector code is written in intrinsics of AVX2, FMA and F16C. On x86 attributes compile it, and it is chosen
// at run time. On aarch64 the headers of SIMDe turn it into NEON, which every such processor has; without
// them portable code runs.
#if defined(__x86_64__)
#define TARPEG_AVX2 __attribute__((target("avx2")))
#define TARPEG_AVX2_F16C __attribute__((target("avx2,f16c")))
#define TARPEG_AVX2_FMA __attribute__((target("avx2,fma")))
// Defined where AVX-512 code can be compiled. Such code uses these parts of it, and no other.
#define TARPEG_AVX512 \
  __attribute__((     \
      target("avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vbmi2,avx512vnni,avx2,fma,f16c,bmi2")))
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wuninitialized"  // GCC 12's own headers
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#include <immintrin.h>
#pragma GCC diagnostic pop
#elif defined(__aarch64__) && __has_include(<simde/x86/avx2.h>)
#define TARPEG_AVX2
#define TARPEG_AVX2_F16C
#define TARPEG_AVX2_FMA
#define SIMDE_ENABLE_NATIVE_ALIASES
#include <simde/x86/avx2.h>
#include <simde/x86/f16c.h>
#include <simde/x86/fma.h>
#endif

// A loop NAME_of is compiled for each level of vector code: inlined into a function for that level, it
// becomes vector code.
#if defined(TARPEG_AVX512)
#define TARPEG_VECTORISED(type, name, parameters, arguments)                         \
  static TARPEG_AVX512 type name##_avx512 parameters { return name##_of arguments; } \
  static TARPEG_AVX2_FMA type name##_avx2 parameters { return name##_of arguments; } \
  type name parameters {                                                             \
    if (has_avx512()) return name##_avx512 arguments;                                \
    if (has_avx2()) return name##_avx2 arguments;                                    \
    return name##_of arguments;                                                      \
  }
#elif defined(TARPEG_AVX2)
#define TARPEG_VECTORISED(type, name, parameters, arguments)                         \
  static TARPEG_AVX2_FMA type name##_avx2 parameters { return name##_of arguments; } \
  type name parameters {                                                             \
    if (has_avx2()) return name##_avx2 arguments;                                    \
    return name##_of arguments;                                                      \
  }
#else
#define TARPEG_VECTORISED(type, name, parameters, arguments) \
  type name parameters { return name##_of arguments; }
#endif

// For portable code, in the compilers' own terms: lanes of two vectors of 16 bytes, numbered through.
#if defined(__clang__)
#define TARPEG_MIX(type, a, b, ...) __builtin_shufflevector((type)(a), (type)(b), __VA_ARGS__)
#else
#define TARPEG_MIX(type, a, b, ...) __builtin_shuffle((type)(a), (type)(b), type{__VA_ARGS__})
#endif

namespace tarpeg {

// Levels of vector code, each with those before it. All give the same bytes.
enum class Vectors { kNone, kAvx2, kAvx512 };

// The highest level that the processor has and the environment allows: TARPEG_VECTORS=avx512, avx2 or none;
// TARPEG_PORTABLE=1 is none. kAvx2 includes F16C and FMA; NEON counts as kAvx2.
// Note [AVX-512]
// kAvx512 is F, BW, DQ, VL, VBMI, VBMI2 and VNNI. VBMI2 decides: processors whose clock falls by a quarter
// when a 512-bit vector is used (Skylake-X to Cooper Lake, Xeon Phi) lack it, and all that have it (Ice Lake,
// Sapphire Rapids, Zen 4, Zen 5 and later) keep their clock within a few percent.
Vectors vectors() noexcept;
inline bool has_avx2() noexcept { return vectors() >= Vectors::kAvx2; }
inline bool has_avx512() noexcept { return vectors() >= Vectors::kAvx512; }

// For people: "AVX-512", "AVX2", "NEON" or "none".
const char* vectors_name() noexcept;

// Whether TARPEG_VECTORS is unset, empty, or one of the values above.
bool is_vectors_variable_valid() noexcept;

}  // namespace tarpeg
