#include "base/picks.h"

#include <algorithm>

#include "base/simd.h"

namespace tarpeg {
namespace {

#if defined(TARPEG_AVX2)
// One shuffle for sources within 16 bytes, two for 32.
TARPEG_AVX2 void pick16(const uint8_t* from, const uint8_t* offsets, int span, uint8_t* to) noexcept {
  const __m128i places = _mm_loadu_si128(reinterpret_cast<const __m128i*>(offsets));
  const auto* at = reinterpret_cast<const __m128i*>(from);
  __m128i found = _mm_shuffle_epi8(_mm_loadu_si128(at), places);
  if (span > 16) {
    const __m128i is_high = _mm_cmpgt_epi8(places, _mm_set1_epi8(15));
    const __m128i high = _mm_shuffle_epi8(_mm_loadu_si128(at + 1), _mm_sub_epi8(places, _mm_set1_epi8(16)));
    found = _mm_blendv_epi8(found, high, is_high);
  }
  _mm_storeu_si128(reinterpret_cast<__m128i*>(to), found);
}
#endif

#if defined(TARPEG_AVX512)
TARPEG_AVX512 void pick64(const uint8_t* from, const uint8_t* offsets, int count, int span,
                          uint8_t* to) noexcept {
  const auto lanes = [](int bytes) { return bytes >= 64 ? ~uint64_t{0} : (uint64_t{1} << bytes) - 1; };
  const __m512i places = _mm512_loadu_si512(offsets);
  const __m512i low = _mm512_maskz_loadu_epi8(lanes(span), from);
  __m512i found;
  if (span <= 64) {
    found = _mm512_permutexvar_epi8(places, low);
  } else {
    found = _mm512_permutex2var_epi8(low, places, _mm512_maskz_loadu_epi8(lanes(span - 64), from + 64));
  }
  _mm512_mask_storeu_epi8(to, lanes(count), found);
}
#endif

// Bytes of the result and of the source, at most, that a piece has; 0: no pieces.
struct Most {
  int count, span;
};

Most most_of_piece() noexcept {
#if defined(TARPEG_AVX512)
  if (has_avx512()) return {64, 128};
#endif
#if defined(TARPEG_AVX2)
  if (has_avx2()) return {16, 32};
#endif
  return {0, 0};
}

}  // namespace

void Picks::begin(const std::vector<int>& places) {
  places_ = places;
  pieces_.clear();
  offsets_.clear();
  const Most most = most_of_piece();
  if (most.count == 0) return;
  const int end = static_cast<int>(places.size());
  for (int first = 0; first < end;) {
    const auto at = [&](int i) { return places[static_cast<size_t>(i)]; };
    int next = first + 1, base = at(first), last = base;
    for (; next < end && next - first < most.count; ++next) {
      const int low = std::min(base, at(next)), high = std::max(last, at(next));
      if (high - low >= most.span) break;
      base = low, last = high;
    }
    pieces_.push_back({first, base, next - first, last - base + 1});
    for (int i = 0; i < most.count; ++i) {
      offsets_.push_back(static_cast<uint8_t>(first + i < next ? at(first + i) - base : 0));
    }
    first = next;
  }
}

void Picks::run(const uint8_t* from, uint8_t* to) const noexcept {
  const uint8_t* offsets = offsets_.data();
#if defined(TARPEG_AVX512)
  if (has_avx512()) {
    for (const Piece& piece : pieces_) {
      pick64(from + piece.base, offsets, piece.count, piece.span, to + piece.first);
      offsets += 64;
    }
    return;
  }
#endif
#if defined(TARPEG_AVX2)
  for (const Piece& piece : pieces_) {  // none without vector code
    if (piece.count == 16) {
      pick16(from + piece.base, offsets, piece.span, to + piece.first);
    } else {
      for (int i = 0; i < piece.count; ++i) to[piece.first + i] = from[piece.base + offsets[i]];
    }
    offsets += 16;
  }
  if (!pieces_.empty()) return;
#endif
  const int* place = places_.data();
  for (size_t i = 0; i < places_.size(); ++i) to[i] = from[place[i]];
}

}  // namespace tarpeg
