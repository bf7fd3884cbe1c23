#include "image/column_pass.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "base/simd.h"

namespace tarpeg {
namespace {

template <class T>
constexpr bool kIsBytes = sizeof(T) == 1;

// See Note [plain loops] in jpeg/idct.cpp.
// Eight numbers, in the compiler's own terms.
using Shorts = int16_t __attribute__((vector_size(16)));

inline Shorts shorts_at(const int16_t* at) noexcept {
  Shorts numbers;
  std::memcpy(&numbers, at, sizeof numbers);
  return numbers;
}

using Sums = int32_t __attribute__((vector_size(16)));

// Sums of neighbouring products, of eight numbers.
inline Sums paired_products(Shorts a, Shorts b) noexcept {
#if defined(__SSE2__)  // where compilers multiply 32 bits in eight instructions
  return (Sums)_mm_madd_epi16((__m128i)a, (__m128i)b);
#else
  using Eight = int32_t __attribute__((vector_size(32)));
  const Eight products = __builtin_convertvector(a, Eight) * __builtin_convertvector(b, Eight);
  Sums low, high;
  std::memcpy(&low, &products, sizeof low);
  std::memcpy(&high, reinterpret_cast<const char*>(&products) + sizeof low, sizeof high);
  return TARPEG_MIX(Sums, low, high, 0, 2, 4, 6) + TARPEG_MIX(Sums, low, high, 1, 3, 5, 7);
#endif
}

}  // namespace

// The loops.
struct ColumnPassCode {
  // Four outputs at a time, four taps of two outputs in each vector.
  static Shorts two_fours(const int16_t* first, const int16_t* second) noexcept {
    int16_t both[8];
    std::memcpy(both, first, 4 * sizeof *both);
    std::memcpy(both + 4, second, 4 * sizeof *both);
    return shorts_at(both);
  }
  static Shorts two_fours(const uint8_t* first, const uint8_t* second) noexcept {
    uint8_t __attribute__((vector_size(8))) both;
    std::memcpy(&both, first, 4);
    std::memcpy(reinterpret_cast<uint8_t*>(&both) + 4, second, 4);
    return __builtin_convertvector(both, Shorts);
  }

  template <class T>
  static void portable(const ColumnPass& columns, const T* row, int16_t* out) noexcept {
    constexpr int kLowest = kIsBytes<T> ? 0 : INT16_MIN, kHighest = kIsBytes<T> ? kMostBetween : INT16_MAX;
    const int blocks = columns.blocks_, shift = columns.shift_;
    const int* start = columns.start_.data();
    const int16_t* weights = columns.weights_.data();
    for (int x = 0; x < columns.width_; x += 4, start += 4, weights += 16 * blocks) {
      Sums left = {}, right = {};
      for (int block = 0; block < blocks; ++block) {
        const T* in = row + 4 * block;
        left += paired_products(two_fours(in + start[0], in + start[1]), shorts_at(weights + 8 * block));
        right += paired_products(two_fours(in + start[2], in + start[3]),
                                 shorts_at(weights + 8 * (blocks + block)));
      }
      const Sums sums = TARPEG_MIX(Sums, left, right, 0, 2, 4, 6) + TARPEG_MIX(Sums, left, right, 1, 3, 5, 7);
      const Sums numbers = (sums + (1 << (shift - 1))) >> shift;
      for (int i = 0; i < 4; ++i)
        out[x + i] = static_cast<int16_t>(std::clamp(numbers[i], kLowest, kHighest));
    }
  }

#if defined(TARPEG_AVX2)
  // Stores eight outputs.
  template <class T>
  TARPEG_AVX2 static inline void put_eight(__m256i sums, __m128i shift, int16_t* out) noexcept {
    const __m256i numbers = _mm256_sra_epi32(sums, shift);
    __m128i words = _mm_packs_epi32(_mm256_castsi256_si128(numbers), _mm256_extracti128_si256(numbers, 1));
    if (kIsBytes<T>) {
      words = _mm_min_epi16(_mm_max_epi16(words, _mm_setzero_si128()), _mm_set1_epi16(kMostBetween));
    }
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out), words);
  }

  template <class T>
  TARPEG_AVX2 static inline __m256i two_vectors(const T* low, const T* high) noexcept {
    const __m128i first = _mm_loadu_si128(reinterpret_cast<const __m128i*>(low));
    const __m128i second = _mm_loadu_si128(reinterpret_cast<const __m128i*>(high));
    return _mm256_inserti128_si256(_mm256_castsi128_si256(first), second, 1);
  }

  // Eight outputs at a time; kPairs is the number of pairs of taps if it is a constant, otherwise 0. kIsOne:
  // four outputs have all their taps in one vector.
  template <class T, int kPairs, bool kIsOne>
  TARPEG_AVX2 static void near(const ColumnPass& columns, const Channels<const T>& rows,
                               const Channels<int16_t>& outs) noexcept {
    static_assert(kPairs > 0 || !kIsOne);
    const int pairs = kPairs > 0 ? kPairs : columns.pairs_, count = rows.count;
    const __m256i round = _mm256_set1_epi32(1 << (columns.shift_ - 1));
    const __m256i next_pair = _mm256_set1_epi8(2 * sizeof(T));
    const __m128i shift = _mm_cvtsi32_si128(columns.shift_);
    const int* start = columns.start_.data();
    const int16_t* weights = columns.weights_.data();
    const uint8_t* picks = columns.picks_.data();
    for (int x = 0; x < columns.width_; x += 8, start += 2, picks += 32, weights += 16 * pairs) {
      __m256i pick[kIsOne ? kPairs : 1];
      pick[0] = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(picks));
      for (int pair = 1; kIsOne && pair < kPairs; ++pair) {
        pick[pair] = _mm256_add_epi8(pick[pair - 1], next_pair);
      }
      const T *low = rows.first + start[0], *high = rows.first + start[1];
      int16_t* out = outs.first + x;
      for (int i = 0; i < count; ++i, low += rows.step, high += rows.step, out += outs.step) {
        __m256i sums = round, samples = two_vectors(low, high);
        for (int pair = 0; pair < pairs; ++pair) {
          if (!kIsOne && pair > 0) samples = two_vectors(low + 2 * pair, high + 2 * pair);
          const __m256i factors = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(weights + 16 * pair));
          const __m256i taps = _mm256_shuffle_epi8(samples, pick[kIsOne ? pair : 0]);
          sums = _mm256_add_epi32(sums, _mm256_madd_epi16(taps, factors));
        }
        put_eight<T>(sums, shift, out);
      }
    }
  }

  // Adds four bytes or two numbers of each of eight outputs.
  TARPEG_AVX2 static inline __m256i add_taps(__m256i sums, __m256i bytes, const int16_t* weights,
                                             uint8_t) noexcept {
    const __m256i low = _mm256_setr_epi8(0, -1, 1, -1, 4, -1, 5, -1, 8, -1, 9, -1, 12, -1, 13, -1, 0, -1, 1,
                                         -1, 4, -1, 5, -1, 8, -1, 9, -1, 12, -1, 13, -1);
    const __m256i high = _mm256_setr_epi8(2, -1, 3, -1, 6, -1, 7, -1, 10, -1, 11, -1, 14, -1, 15, -1, 2, -1,
                                          3, -1, 6, -1, 7, -1, 10, -1, 11, -1, 14, -1, 15, -1);
    sums = add_taps(sums, _mm256_shuffle_epi8(bytes, low), weights, int16_t{});
    return add_taps(sums, _mm256_shuffle_epi8(bytes, high), weights + 16, int16_t{});
  }
  TARPEG_AVX2 static inline __m256i add_taps(__m256i sums, __m256i numbers, const int16_t* weights,
                                             int16_t) noexcept {
    const __m256i factors = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(weights));
    return _mm256_add_epi32(sums, _mm256_madd_epi16(numbers, factors));
  }

  // The same, of vectors that are transposed: each output's taps are 16 bytes of their own.
  template <class T>
  TARPEG_AVX2 static void far(const ColumnPass& columns, const Channels<const T>& rows,
                              const Channels<int16_t>& outs) noexcept {
    constexpr int kTaps = 4 / sizeof(T);  // that add_taps() adds
    const int taps = 2 * columns.pairs_, count = rows.count;
    const __m256i round = _mm256_set1_epi32(1 << (columns.shift_ - 1));
    const __m128i shift = _mm_cvtsi32_si128(columns.shift_);
    const int* start = columns.start_.data();
    const int16_t* all_weights = columns.weights_.data();
    for (int x = 0; x < columns.width_; x += 8, start += 8, all_weights += 8 * taps) {
      const T* row = rows.first;
      int16_t* out = outs.first + x;
      for (int i = 0; i < count; ++i, row += rows.step, out += outs.step) {
        __m256i sums = round;
        const int16_t* weights = all_weights;
        const auto add = [&](__m256i some) TARPEG_AVX2 {
          sums = add_taps(sums, some, weights, T{});
          weights += 8 * kTaps;
        };
        for (int tap = 0; tap < taps; tap += 4 * kTaps) {
          const T* const in = row + tap;
          const __m256i a = two_vectors(in + start[0], in + start[4]);
          const __m256i b = two_vectors(in + start[1], in + start[5]);
          const __m256i c = two_vectors(in + start[2], in + start[6]);
          const __m256i d = two_vectors(in + start[3], in + start[7]);
          const __m256i left = _mm256_unpacklo_epi32(a, b), right = _mm256_unpacklo_epi32(c, d);
          add(_mm256_unpacklo_epi64(left, right));
          if (tap + kTaps >= taps) break;
          add(_mm256_unpackhi_epi64(left, right));
          if (tap + 2 * kTaps >= taps) break;
          const __m256i left_rest = _mm256_unpackhi_epi32(a, b), right_rest = _mm256_unpackhi_epi32(c, d);
          add(_mm256_unpacklo_epi64(left_rest, right_rest));
          if (tap + 3 * kTaps >= taps) break;
          add(_mm256_unpackhi_epi64(left_rest, right_rest));
        }
        put_eight<T>(sums, shift, out);
      }
    }
  }
#endif

#if defined(TARPEG_AVX512)
  template <class T, int kVectors>
  TARPEG_AVX512 static inline __m512i picked(__m512i low, __m512i pick, __m512i high) noexcept {
    constexpr __mmask64 kLowBytes = 0x5555555555555555;  // of each number of 16 bits
    if (kIsBytes<T>) {
      return kVectors == 1 ? _mm512_maskz_permutexvar_epi8(kLowBytes, pick, low)
                           : _mm512_maskz_permutex2var_epi8(kLowBytes, low, pick, high);
    }
    return kVectors == 1 ? _mm512_permutexvar_epi16(pick, low) : _mm512_permutex2var_epi16(low, pick, high);
  }

  // 16 outputs of each channel at a time, picked from kVectors vectors.
  template <class T, int kVectors, int kCount>
  TARPEG_AVX512 static void sixteen(const ColumnPass& columns, const Channels<const T>& rows,
                                    const Channels<int16_t>& outs) noexcept {
    const __m512i round = _mm512_set1_epi32(1 << (columns.shift_ - 1));
    const __m128i shift = _mm_cvtsi32_si128(columns.shift_);
    const int pairs = columns.pairs_, width = columns.width_;
    const int* start = columns.start_.data();
    const int16_t* weights = columns.weights_.data();
    const uint8_t* picks = columns.picks_.data();
    const T* const row = rows.first;
    int16_t* out = outs.first;
    const ptrdiff_t step = rows.step, out_step = outs.step;
    for (int x = 0; x < width; x += 16, ++start, picks += 64, out += 16) {
      __m512i low[kCount], high[kCount], sums[kCount], pick = _mm512_loadu_si512(picks);
      for (int i = 0; i < kCount; ++i) {
        const T* const in = row + i * step + *start;
        low[i] = _mm512_loadu_si512(in);
        high[i] = kVectors == 1 ? low[i] : _mm512_loadu_si512(in + 64 / sizeof(T));
        sums[i] = round;
      }
      for (int pair = 0; pair < pairs; ++pair, weights += 32) {
        const __m512i factors = _mm512_loadu_si512(weights);
        for (int i = 0; i < kCount; ++i)
          sums[i] = _mm512_dpwssd_epi32(sums[i], picked<T, kVectors>(low[i], pick, high[i]), factors);
        pick = _mm512_add_epi16(pick, _mm512_set1_epi16(2));
      }
      for (int i = 0; i < kCount; ++i) {
        __m256i words = _mm512_cvtsepi32_epi16(_mm512_sra_epi32(sums[i], shift));
        if (kIsBytes<T>) {
          words = _mm256_min_epi16(_mm256_max_epi16(words, _mm256_setzero_si256()),
                                   _mm256_set1_epi16(kMostBetween));
        }
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + i * out_step), words);
      }
    }
  }
#endif

  template <class T>
  static void blend(const ColumnPass& columns, const Channels<const T>& in,
                    const Channels<int16_t>& out) noexcept {
#if defined(TARPEG_AVX512)
    if (columns.vectors_ == 1) return (in.count == 1 ? sixteen<T, 1, 1> : sixteen<T, 1, 3>)(columns, in, out);
    if (columns.vectors_ == 2) return (in.count == 1 ? sixteen<T, 2, 1> : sixteen<T, 2, 3>)(columns, in, out);
#endif
#if defined(TARPEG_AVX2)
    using Code = decltype(&far<T>);
    constexpr Code kOne[] = {near<T, 1, true>, near<T, 2, true>, near<T, 3, true>,
                             near<T, 4, true>, near<T, 5, true>, near<T, 6, true>};
    constexpr Code kNear[] = {near<T, 0, false>, near<T, 1, false>, near<T, 2, false>, near<T, 3, false>,
                              near<T, 4, false>};
    const int pairs = columns.pairs_;
    if (columns.reach_ == ColumnPass::Reach::kFar) return far<T>(columns, in, out);
    if (columns.reach_ == ColumnPass::Reach::kOne && pairs <= 6) return kOne[pairs - 1](columns, in, out);
    if (has_avx2()) return kNear[pairs > 4 ? 0 : pairs](columns, in, out);
#endif
    for (int i = 0; i < in.count; ++i) portable(columns, in.first + i * in.step, out.first + i * out.step);
  }
};

void ColumnPass::prepare(const Axis& axis, int first, bool reversed, int dropped, bool are_bytes) {
  shift_ = axis.precision + dropped;
  width_ = (axis.out + 15) / 16 * 16;
  pairs_ = (axis.taps + 1) / 2;
  const auto column = [&](int x) { return reversed ? axis.out - 1 - x : x; };
  // Past the end the last output is repeated, with weights of zero.
  const auto start = [&](int x) { return axis.start[column(std::min(x, axis.out - 1))] - first; };
  int reach = 0;  // samples under sixteen outputs; starts ascend or descend
  for (int x = 0; x < width_; x += 16)
    reach = std::max(reach, std::abs(start(x + 15) - start(x)) + 2 * pairs_);
  const int sample_bytes = are_bytes ? 1 : 2, in_vector = 64 / sample_bytes;
  vectors_ = (reach + in_vector - 1) / in_vector;
  if (vectors_ > 2 || !has_avx512()) vectors_ = 0;
  start_.resize(width_);
  reach_ = Reach::kNear;
  if (!has_avx2()) {
    blocks_ = (axis.taps + 3) / 4;
    weights_.assign(static_cast<size_t>(width_) * 4 * blocks_, 0);
    for (int x = 0; x < width_; ++x) start_[x] = start(x);
    for (int x = 0; x < axis.out; ++x) {
      const int16_t* from = axis.weights.data() + static_cast<ptrdiff_t>(column(x)) * axis.taps;
      int16_t* to = weights_.data() + static_cast<ptrdiff_t>(x / 2) * blocks_ * 8 + x % 2 * 4;
      for (int tap = 0; tap < axis.taps; ++tap) to[tap / 4 * 8 + tap % 4] = from[tap];
    }
    return;
  }
  picks_.resize(static_cast<size_t>(width_) * 4);
  const int together = vectors_ > 0 ? 16 : 4, in_lane = 16 / sample_bytes;
  int most_span = 0;
  uint8_t* pick = picks_.data();
  for (int x = 0; x < width_; x += together) {
    const int low = std::min(start(x), start(x + together - 1));
    start_[x / together] = low;
    for (int i = 0; i < together; ++i, pick += 4) {
      const int span = start(x + i) - low;
      most_span = std::max(most_span, span);
      constexpr int kZero = 0x80;  // to vpshufb
      for (int byte = 0; byte < 4; ++byte) {
        int place = span + byte / 2;
        if (byte % 2 == 1) place = vectors_ > 0 ? 0 : kZero;
        if (vectors_ == 0 && !are_bytes) place = 2 * span + byte;
        pick[byte] = static_cast<uint8_t>(place);
      }
    }
  }
  if (vectors_ == 0 && most_span + 2 > in_lane) {
    reach_ = Reach::kFar;
    if (are_bytes) pairs_ = (pairs_ + 1) / 2 * 2;
    for (int x = 0; x < width_; ++x) start_[x] = start(x);
  } else if (vectors_ == 0 && most_span + axis.taps <= in_lane) {
    reach_ = Reach::kOne;
  }
  weights_.assign(static_cast<size_t>(width_) * 2 * pairs_, 0);
  const int group = vectors_ > 0 ? 16 : 8;
  for (int x = 0; x < axis.out; ++x) {
    const int16_t* from = axis.weights.data() + static_cast<ptrdiff_t>(column(x)) * axis.taps;
    int16_t* to = weights_.data() + static_cast<ptrdiff_t>(x / group) * pairs_ * 2 * group + x % group * 2;
    for (int tap = 0; tap < axis.taps; ++tap) to[tap / 2 * 2 * group + tap % 2] = from[tap];
  }
}

void ColumnPass::blend(const Channels<const int16_t>& in, const Channels<int16_t>& out) const noexcept {
  ColumnPassCode::blend(*this, in, out);
}

void ColumnPass::blend(const Channels<const uint8_t>& in, const Channels<int16_t>& out) const noexcept {
  ColumnPassCode::blend(*this, in, out);
}

}  // namespace tarpeg
