#include "json/numbers.h"

#include <cstring>

#include "base/simd.h"

namespace tarpeg {
namespace {

#if defined(TARPEG_AVX2)

constexpr int kStep = 64;

// Which of 64 characters are of a kind, the first in the lowest bit.
struct Kinds {
  uint64_t digit = 0, zero = 0, point = 0, comma = 0, space = 0, minus = 0, bracket = 0;
};

TARPEG_AVX2 Kinds kinds_of(const uint8_t* at) noexcept {
  Kinds found;
  for (int i = 0; i < kStep; i += 32) {
    const __m256i text = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(at + i));
    const auto bits = [i](__m256i is) TARPEG_AVX2 {
      return static_cast<uint64_t>(static_cast<uint32_t>(_mm256_movemask_epi8(is))) << i;
    };
    const auto equal = [&](char c) TARPEG_AVX2 { return bits(_mm256_cmpeq_epi8(text, _mm256_set1_epi8(c))); };
    const __m256i number = _mm256_sub_epi8(text, _mm256_set1_epi8('0'));
    found.digit |= bits(_mm256_cmpeq_epi8(_mm256_min_epu8(number, _mm256_set1_epi8(9)), number));
    found.zero |= equal('0');
    found.point |= equal('.');
    found.comma |= equal(',');
    found.space |= equal(' ');
    found.minus |= equal('-');
    found.bracket |= equal(']');
  }
  return found;
}

// What the last character of the step before was: at the beginning, as if behind a comma.
struct Before {
  uint64_t digit = 0, point = 0, comma = 1, space = 0, minus = 0;
  uint64_t first_zero = 0;   // the zero at the beginning of a number
  uint64_t in_fraction = 0;  // a digit behind a point
};

// Checks the characters of `valid`, the lowest bits, by what is before each of them.
bool is_right(Kinds now, uint64_t valid, Before* before) noexcept {
  now.digit &= valid, now.zero &= valid, now.point &= valid;
  now.comma &= valid, now.space &= valid, now.minus &= valid;
  const uint64_t after_digit = now.digit << 1 | before->digit, after_point = now.point << 1 | before->point;
  const uint64_t after_comma = now.comma << 1 | before->comma, after_space = now.space << 1 | before->space;
  const uint64_t after_minus = now.minus << 1 | before->minus;
  const uint64_t others = valid & ~(now.digit | now.point | now.comma | now.space | now.minus);
  uint64_t wrong = others | ((now.point | now.comma) & ~after_digit) | (now.space & ~after_comma) |
                   (now.minus & ~(after_comma | after_space));
  // No digit follows a zero that begins a number.
  const uint64_t first_zeros = now.zero & (after_comma | after_space | after_minus);
  wrong |= now.digit & (first_zeros << 1 | before->first_zero);
  // No point follows the digits behind a point: a sum carries the first of them to the place behind the last.
  const uint64_t first = (now.digit & after_point) | (now.digit & before->in_fraction);
  uint64_t sum;
  const bool goes_on = __builtin_add_overflow(now.digit, first, &sum);
  wrong |= now.point & (before->in_fraction | (sum & ~now.digit));
  *before = {now.digit >> 63, now.point >> 63,   now.comma >> 63, now.space >> 63,
             now.minus >> 63, first_zeros >> 63, goes_on};
  // Python refuses integers of more than 4300 digits.
  return wrong == 0 && now.digit != ~uint64_t{0};
}

const uint8_t* pass(const uint8_t* at, const uint8_t* end) noexcept {
  Before before;
  for (; at < end; at += kStep) {
    uint8_t rest[kStep] = {};
    const bool is_last = end - at < kStep;
    if (is_last) std::memcpy(rest, at, static_cast<size_t>(end - at));
    const Kinds now = kinds_of(is_last ? rest : at);
    const int stop = now.bracket != 0 ? __builtin_ctzll(now.bracket) : kStep;
    const uint64_t valid = stop < kStep ? (uint64_t{1} << stop) - 1 : ~uint64_t{0};
    const uint64_t after_digit = now.digit << 1 | before.digit;
    if (!is_right(now, valid, &before)) return nullptr;
    if (stop < kStep) return (after_digit >> stop & 1) != 0 ? at + stop : nullptr;
  }
  return nullptr;
}

#endif

}  // namespace

const uint8_t* pass_numbers(const uint8_t* at, const uint8_t* end) noexcept {
#if defined(TARPEG_AVX2)
  if (has_avx2()) return pass(at, end);
#endif
  static_cast<void>(at), static_cast<void>(end);
  return nullptr;
}

}  // namespace tarpeg
