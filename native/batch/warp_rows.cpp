#include "batch/warp_rows.h"

#include <cstring>

#include "base/simd.h"
#include "batch/warp_job.h"

// The loops of warps on the CPU, over spans of a row.
namespace tarpeg {
namespace {

// A part is copied with this many pixels around it, more than positions are inexact, if it has at most so
// many pixels for each pixel of the target.
constexpr double kMargin = 3;
constexpr int64_t kMostPerPixel = 32;

// Where the pixels of a span lie: the number of the upper left neighbour in a patch, and the weights of all
// four. Outside it is pixel 0, alone.
struct Spots {
  int32_t at[kSpan];
  float weights[4][kSpan];
};

#if defined(TARPEG_AVX2)

TARPEG_AVX2 int64_t join_planes_avx2(In r, In g, In b, int64_t n, Out four) {
  int64_t i = 0;
  for (; i + 16 <= n; i += 16) {
    const __m128i red = _mm_loadu_si128(reinterpret_cast<const __m128i*>(r + i));
    const __m128i green = _mm_loadu_si128(reinterpret_cast<const __m128i*>(g + i));
    const __m128i blue = _mm_loadu_si128(reinterpret_cast<const __m128i*>(b + i)), one = _mm_set1_epi8(1);
    const __m128i first = _mm_unpacklo_epi8(red, green), second = _mm_unpackhi_epi8(red, green);
    const __m128i third = _mm_unpacklo_epi8(blue, one), fourth = _mm_unpackhi_epi8(blue, one);
    __m128i* const out = reinterpret_cast<__m128i*>(four + 4 * i);
    _mm_storeu_si128(out, _mm_unpacklo_epi16(first, third));
    _mm_storeu_si128(out + 1, _mm_unpackhi_epi16(first, third));
    _mm_storeu_si128(out + 2, _mm_unpacklo_epi16(second, fourth));
    _mm_storeu_si128(out + 3, _mm_unpackhi_epi16(second, fourth));
  }
  return i;
}

TARPEG_AVX2 int64_t join_pixels_avx2(In pixels, int64_t n, Out four) {
  const __m128i order = _mm_setr_epi8(0, 1, 2, -1, 3, 4, 5, -1, 6, 7, 8, -1, 9, 10, 11, -1);
  const __m128i one = _mm_set1_epi32(1 << 24);
  int64_t i = 0;
  for (; i + 6 <= n; i += 4) {  // four pixels are read as 16 bytes
    const __m128i three = _mm_loadu_si128(reinterpret_cast<const __m128i*>(pixels + 3 * i));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(four + 4 * i),
                     _mm_or_si128(_mm_shuffle_epi8(three, order), one));
  }
  return i;
}

TARPEG_AVX2 inline __m128i four_at(const uint8_t* four, const int32_t* at) {
  int32_t pixels[4];
  for (int k = 0; k < 4; ++k) std::memcpy(pixels + k, four + 4 * int64_t{at[k]}, 4);
  return _mm_setr_epi32(pixels[0], pixels[1], pixels[2], pixels[3]);
}

// Eight pixels of four bytes to three planes.
TARPEG_AVX2 inline void store_eight(__m128i first, __m128i second, uint8_t* r, uint8_t* g, uint8_t* b) {
  const __m128i order = _mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
  const __m128i one = _mm_shuffle_epi8(first, order), two = _mm_shuffle_epi8(second, order);
  const __m128i red_green = _mm_unpacklo_epi32(one, two);
  _mm_storel_epi64(reinterpret_cast<__m128i*>(r), red_green);
  _mm_storel_epi64(reinterpret_cast<__m128i*>(g), _mm_unpackhi_epi64(red_green, red_green));
  _mm_storel_epi64(reinterpret_cast<__m128i*>(b), _mm_unpackhi_epi32(one, two));
}

TARPEG_AVX2 int pick_avx2(const uint8_t* four, const int32_t* at, int n, Out r, Out g, Out b) {
  int i = 0;
  for (; i + 8 <= n; i += 8) {
    store_eight(four_at(four, at + i), four_at(four, at + i + 4), r + i, g + i, b + i);
  }
  return i;
}

// As weighted(), of the four channels of a pixel.
TARPEG_AVX2_FMA inline __m128 blended4(const uint8_t* upper, const uint8_t* lower, const Spots& spots,
                                       int i) {
  const __m256 top =
      _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(upper))));
  const __m256 bottom =
      _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(lower))));
  __m128 sum = _mm_mul_ps(_mm256_castps256_ps128(top), _mm_broadcast_ss(spots.weights[0] + i));
  sum = _mm_fmadd_ps(_mm256_extractf128_ps(top, 1), _mm_broadcast_ss(spots.weights[1] + i), sum);
  sum = _mm_fmadd_ps(_mm256_castps256_ps128(bottom), _mm_broadcast_ss(spots.weights[2] + i), sum);
  return _mm_fmadd_ps(_mm256_extractf128_ps(bottom, 1), _mm_broadcast_ss(spots.weights[3] + i), sum);
}

// What becomes of eight blended pixels: numbers of a row, or levels.
struct StoreNumbers {
  __m128 fill;
  Row* row;

  TARPEG_AVX2_FMA inline void operator()(const __m128* pixels, int i) const {
    for (int half = 0; half < 8; half += 4) {
      __m128 value[4];
      for (int k = 0; k < 4; ++k) {  // as filled()
        const __m128 inside = _mm_permute_ps(pixels[half + k], 0xFF);
        value[k] = _mm_fmadd_ps(_mm_sub_ps(_mm_set1_ps(1), inside), fill, pixels[half + k]);
      }
      const __m128 red_green[2] = {_mm_unpacklo_ps(value[0], value[1]), _mm_unpacklo_ps(value[2], value[3])};
      const __m128 blue[2] = {_mm_unpackhi_ps(value[0], value[1]), _mm_unpackhi_ps(value[2], value[3])};
      _mm_storeu_ps(row->channels[0] + i + half, _mm_movelh_ps(red_green[0], red_green[1]));
      _mm_storeu_ps(row->channels[1] + i + half, _mm_movehl_ps(red_green[1], red_green[0]));
      _mm_storeu_ps(row->channels[2] + i + half, _mm_movelh_ps(blue[0], blue[1]));
    }
  }
};

template <bool kFades>
struct StoreLevels {
  __m128 fill;
  uint8_t *r, *g, *b;

  TARPEG_AVX2_FMA inline void operator()(const __m128* pixels, int i) const {
    __m128i whole[8];
    for (int k = 0; k < 8; ++k) {
      __m128 value = pixels[k];
      if (kFades) {  // as faded()
        const __m128 inside = _mm_permute_ps(value, 0xFF);
        value = _mm_add_ps(_mm_mul_ps(_mm_sub_ps(value, fill), inside), fill);
      }
      whole[k] = _mm_cvtps_epi32(value);
    }
    const __m128i first =
        _mm_packus_epi16(_mm_packus_epi32(whole[0], whole[1]), _mm_packus_epi32(whole[2], whole[3]));
    const __m128i second =
        _mm_packus_epi16(_mm_packus_epi32(whole[4], whole[5]), _mm_packus_epi32(whole[6], whole[7]));
    store_eight(first, second, r + i, g + i, b + i);
  }
};

// Eight pixels at a time; returns how many are done.
template <class Store>
TARPEG_AVX2_FMA int blend_avx2(const Patch& patch, const Spots& spots, int n, const Store& store) {
  int i = 0;
  for (; i + 8 <= n; i += 8) {
    __m128 pixels[8];
    for (int k = 0; k < 8; ++k) {
      const uint8_t* upper = patch.four + 4 * int64_t{spots.at[i + k]};
      pixels[k] = blended4(upper, upper + 4 * patch.stride(), spots, i + k);
    }
    store(pixels, i);
  }
  return i;
}

#endif

TARPEG_HD void find_spots_of(const Span& all, int64_t width, int64_t height, int n, Spots* __restrict spots) {
  const Span span = all;
  const int32_t right = static_cast<int32_t>(width), bottom = static_cast<int32_t>(height);
  for (int i = 0; i < n; ++i) {
    Place place = place_in(span, i);
    const bool is_there = touches(place, right, bottom);
    place.right = is_there ? place.right : 0;
    place.below = is_there ? place.below : 0;
    spots->at[i] = is_there ? (place.y + 1) * (right + 2) + place.x + 1 : 0;
    const Weights weights = weights_of(place);
    spots->weights[0][i] = weights.nw;
    spots->weights[1][i] = weights.ne;
    spots->weights[2][i] = weights.sw;
    spots->weights[3][i] = weights.se;
  }
}
TARPEG_VECTORISED(void, find_spots,
                  (const Span& span, int64_t width, int64_t height, int n, Spots* __restrict spots),
                  (span, width, height, n, spots))

// The nearest pixels of a span, in the patch; outside it is pixel 0. all_rounded: as torchvision rounds.
TARPEG_HD void all_nearest_of(const Span& all, int64_t width, int64_t height, int n, int32_t* __restrict at) {
  const Span span = all;
  const int32_t right = static_cast<int32_t>(width), bottom = static_cast<int32_t>(height);
  for (int i = 0; i < n; ++i) {
    const Place place = place_in(span, i);
    const bool is_there = (place.x >= 0) & (place.y >= 0) & (place.x < right) & (place.y < bottom);
    const int32_t x = is_there ? place.x + 1 : 0, y = is_there ? place.y + 1 : 0;
    at[i] = y * (right + 2) + x;
  }
}
TARPEG_VECTORISED(void, all_nearest,
                  (const Span& span, int64_t width, int64_t height, int n, int32_t* __restrict at),
                  (span, width, height, n, at))

TARPEG_HD void all_rounded_of(const Span& all, int64_t width, int64_t height, int n, int32_t* __restrict at) {
  const Span span = all;
  const float right = static_cast<float>(width), bottom = static_cast<float>(height);
  const int32_t stride = static_cast<int32_t>(width) + 2;
  for (int i = 0; i < n; ++i) {
    int32_t x, y;
    const bool is_there = find_rounded(span, i, right, bottom, &x, &y);
    const int32_t index = y * stride + x + (stride + 1);
    at[i] = is_there ? index : 0;
  }
}
TARPEG_VECTORISED(void, all_rounded,
                  (const Span& span, int64_t width, int64_t height, int n, int32_t* __restrict at),
                  (span, width, height, n, at))

// Value c of a blended pixel; the fourth is the part inside.
float blended_at(const Patch& patch, const Spots& spots, int i, int c) {
  const uint8_t *upper = patch.four + 4 * int64_t{spots.at[i]} + c, *lower = upper + 4 * patch.stride();
  const Weights weights = {spots.weights[0][i], spots.weights[1][i], spots.weights[2][i],
                           spots.weights[3][i]};
  return weighted(weights, upper[0], upper[4], lower[0], lower[4]);
}

// A span of an image that is not copied, pixel by pixel.
TARPEG_HD void sample_of(const Picture<uint8_t>& from, const Span& span, bool nearest, const float* fill,
                         int n, Row* row) {
  for (int i = 0; i < n; ++i) {
    const Place place = place_in(span, i);
    const float inside = inside_of(from.width, from.height, place);
    for (int c = 0; c < from.channels; ++c) {
      row->channels[c][i] = sampled(from, c, place, inside, nearest, fill[c]);
    }
  }
}
TARPEG_VECTORISED(void, sample,
                  (const Picture<uint8_t>& from, const Span& span, bool nearest, const float* fill, int n,
                   Row* row),
                  (from, span, nearest, fill, n, row))

// Pixels of a row as four bytes each: red, green, blue and 1.
void join_four(const Picture<uint8_t>& from, int64_t x, int64_t y, int64_t n, Out four) {
  const uint8_t* r = from.data + y * from.row_stride + x * from.pixel_stride;
  const uint8_t *g = r + from.channel_stride, *b = g + from.channel_stride;
  int64_t i = 0;
#if defined(TARPEG_AVX2)
  if (has_avx2()) i = from.is_planar() ? join_planes_avx2(r, g, b, n, four) : join_pixels_avx2(r, n, four);
#endif
  for (; i < n; ++i) {
    four[4 * i] = r[i * from.pixel_stride];
    four[4 * i + 1] = g[i * from.pixel_stride];
    four[4 * i + 2] = b[i * from.pixel_stride];
    four[4 * i + 3] = 1;
  }
}

}  // namespace

void Patch::copy(const Picture<uint8_t>& from, const Range& columns, const Range& rows) {
  left = columns.begin;
  top = rows.begin;
  width = columns.size();
  height = rows.size();
  const size_t row_bytes = static_cast<size_t>(4 * stride());
  if (memory.size() < row_bytes * static_cast<size_t>(height + 2)) {
    memory.resize(row_bytes * static_cast<size_t>(height + 2));
  }
  four = memory.data();
  std::memset(memory.data(), 0, row_bytes);
  std::memset(memory.data() + row_bytes * static_cast<size_t>(height + 1), 0, row_bytes);
  for (int64_t y = 0; y < height; ++y) {
    uint8_t* const row = memory.data() + row_bytes * static_cast<size_t>(y + 1);
    std::memset(row, 0, 4);
    join_four(from, left, top + y, width, row + 4);
    std::memset(row + row_bytes - 4, 0, 4);
  }
}

void Patch::copy_under(const Picture<uint8_t>& from, const Affine& map, const Tile& tile) {
  const auto range = [&](double across, double down, double start, int64_t size) {
    const double first =
        start + across * static_cast<double>(tile.left) + down * static_cast<double>(tile.top);
    const double wide = across * static_cast<double>(tile.width - 1),
                 high = down * static_cast<double>(tile.height - 1);
    const double low = first + std::min(wide, 0.0) + std::min(high, 0.0) - kMargin;
    const double end = first + std::max(wide, 0.0) + std::max(high, 0.0) + kMargin;
    const double most = static_cast<double>(size);
    return Range{static_cast<int64_t>(std::clamp(low, 0.0, most)),
                 static_cast<int64_t>(std::clamp(end, 0.0, most))};
  };
  Range columns = range(map.xx, map.xy, map.x0, from.width);
  const Range rows = range(map.yx, map.yy, map.y0, from.height);
  if (rows.size() == 0) columns = {0, 0};
  four = nullptr;
  if (columns.size() * rows.size() > kMostPerPixel * tile.width * tile.height) return;
  copy(from, columns, columns.size() > 0 ? rows : Range{0, 0});
}

void warp_levels(const Patch& patch, const Span& span, const float* fill, int n, Out r, Out g, Out b) {
  Spots spots;
  find_spots(span, patch.width, patch.height, n, &spots);
  int i = 0;
#if defined(TARPEG_AVX2)
  if (has_avx2() && fill) {
    const StoreLevels<true> store = {_mm_setr_ps(fill[0], fill[1], fill[2], 0), r, g, b};
    i = blend_avx2(patch, spots, n, store);
  } else if (has_avx2()) {
    i = blend_avx2(patch, spots, n, StoreLevels<false>{_mm_setzero_ps(), r, g, b});
  }
#endif
  const Out out[3] = {r, g, b};
  for (; i < n; ++i) {
    const float inside = blended_at(patch, spots, i, 3);
    for (int c = 0; c < 3; ++c) {
      const float value = blended_at(patch, spots, i, c);
      out[c][i] = rounded(fill ? faded(value, inside, fill[c]) : value);
    }
  }
}

void pick_levels(Patch& patch, const Span& span, uint32_t outside, int n, Out r, Out g, Out b) {
  int32_t at[kSpan];
  all_rounded(span, patch.width, patch.height, n, at);
  std::memcpy(patch.memory.data(), &outside, 4);
  int i = 0;
#if defined(TARPEG_AVX2)
  if (has_avx2()) i = pick_avx2(patch.four, at, n, r, g, b);
#endif
  for (; i < n; ++i) {
    const uint8_t* pixel = patch.four + 4 * int64_t{at[i]};
    r[i] = pixel[0];
    g[i] = pixel[1];
    b[i] = pixel[2];
  }
}

void fetch_warped(const Picture<uint8_t>& from, const Patch& patch, const Span& span, bool nearest,
                  const float* fill, int n, Row* row) {
  if (!patch.four) return sample(from, span, nearest, fill, n, row);
  Span moved = span;
  moved.x.whole -= static_cast<int32_t>(patch.left);
  moved.y.whole -= static_cast<int32_t>(patch.top);
  int i = 0;
  if (nearest) {
    int32_t at[kSpan];
    all_nearest(moved, patch.width, patch.height, n, at);
    for (; i < n; ++i) {
      const uint8_t* pixel = patch.four + 4 * int64_t{at[i]};
      for (int c = 0; c < 3; ++c) row->channels[c][i] = at[i] > 0 ? static_cast<float>(pixel[c]) : fill[c];
    }
    return;
  }
  Spots spots;
  find_spots(moved, patch.width, patch.height, n, &spots);
#if defined(TARPEG_AVX2)
  if (has_avx2())
    i = blend_avx2(patch, spots, n, StoreNumbers{_mm_setr_ps(fill[0], fill[1], fill[2], 0), row});
#endif
  for (; i < n; ++i) {
    const float inside = blended_at(patch, spots, i, 3);
    for (int c = 0; c < 3; ++c) row->channels[c][i] = filled(blended_at(patch, spots, i, c), inside, fill[c]);
  }
}

void warp_rgb(const WarpJob& job, const Affine& map, int64_t image, int64_t begin, int64_t end) {
  static thread_local Patch patch;
  const BatchLayout& to = job.to;
  const Picture<uint8_t> from = job.picture<uint8_t>(image);
  const Target target = {static_cast<uint8_t*>(job.out) + image * to.numbers(),
                         Number::kUint8,
                         to.height,
                         to.width,
                         to.planar,
                         false};
  const float fill[3] = {job.fill_of(0), job.fill_of(1), job.fill_of(2)};
  over_tiles(to.width, begin, end, [&](const Tile& tile) {
    patch.copy_under(from, map, tile);
    const int64_t x = tile.left;
    const int n = static_cast<int>(tile.width);
    Row row;
    for (int64_t y = tile.top; y < tile.top + tile.height; ++y) {
      const Span span = span_at(map, x, y, job.nearest ? 0.5f : 0.0f);
      fetch_warped(from, patch, span, job.nearest, fill, n, &row);
      store(row, {}, x, y, n, target);
    }
  });
}

}  // namespace tarpeg
