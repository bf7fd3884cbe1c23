#include <cstring>

#include "jpeg/idct_code.h"

#if defined(TARPEG_AVX512)

namespace tarpeg {
namespace {

// Two blocks, the first in the lower 256 bits of each vector. A 32-bit element holds two of the numbers that
// are multiplied and added: 2 and 6, 7 and 1, 3 and 5, 0 and 4 of a column or row. Nothing is interleaved
// inside the passes, because the first takes the columns in the order of kColumns: its results are the pairs
// of the second.
struct Pairs {
  __m512i p26, p71, p35, p04;
};

constexpr int kColumns[8] = {2, 6, 7, 1, 3, 5, 0, 4};

template <class T, int kCount>
struct alignas(64) Places {
  T place[kCount];
};

// The pairs of two rows of a block in all columns, and of two others.
constexpr Places<uint16_t, 32> pairs_of(int first, int second, int third, int fourth) {
  const int rows[4] = {first, second, third, fourth};
  Places<uint16_t, 32> places{};
  for (int i = 0; i < 32; ++i)
    places.place[i] = static_cast<uint16_t>(8 * rows[i / 16 * 2 + i % 2] + kColumns[i / 2 % 8]);
  return places;
}

// Two vectors of two rows each -> a pair of columns of these four rows in each block, then the next pair.
constexpr Places<uint32_t, 16> turned_pairs(int pair) {
  Places<uint32_t, 16> places{};
  for (int i = 0; i < 16; ++i) {
    const int row = i % 4, block = i / 4 % 2, next = i / 8;
    places.place[i] = static_cast<uint32_t>(row / 2 * 16 + block * 8 + pair / 2 * 4 + row % 2 * 2 + next);
  }
  return places;
}

// Two vectors of four columns each, two by two, rows 0 to 3 and then 4 to 7 of each block -> rows of both
// blocks.
constexpr Places<uint16_t, 32> rows_of(int first) {
  Places<uint16_t, 32> places{};
  for (int i = 0; i < 32; ++i) {
    const int row = first + i / 8, block = i / 4 % 2, columns = i % 4;
    places.place[i] =
        static_cast<uint16_t>(columns / 2 * 32 + (row / 4 * 2 + block) * 8 + columns % 2 * 4 + row % 4);
  }
  return places;
}

// Four rows of four means of each of four blocks, column by column in the quarters -> the rows of all blocks.
constexpr Places<uint8_t, 64> halved_rows() {
  Places<uint8_t, 64> places{};
  for (int i = 0; i < 64; ++i) {
    const int row = i / 16, block = i / 4 % 4, column = i % 4;
    places.place[i] = static_cast<uint8_t>(16 * block + 4 * column + row);
  }
  return places;
}

constexpr auto kPairs2671 = pairs_of(2, 6, 7, 1), kPairs3504 = pairs_of(3, 5, 0, 4);
constexpr auto kTurned2671 = turned_pairs(0), kTurned3504 = turned_pairs(2);
constexpr auto kUpperRows = rows_of(0), kLowerRows = rows_of(4);
constexpr auto kHalvedRows = halved_rows();

// Two vectors of two blocks each, calculated side by side: one waits while the other works.
struct Twice {
  __m512i a, b;
};

struct TwicePairs {
  Twice p26, p71, p35, p04;
};

TARPEG_AVX512 inline Twice add(Twice x, Twice y) noexcept {
  return {_mm512_add_epi32(x.a, y.a), _mm512_add_epi32(x.b, y.b)};
}

TARPEG_AVX512 inline Twice subtract(Twice x, Twice y) noexcept {
  return {_mm512_sub_epi32(x.a, y.a), _mm512_sub_epi32(x.b, y.b)};
}

TARPEG_AVX512 inline Twice add_words(Twice x, Twice y) noexcept {
  return {_mm512_add_epi16(x.a, y.a), _mm512_add_epi16(x.b, y.b)};
}

TARPEG_AVX512 inline Twice subtract_words(Twice x, Twice y) noexcept {
  return {_mm512_sub_epi16(x.a, y.a), _mm512_sub_epi16(x.b, y.b)};
}

// sum + the products of both numbers of each pair with the factors.
TARPEG_AVX512 inline Twice add_products(Twice sum, Twice pairs, const int& factors) noexcept {
  const __m512i vector = _mm512_set1_epi32(factors);
  return {_mm512_dpwssd_epi32(sum.a, pairs.a, vector), _mm512_dpwssd_epi32(sum.b, pairs.b, vector)};
}

constexpr int factors(int low, int high) {
  return static_cast<int>(static_cast<uint32_t>(high) << 16 | (static_cast<uint32_t>(low) & 0xFFFF));
}

struct Factors {
  int sum = factors(1 << kConstBits, 1 << kConstBits),
      difference = factors(1 << kConstBits, -(1 << kConstBits));
  int one = factors(1 << kConstBits, 0), t10 = factors(k0541 + k0765, k0541);
  int t13 = factors(-k0541 - k0765, -k0541), t11 = factors(k0541, k0541 - k1847);
  int t12 = factors(-k0541, k1847 - k0541), z3 = factors(k1175 - k1961, k1175);
  int z4 = factors(k1175, k1175 - k0390), odd0 = factors(k0298 - k0899, -k0899);
  int odd3 = factors(-k0899, k1501 - k0899), odd1 = factors(-k2562, k2053 - k2562);
  int odd2 = factors(k3072 - k2562, -k2562), rounds[2] = {1 << (kFirstShift - 1), 1 << (kSecondShift - 1)};
};
constexpr Factors kFactors;

// The sums of transform(), with the rounding term. kWraps: whether sums of rows 0 and 4 may need more than 16
// bits.
template <bool kWraps>
TARPEG_AVX512 inline void sum_up(const Factors& f, const TwicePairs& in, int round, Twice* sums) noexcept {
  const __m512i vector = _mm512_set1_epi32(round), zero = _mm512_setzero_si512();
  const Twice rounds{vector, vector}, none{zero, zero};
  const Twice turned{_mm512_rol_epi32(in.p04.a, 16), _mm512_rol_epi32(in.p04.b, 16)};
  const Twice even0 =
      kWraps ? add_products(rounds, add_words(in.p04, turned), f.one) : add_products(rounds, in.p04, f.sum);
  const Twice even1 = kWraps ? add_products(rounds, subtract_words(in.p04, turned), f.one)
                             : add_products(rounds, in.p04, f.difference);
  const Twice s34 = add_words(in.p71, in.p35);
  const Twice z3 = add_products(none, s34, f.z3), z4 = add_products(none, s34, f.z4);
  const Twice t10 = add_products(even0, in.p26, f.t10), odd3 = add_products(z4, in.p71, f.odd3);
  sums[0] = add(t10, odd3);
  sums[7] = subtract(t10, odd3);
  const Twice t11 = add_products(even1, in.p26, f.t11), odd2 = add_products(z3, in.p35, f.odd2);
  sums[1] = add(t11, odd2);
  sums[6] = subtract(t11, odd2);
  const Twice t12 = add_products(even1, in.p26, f.t12), odd1 = add_products(z4, in.p35, f.odd1);
  sums[2] = add(t12, odd1);
  sums[5] = subtract(t12, odd1);
  const Twice t13 = add_products(even0, in.p26, f.t13), odd0 = add_products(z3, in.p71, f.odd0);
  sums[3] = add(t13, odd0);
  sums[4] = subtract(t13, odd0);
}

// False if only the portable code is correct: see Note [flat columns].
TARPEG_AVX512 inline bool load_avx512(const DctBlock& first, const DctBlock& second, Pairs* pairs) noexcept {
  const DctBlock* const blocks[2] = {&first, &second};
  __m512i p2671[2], p3504[2];
  for (int i = 0; i < 2; ++i) {
    const int16_t* c = blocks[i]->coefficients;
    const uint16_t* q = blocks[i]->quantisers;
    const __m512i upper = _mm512_mullo_epi16(_mm512_loadu_si512(c), _mm512_loadu_si512(q));
    const __m512i lower = _mm512_mullo_epi16(_mm512_loadu_si512(c + 32), _mm512_loadu_si512(q + 32));
    p2671[i] = _mm512_permutex2var_epi16(upper, _mm512_load_si512(&kPairs2671), lower);
    p3504[i] = _mm512_permutex2var_epi16(upper, _mm512_load_si512(&kPairs3504), lower);
  }
  *pairs = {_mm512_shuffle_i64x2(p2671[0], p2671[1], 0x44), _mm512_shuffle_i64x2(p2671[0], p2671[1], 0xEE),
            _mm512_shuffle_i64x2(p3504[0], p3504[1], 0x44), _mm512_shuffle_i64x2(p3504[0], p3504[1], 0xEE)};
  // The first row must keep its value if it is shifted by kPassBits; so must the fifth, which does no harm.
  const __m512i placed = _mm512_add_epi16(pairs->p04, _mm512_set1_epi16(1 << (15 - kPassBits)));
  const __m512i beyond = _mm512_set1_epi16(static_cast<int16_t>(0xFFFF << (16 - kPassBits)));
  return __builtin_expect(_mm512_test_epi16_mask(placed, beyond) == 0, 1);
}

// The pairs of columns from vectors of two rows each.
TARPEG_AVX512 inline Pairs turned(const __m512i* rows) noexcept {
  const __m512i places2671 = _mm512_load_si512(&kTurned2671), places3504 = _mm512_load_si512(&kTurned3504);
  const __m512i upper2671 = _mm512_permutex2var_epi32(rows[0], places2671, rows[1]);
  const __m512i upper3504 = _mm512_permutex2var_epi32(rows[0], places3504, rows[1]);
  const __m512i lower2671 = _mm512_permutex2var_epi32(rows[2], places2671, rows[3]);
  const __m512i lower3504 = _mm512_permutex2var_epi32(rows[2], places3504, rows[3]);
  return {_mm512_shuffle_i64x2(upper2671, lower2671, 0x44), _mm512_shuffle_i64x2(upper2671, lower2671, 0xEE),
          _mm512_shuffle_i64x2(upper3504, lower3504, 0x44), _mm512_shuffle_i64x2(upper3504, lower3504, 0xEE)};
}

TARPEG_AVX512 inline void store_avx512(const DctBlock& first, const DctBlock& second,
                                       const __m512i* columns) noexcept {
  const __m512i center = _mm512_set1_epi8(-128);
  const __m512i left = _mm512_xor_si512(_mm512_packs_epi16(columns[0], columns[1]), center);
  const __m512i right = _mm512_xor_si512(_mm512_packs_epi16(columns[2], columns[3]), center);
  const __m512i halves[2] = {_mm512_permutex2var_epi16(left, _mm512_load_si512(&kUpperRows), right),
                             _mm512_permutex2var_epi16(left, _mm512_load_si512(&kLowerRows), right)};
  // Copies, because bytes that are stored could be anything's.
  uint8_t *out = first.out, *other = second.out;
  const ptrdiff_t step = first.stride, other_step = second.stride;
  const bool side_by_side = other == out + 8;
  for (const __m512i rows : halves) {
    const __m128i lines[4] = {_mm512_castsi512_si128(rows), _mm512_extracti64x2_epi64(rows, 1),
                              _mm512_extracti64x2_epi64(rows, 2), _mm512_extracti64x2_epi64(rows, 3)};
    for (const __m128i line : lines) {
      if (side_by_side) {
        _mm_storeu_si128(reinterpret_cast<__m128i*>(out), line);
      } else {
        _mm_storel_epi64(reinterpret_cast<__m128i*>(out), line);
        _mm_storeh_pd(reinterpret_cast<double*>(other), _mm_castsi128_pd(line));
        other += other_step;
      }
      out += step;
    }
  }
}

}  // namespace

TARPEG_AVX512 bool inverse_dct_avx512(const DctBlock& first, const DctBlock& second, const DctBlock& third,
                                      const DctBlock& fourth) noexcept {
  const Factors* f = &kFactors;
  asm("" : "+r"(f));  // else the compiler moves each factor through a general register
  Pairs a, b;
  if (!load_avx512(first, second, &a) || !load_avx512(third, fourth, &b)) return false;
  Twice sums[8];
  __m512i a4[4], b4[4];
  sum_up<false>(*f, {{a.p26, b.p26}, {a.p71, b.p71}, {a.p35, b.p35}, {a.p04, b.p04}}, f->rounds[0], sums);
  for (int i = 0; i < 4; ++i) {
    const Twice even = sums[2 * i], odd = sums[2 * i + 1];
    a4[i] = _mm512_packs_epi32(_mm512_srai_epi32(even.a, kFirstShift), _mm512_srai_epi32(odd.a, kFirstShift));
    b4[i] = _mm512_packs_epi32(_mm512_srai_epi32(even.b, kFirstShift), _mm512_srai_epi32(odd.b, kFirstShift));
  }
  a = turned(a4);
  b = turned(b4);
  sum_up<true>(*f, {{a.p26, b.p26}, {a.p71, b.p71}, {a.p35, b.p35}, {a.p04, b.p04}}, f->rounds[1], sums);
  // As in AVX2, the upper halves of the sums; two columns side by side.
  for (int i = 0; i < 4; ++i) {
    const Twice even = sums[2 * i], odd = sums[2 * i + 1];
    a4[i] = _mm512_srai_epi16(_mm512_mask_blend_epi16(0xAAAAAAAA, _mm512_srli_epi32(even.a, 16), odd.a),
                              kSecondShift - 16);
    b4[i] = _mm512_srai_epi16(_mm512_mask_blend_epi16(0xAAAAAAAA, _mm512_srli_epi32(even.b, 16), odd.b),
                              kSecondShift - 16);
  }
  store_avx512(first, second, a4);
  store_avx512(third, fourth, b4);
  return true;
}

namespace {

// Four means of two from the eight numbers in pairs, before the shift that `round` belongs to.
struct Halves {
  __m512i sums[4];
};

TARPEG_AVX512 inline Halves halve(const Pairs& in, int round) noexcept {
  const auto products = [](__m512i sum, __m512i pairs, int low, int high) TARPEG_AVX512 {
    return _mm512_dpwssd_epi32(sum, pairs, _mm512_set1_epi32(factors(low, high)));
  };
  const __m512i zero = _mm512_setzero_si512();
  const __m512i center = products(_mm512_set1_epi32(round), in.p04, 1 << (kConstBits + 1), 0);
  const __m512i even = products(zero, in.p26, k1847, -k0765);
  const __m512i t10 = _mm512_add_epi32(center, even), t12 = _mm512_sub_epi32(center, even);
  const __m512i odd0 = products(products(zero, in.p71, -k0509, k2562), in.p35, k0899, -k0601);
  const __m512i odd1 = products(products(zero, in.p71, -k0211, k1061), in.p35, -k2172, k1451);
  return {{_mm512_add_epi32(t10, odd0), _mm512_add_epi32(t12, odd1), _mm512_sub_epi32(t12, odd1),
           _mm512_sub_epi32(t10, odd0)}};
}

template <int kShift>
TARPEG_AVX512 inline __m512i two_shifted(__m512i a, __m512i b) noexcept {
  return _mm512_packs_epi32(_mm512_srai_epi32(a, kShift), _mm512_srai_epi32(b, kShift));
}

}  // namespace

TARPEG_AVX512 bool halved_dct_avx512(const DctBlock& first, const DctBlock& second, const DctBlock& third,
                                     const DctBlock& fourth) noexcept {
  constexpr int kLastShift = kHalvedShift + 2 * kPassBits + 3;
  Pairs pairs[2];
  if (!load_avx512(first, second, &pairs[0]) || !load_avx512(third, fourth, &pairs[1])) return false;
  // Pairs of columns of the four rows of both blocks, then the next pair.
  __m512i p2671[2], p3504[2];
  for (int i = 0; i < 2; ++i) {
    const Halves h = halve(pairs[i], 1 << (kHalvedShift - 1));
    const __m512i upper = two_shifted<kHalvedShift>(h.sums[0], h.sums[1]);
    const __m512i lower = two_shifted<kHalvedShift>(h.sums[2], h.sums[3]);
    p2671[i] = _mm512_permutex2var_epi32(upper, _mm512_load_si512(&kTurned2671), lower);
    p3504[i] = _mm512_permutex2var_epi32(upper, _mm512_load_si512(&kTurned3504), lower);
  }
  const Halves h =
      halve({_mm512_shuffle_i64x2(p2671[0], p2671[1], 0x44), _mm512_shuffle_i64x2(p2671[0], p2671[1], 0xEE),
             _mm512_shuffle_i64x2(p3504[0], p3504[1], 0x44), _mm512_shuffle_i64x2(p3504[0], p3504[1], 0xEE)},
            1 << (kLastShift - 1));
  const __m512i columns = _mm512_packs_epi16(two_shifted<kLastShift>(h.sums[0], h.sums[1]),
                                             two_shifted<kLastShift>(h.sums[2], h.sums[3]));
  const __m512i levels = _mm512_xor_si512(columns, _mm512_set1_epi8(-128));
  const __m512i rows = _mm512_permutexvar_epi8(_mm512_load_si512(&kHalvedRows), levels);
  const __m128i lines[4] = {_mm512_castsi512_si128(rows), _mm512_extracti64x2_epi64(rows, 1),
                            _mm512_extracti64x2_epi64(rows, 2), _mm512_extracti64x2_epi64(rows, 3)};
  uint8_t* const outs[4] = {first.out, second.out, third.out, fourth.out};
  const ptrdiff_t steps[4] = {first.stride, second.stride, third.stride, fourth.stride};
  if (outs[3] == outs[0] + 12 && outs[1] == outs[0] + 4 && outs[2] == outs[0] + 8) {
    for (int y = 0; y < 4; ++y)
      _mm_storeu_si128(reinterpret_cast<__m128i*>(outs[0] + y * steps[0]), lines[y]);
    return true;
  }
  for (int y = 0; y < 4; ++y) {
    alignas(16) uint8_t line[16];
    _mm_store_si128(reinterpret_cast<__m128i*>(line), lines[y]);
    for (int i = 0; i < 4; ++i) std::memcpy(outs[i] + y * steps[i], line + 4 * i, 4);
  }
  return true;
}

}  // namespace tarpeg

#endif
