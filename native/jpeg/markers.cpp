#include "jpeg/markers.h"

#include "base/simd.h"

namespace tarpeg {
namespace {

size_t next_marker_portable(const uint8_t* data, size_t at, size_t size) noexcept {
  for (; at + 1 < size; ++at) {
    if (data[at] == 0xFF && data[at + 1] != 0x00 && data[at + 1] != 0xFF) return at;
  }
  return size;
}

#if defined(TARPEG_X86)

// memchr() for 0xFF stops at every stuffed byte; comparing pairs passes over those.
TARPEG_AVX2 size_t next_marker_avx2(const uint8_t* data, size_t at, size_t size) noexcept {
  const __m256i ones = _mm256_set1_epi8(-1), zero = _mm256_setzero_si256();
  for (; at + 33 <= size; at += 32) {
    const __m256i here = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(data + at));
    const __m256i next = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(data + at + 1));
    const __m256i no_marker = _mm256_or_si256(_mm256_cmpeq_epi8(next, zero), _mm256_cmpeq_epi8(next, ones));
    const __m256i marker = _mm256_andnot_si256(no_marker, _mm256_cmpeq_epi8(here, ones));
    const unsigned mask = static_cast<unsigned>(_mm256_movemask_epi8(marker));
    if (mask != 0) return at + static_cast<size_t>(__builtin_ctz(mask));
  }
  return next_marker_portable(data, at, size);
}

#endif

}  // namespace

size_t next_marker(const uint8_t* data, size_t at, size_t size) noexcept {
#if defined(TARPEG_X86)
  if (has_avx2()) return next_marker_avx2(data, at, size);
#endif
  return next_marker_portable(data, at, size);
}

}  // namespace tarpeg
