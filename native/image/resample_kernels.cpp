#include "image/resample_kernels.h"

#include <algorithm>
#include <cstring>

#include "base/simd.h"

namespace tarpeg::kernels {

void blend_rows(const Rows& rows, int16_t* out) noexcept {
  const int32_t round = 1 << (rows.shift - 1);
  for (size_t x = 0; x < rows.length; ++x) {
    int32_t sum = round;
    for (int pair = 0; pair < rows.pairs; ++pair) {
      const uint32_t weights = static_cast<uint32_t>(rows.weights[pair]);
      sum += rows.rows[2 * pair][x] * static_cast<int16_t>(weights & 0xFFFF);
      sum += rows.rows[2 * pair + 1][x] * static_cast<int16_t>(weights >> 16);
    }
    out[x] = static_cast<int16_t>(sum >> rows.shift);
  }
}

void blend_columns(const Columns& columns, const int16_t* row, uint8_t* out) noexcept {
  const int32_t round = 1 << (columns.shift - 1);
  for (int x = 0; x < columns.width; ++x) {
    const int16_t* in = row + 4 * static_cast<ptrdiff_t>(columns.start[x]);
    const int16_t* weights = columns.weights + static_cast<ptrdiff_t>(x) * columns.blocks * 16;
    for (int channel = 0; channel < 3; ++channel) {
      int32_t sum = round;
      for (int tap = 0; tap < 4 * columns.blocks; ++tap) {
        sum += in[4 * tap + channel] * weights[tap / 2 * 8 + channel * 2 + tap % 2];
      }
      out[3 * static_cast<ptrdiff_t>(x) + channel] =
          static_cast<uint8_t>(std::clamp(sum >> columns.shift, 0, 255));
    }
  }
}

#if defined(TARPEG_X86)

namespace {

template <int kPairs>
TARPEG_AVX2 void blend_rows_of(const Rows& rows, int16_t* out) noexcept {
  const __m256i round = _mm256_set1_epi32(1 << (rows.shift - 1));
  const __m128i shift = _mm_cvtsi32_si128(rows.shift);
  const int pairs = kPairs > 0 ? kPairs : rows.pairs;
  for (size_t x = 0; x < rows.length; x += 16) {
    __m256i low = round, high = round;
    for (int pair = 0; pair < pairs; ++pair) {
      const __m256i weights = _mm256_set1_epi32(rows.weights[pair]);
      const __m128i even = _mm_loadu_si128(reinterpret_cast<const __m128i*>(rows.rows[2 * pair] + x));
      const __m128i odd = _mm_loadu_si128(reinterpret_cast<const __m128i*>(rows.rows[2 * pair + 1] + x));
      const __m256i first = _mm256_cvtepu8_epi16(_mm_unpacklo_epi8(even, odd));
      const __m256i second = _mm256_cvtepu8_epi16(_mm_unpackhi_epi8(even, odd));
      low = _mm256_add_epi32(low, _mm256_madd_epi16(first, weights));
      high = _mm256_add_epi32(high, _mm256_madd_epi16(second, weights));
    }
    const __m256i packed = _mm256_packs_epi32(_mm256_sra_epi32(low, shift), _mm256_sra_epi32(high, shift));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + x), _mm256_permute4x64_epi64(packed, 0xD8));
  }
}

}  // namespace

TARPEG_AVX2 void blend_rows_avx2(const Rows& rows, int16_t* out) noexcept {
  switch (rows.pairs) {
    case 1:
      return blend_rows_of<1>(rows, out);
    case 2:
      return blend_rows_of<2>(rows, out);
    case 3:
      return blend_rows_of<3>(rows, out);
    default:
      return blend_rows_of<0>(rows, out);
  }
}

namespace {

// The taps of one pixel, two by two: four channels in the low half, the other pair of taps in the high half.
// kBlocks is the number of groups of four taps where it is known, which unrolls the loop; 0 where it is not.
template <int kBlocks>
TARPEG_AVX2 inline __m256i gather(const int16_t* in, const int16_t* weights, int blocks) noexcept {
  const __m256i pairs = _mm256_setr_epi8(0, 1, 8, 9, 2, 3, 10, 11, 4, 5, 12, 13, 6, 7, 14, 15, 0, 1, 8, 9, 2,
                                         3, 10, 11, 4, 5, 12, 13, 6, 7, 14, 15);
  __m256i sum = _mm256_setzero_si256();
  for (int block = 0; block < (kBlocks > 0 ? kBlocks : blocks); ++block) {
    const __m256i taps = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(in + 16 * block));
    const __m256i factor = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(weights + 16 * block));
    sum = _mm256_add_epi32(sum, _mm256_madd_epi16(_mm256_shuffle_epi8(taps, pairs), factor));
  }
  return sum;
}

// Pixels 0 and 1 below and above, from four sums of two halves each.
TARPEG_AVX2 inline __m256i join(__m256i a, __m256i b, __m256i round, __m128i shift) noexcept {
  const __m256i sum =
      _mm256_add_epi32(_mm256_permute2x128_si256(a, b, 0x20), _mm256_permute2x128_si256(a, b, 0x31));
  return _mm256_sra_epi32(_mm256_add_epi32(sum, round), shift);
}

template <int kBlocks>
TARPEG_AVX2 void blend_columns_of(const Columns& columns, const int16_t* row, uint8_t* out) noexcept {
  const __m256i round = _mm256_set1_epi32(1 << (columns.shift - 1));
  const __m128i shift = _mm_cvtsi32_si128(columns.shift);
  const __m128i drop_x = _mm_setr_epi8(0, 1, 2, 4, 5, 6, 8, 9, 10, 12, 13, 14, -1, -1, -1, -1);
  const int blocks = kBlocks > 0 ? kBlocks : columns.blocks, last = columns.width - 1;
  const ptrdiff_t step = static_cast<ptrdiff_t>(blocks) * 16;
  const int* start = columns.start;
  const int16_t* weights = columns.weights;
  for (int x = 0; x <= last; x += 4, start += 4, weights += 4 * step) {
    const int left = last - x;  // past the end the last pixel is computed again, and dropped
    const int one = left < 1 ? left : 1, two = left < 2 ? left : 2, three = left < 3 ? left : 3;
    const __m256i a = gather<kBlocks>(row + 4 * static_cast<ptrdiff_t>(start[0]), weights, blocks);
    const __m256i b =
        gather<kBlocks>(row + 4 * static_cast<ptrdiff_t>(start[one]), weights + one * step, blocks);
    const __m256i c =
        gather<kBlocks>(row + 4 * static_cast<ptrdiff_t>(start[two]), weights + two * step, blocks);
    const __m256i d =
        gather<kBlocks>(row + 4 * static_cast<ptrdiff_t>(start[three]), weights + three * step, blocks);
    // Lanes: pixels 0 and 2 below, 1 and 3 above; packing and one interleave put them in order.
    const __m256i words = _mm256_packs_epi32(join(a, b, round, shift), join(c, d, round, shift));
    const __m256i bytes = _mm256_packus_epi16(words, words);
    const __m128i rgbx =
        _mm_unpacklo_epi32(_mm256_castsi256_si128(bytes), _mm256_extracti128_si256(bytes, 1));
    const __m128i rgb = _mm_shuffle_epi8(rgbx, drop_x);
    uint8_t* target = out + 3 * static_cast<ptrdiff_t>(x);
    if (left >= 5) {  // 16 bytes from here stay inside the row
      _mm_storeu_si128(reinterpret_cast<__m128i*>(target), rgb);
    } else {
      alignas(16) uint8_t bytes_left[16];
      _mm_store_si128(reinterpret_cast<__m128i*>(bytes_left), rgb);
      std::memcpy(target, bytes_left, 3 * static_cast<size_t>(three + 1));
    }
  }
}

}  // namespace

TARPEG_AVX2 void blend_columns_avx2(const Columns& columns, const int16_t* row, uint8_t* out) noexcept {
  switch (columns.blocks) {
    case 1:
      return blend_columns_of<1>(columns, row, out);
    case 2:
      return blend_columns_of<2>(columns, row, out);
    default:
      return blend_columns_of<0>(columns, row, out);
  }
}

#else

void blend_rows_avx2(const Rows& rows, int16_t* out) noexcept { blend_rows(rows, out); }
void blend_columns_avx2(const Columns& columns, const int16_t* row, uint8_t* out) noexcept {
  blend_columns(columns, row, out);
}

#endif

}  // namespace tarpeg::kernels
