#include "jpeg/means.h"

#include <cstring>

#include "base/simd.h"

namespace tarpeg {
namespace {

// Rounding term of a sum of `count` samples: halves go up in even columns and down in odd ones,
// so that means of means do not drift upwards.
constexpr int rounding(int count, int column) noexcept { return count == 1 ? 0 : count / 2 - column % 2; }

#if defined(TARPEG_AVX2)

// Sums of at most 64 bytes fit 16 bits: down first, then across.
template <int kBy>
TARPEG_AVX2 void reduce_avx2(const uint8_t* block, int side, uint8_t* out, ptrdiff_t stride) noexcept {
  constexpr int kCount = kBy * kBy, kShift = __builtin_ctz(kCount);
  constexpr int kEven = rounding(kCount, 0), kOdd = rounding(kCount, 1);
  const __m128i round = _mm_set1_epi32(kOdd << 16 | kEven);
  for (int y = 0; y < side; y += kBy, out += stride) {
    __m128i sum = _mm_setzero_si128();
    for (int i = 0; i < kBy; ++i) {
      const __m128i row = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(block + kBlockSide * (y + i)));
      sum = _mm_add_epi16(sum, _mm_cvtepu8_epi16(row));
    }
    for (int times = 1; times < kBy; times *= 2) sum = _mm_hadd_epi16(sum, sum);
    const __m128i mean = _mm_srli_epi16(_mm_add_epi16(sum, round), kShift);
    const int64_t bytes = _mm_cvtsi128_si64(_mm_packus_epi16(mean, mean));
    if (side == kBlockSide) {
      std::memcpy(out, &bytes, kBlockSide / kBy);
    } else {
      std::memcpy(out, &bytes, kBlockSide / 2 / kBy);
    }
  }
}

#endif

}  // namespace

void reduce_block(const uint8_t* block, int side, int down_by, int across_by, uint8_t* out,
                  ptrdiff_t stride) noexcept {
#if defined(TARPEG_AVX2)
  if (down_by == across_by && has_avx2()) {
    if (down_by == 1) return reduce_avx2<1>(block, side, out, stride);
    if (down_by == 2) return reduce_avx2<2>(block, side, out, stride);
    if (down_by == 4) return reduce_avx2<4>(block, side, out, stride);
    return reduce_avx2<8>(block, side, out, stride);
  }
#endif
  const int count = down_by * across_by, shift = __builtin_ctz(static_cast<unsigned>(count));
  for (int y = 0; y < side; y += down_by, out += stride) {
    for (int x = 0; x < side; x += across_by) {
      int sum = rounding(count, x / across_by);
      for (int i = 0; i < down_by; ++i) {
        for (int j = 0; j < across_by; ++j) sum += block[kBlockSide * (y + i) + x + j];
      }
      out[x / across_by] = static_cast<uint8_t>(sum >> shift);
    }
  }
}

}  // namespace tarpeg
