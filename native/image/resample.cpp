#include "image/resample.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "base/simd.h"
#include "image/portable.h"
#include "jpeg/color.h"

namespace tarpeg {
namespace {

// 255 * 2^22 and 255 * 128 * 2^16 are the largest sums that 32 bits hold with the rounding term. Absolute
// values of weights that may be negative sum to 1.6 at most, and need one bit more.
constexpr int kFirstPrecision = 22, kSecondPrecision = 16;

// One output row of the vertical pass: bytes [0, length) of 2 * pairs rows, weighted.
struct Rows {
  const uint8_t* const* rows;
  const int32_t* weights;  // [pairs]: the even row's weight in the low half, the odd row's in the high half
  int pairs;
  size_t length;  // bytes; rows and out have room for the next multiple of 32
  int shift;
  bool clamps;  // to levels of 0 to 255
};

// One output row of the horizontal pass: `width` pixels, each of blocks * 4 taps.
struct Columns {
  const int* start;  // [width], pixels
  // [width][blocks][tap pair][channel][tap]: as a multiply-add of 16 lanes takes them
  const int16_t* weights;
  int blocks, width, shift;
  int pixel;  // numbers per pixel of a row: 3 or 4
};

// Where the weight of a tap of an RGBX pixel is: portable code takes two taps of four channels.
inline ptrdiff_t rgb_place(bool is_vector, int tap, int channel) noexcept {
  return is_vector ? tap / 2 * 8 + channel * 2 + tap % 2 : tap * 4 + channel;
}

void blend_columns(const Columns& columns, const int16_t* row, uint8_t* out) noexcept {
  constexpr int kSome = 64;  // pixels
  const int16_t* weights = columns.weights;
  int32_t sums[4 * kSome];
  uint8_t pixels[4 * kSome];
  for (int begin = 0; begin < columns.width; begin += kSome) {
    const int count = std::min(kSome, columns.width - begin);
    for (int x = 0; x < count; ++x) {
      const int16_t* in = row + 4 * static_cast<ptrdiff_t>(columns.start[begin + x]);
      Sums products = {Sums::Four{} + (1 << (columns.shift - 1))};
      for (int pair = 0; pair < 2 * columns.blocks; ++pair, in += 8, weights += 8) {
        products.add(shorts_at(in), shorts_at(weights));
      }
      products.put(sums + 4 * x);
    }
    shift_between(sums, 4 * static_cast<size_t>(count), columns.shift, 0, 255, pixels);
    for (int x = 0; x < count; ++x, out += 3) std::memcpy(out, pixels + 4 * x, 3);
  }
}

constexpr size_t kSplitBeyond = 24;  // numbers that split_rows reads past the end

#if defined(TARPEG_AVX2)

template <int kPairs>
TARPEG_AVX2 void blend_rows_of(const Rows& rows, int16_t* out) noexcept {
  const __m256i round = _mm256_set1_epi32(1 << (rows.shift - 1));
  const __m128i shift = _mm_cvtsi32_si128(rows.shift);
  const int pairs = kPairs > 0 ? kPairs : rows.pairs;
  const __m256i zero = _mm256_setzero_si256();
  for (size_t x = 0; x < rows.length; x += 32) {
    // Bytes 0-3, 4-7, 8-11, 12-15 below and 16 more above.
    __m256i a = round, b = round, c = round, d = round;
    for (int pair = 0; pair < pairs; ++pair) {
      const __m256i weights = _mm256_set1_epi32(rows.weights[pair]);
      const __m256i even = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(rows.rows[2 * pair] + x));
      const __m256i odd = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(rows.rows[2 * pair + 1] + x));
      const __m256i low = _mm256_unpacklo_epi8(even, odd), high = _mm256_unpackhi_epi8(even, odd);
      a = _mm256_add_epi32(a, _mm256_madd_epi16(_mm256_unpacklo_epi8(low, zero), weights));
      b = _mm256_add_epi32(b, _mm256_madd_epi16(_mm256_unpackhi_epi8(low, zero), weights));
      c = _mm256_add_epi32(c, _mm256_madd_epi16(_mm256_unpacklo_epi8(high, zero), weights));
      d = _mm256_add_epi32(d, _mm256_madd_epi16(_mm256_unpackhi_epi8(high, zero), weights));
    }
    const __m256i first = _mm256_packs_epi32(_mm256_sra_epi32(a, shift), _mm256_sra_epi32(b, shift));
    const __m256i second = _mm256_packs_epi32(_mm256_sra_epi32(c, shift), _mm256_sra_epi32(d, shift));
    __m256i* const target = reinterpret_cast<__m256i*>(out + x);
    _mm256_storeu_si256(target, _mm256_permute2x128_si256(first, second, 0x20));
    _mm256_storeu_si256(target + 1, _mm256_permute2x128_si256(first, second, 0x31));
  }
}

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

// The taps of one pixel, two by two: four channels in the low half, the other pair of taps in the high half.
// kBlocks is the number of groups of four taps if it is a constant, which unrolls the loop; otherwise 0.
// kPixel: numbers per pixel.
template <int kBlocks, int kPixel>
TARPEG_AVX2 inline __m256i gather(const int16_t* in, const int16_t* weights, int blocks) noexcept {
  const __m128i pairs_of_4 = _mm_setr_epi8(0, 1, 8, 9, 2, 3, 10, 11, 4, 5, 12, 13, 6, 7, 14, 15);
  const __m128i pairs_of_3 = _mm_setr_epi8(0, 1, 6, 7, 2, 3, 8, 9, 4, 5, 10, 11, -1, -1, -1, -1);
  const __m256i pairs = _mm256_broadcastsi128_si256(kPixel == 4 ? pairs_of_4 : pairs_of_3);
  __m256i sum = _mm256_setzero_si256();
  for (int block = 0; block < (kBlocks > 0 ? kBlocks : blocks); ++block) {
    const int16_t* const at = in + 4 * kPixel * block;
    const __m256i taps = kPixel == 4 ? _mm256_loadu_si256(reinterpret_cast<const __m256i*>(at))
                                     : _mm256_loadu2_m128i(reinterpret_cast<const __m128i*>(at + 6),
                                                           reinterpret_cast<const __m128i*>(at));
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

template <int kBlocks, int kPixel>
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
    const __m256i a =
        gather<kBlocks, kPixel>(row + kPixel * static_cast<ptrdiff_t>(start[0]), weights, blocks);
    const __m256i b = gather<kBlocks, kPixel>(row + kPixel * static_cast<ptrdiff_t>(start[one]),
                                              weights + one * step, blocks);
    const __m256i c = gather<kBlocks, kPixel>(row + kPixel * static_cast<ptrdiff_t>(start[two]),
                                              weights + two * step, blocks);
    const __m256i d = gather<kBlocks, kPixel>(row + kPixel * static_cast<ptrdiff_t>(start[three]),
                                              weights + three * step, blocks);
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

template <int kPixel>
TARPEG_AVX2 void blend_columns_avx2(const Columns& columns, const int16_t* row, uint8_t* out) noexcept {
  switch (columns.blocks) {
    case 1:
      return blend_columns_of<1, kPixel>(columns, row, out);
    case 2:
      return blend_columns_of<2, kPixel>(columns, row, out);
    default:
      return blend_columns_of<0, kPixel>(columns, row, out);
  }
}

// Eight numbers of each row at a time, of which up to seven are past the end.
TARPEG_AVX2 void split_rows_avx2(const int16_t* line, int width, int16_t* const* rows) noexcept {
  const __m128i first = _mm_setr_epi8(0, 1, 6, 7, 12, 13, 2, 3, 8, 9, 14, 15, 4, 5, 10, 11);
  const __m128i second = _mm_setr_epi8(2, 3, 8, 9, 14, 15, 4, 5, 10, 11, 0, 1, 6, 7, 12, 13);
  const __m128i third = _mm_setr_epi8(4, 5, 10, 11, 0, 1, 6, 7, 12, 13, 2, 3, 8, 9, 14, 15);
  int16_t *const a = rows[0], *const b = rows[1], *const c = rows[2];
  for (int x = 0; x < width; x += 8, line += 24) {
    const __m128i* const in = reinterpret_cast<const __m128i*>(line);
    const __m128i low = _mm_loadu_si128(in), middle = _mm_loadu_si128(in + 1), high = _mm_loadu_si128(in + 2);
    // Lanes 0, 3, 6 of one vector, 1, 4, 7 of another and 2, 5 of the third.
    const __m128i as = _mm_blend_epi16(_mm_blend_epi16(low, middle, 0x92), high, 0x24);
    const __m128i bs = _mm_blend_epi16(_mm_blend_epi16(high, low, 0x92), middle, 0x24);
    const __m128i cs = _mm_blend_epi16(_mm_blend_epi16(middle, high, 0x92), low, 0x24);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(a + x), _mm_shuffle_epi8(as, first));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(b + x), _mm_shuffle_epi8(bs, second));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(c + x), _mm_shuffle_epi8(cs, third));
  }
}

#endif

// The same integer sums on every processor.
void blend_rows(const Rows& rows, int16_t* between) noexcept {
  bool is_done = false;
#if defined(TARPEG_AVX2)
  is_done = has_avx2();
  if (is_done) blend_rows_avx2(rows, between);
#endif
  if (!is_done) {
    blend_rows_portable(rows.rows, rows.weights, rows.pairs, rows.length, rows.shift, INT16_MIN, INT16_MAX,
                        between);
  }
  if (rows.clamps) {
    for (size_t x = 0; x < rows.length; ++x) between[x] = std::clamp<int16_t>(between[x], 0, kMostBetween);
  }
}

void blend(const Columns& columns, const int16_t* between, uint8_t* out) noexcept {
#if defined(TARPEG_AVX2)
  if (has_avx2()) {
    return columns.pixel == 3 ? blend_columns_avx2<3>(columns, between, out)
                              : blend_columns_avx2<4>(columns, between, out);
  }
#endif
  blend_columns(columns, between, out);
}

void to_levels(const int16_t* __restrict line, int width, uint8_t* __restrict out) noexcept {
  for (int x = 0; x < width; ++x) out[x] = static_cast<uint8_t>(std::clamp<int16_t>(line[x], 0, 255));
}

// `count` gray rows, up to three, become the channels of a row of RGBX.
void join_rows(const uint8_t* rows, ptrdiff_t stride, int count, int width, uint8_t* out) noexcept {
  const uint8_t *second = rows + (count > 1) * stride, *third = second + (count > 2) * stride;
  for (int x = 0; x < width; x += kSome) {
    interleave_portable(rows + x, second + x, third + x, std::min(kSome, width - x), 4, out + 4 * x);
  }
}

// The channels of a row of RGB become `count` rows, up to three.
void split_rows(const int16_t* line, int width, int count, int16_t* const* rows) noexcept {
#if defined(TARPEG_AVX2)
  if (count == 3 && has_avx2()) return split_rows_avx2(line, width, rows);
#endif
  for (int row = 0; row < count; ++row) {
    for (int x = 0; x < width; ++x) rows[row][x] = line[3 * x + row];
  }
}

// The weights of one output, two by two.
void pair_up(const int16_t* weights, int taps, WeightPair* pairs) noexcept {
  for (int tap = 0; tap < taps; tap += 2) {
    const uint32_t low = static_cast<uint16_t>(weights[tap]);
    const uint32_t high = tap + 1 < taps ? static_cast<uint16_t>(weights[tap + 1]) : 0;
    *pairs++ = static_cast<WeightPair>(high << 16 | low);
  }
}

// Of the upright image, see Note [order]. Pillow 13 begins with the rows if it removes more than twice as
// many rows as columns.
bool is_columns_first(const Resize& resize) noexcept {
  int rows = resize.height - resize.out_height, columns = resize.width - resize.out_width;
  if (resize.orientation.swap) std::swap(rows, columns);
  return resize.filter != Filter::kLanczos || rows <= 0 || rows <= 2 * columns;
}

template <class T>
T* at_least(std::vector<T>* memory, size_t count) {
  if (memory->size() < count) memory->resize(count);
  return memory->data();
}

}  // namespace

void Resampler::prepare_columns(bool reversed) {
  const int last = horizontal_.out - 1;
  if (reversed) std::reverse(horizontal_.start.begin(), horizontal_.start.end());
  blocks_ = (horizontal_.taps + 3) / 4;
  columns_.assign(static_cast<size_t>(horizontal_.out) * blocks_ * 16, 0);
  for (int x = 0; x <= last; ++x) {
    int16_t* target = columns_.data() + static_cast<size_t>(reversed ? last - x : x) * blocks_ * 16;
    for (int tap = 0; tap < horizontal_.taps; ++tap) {
      const int16_t weight = horizontal_.weights[static_cast<size_t>(x) * horizontal_.taps + tap];
      for (int channel = 0; channel < 4; ++channel) target[rgb_place(has_avx2(), tap, channel)] = weight;
    }
  }
}

Status Resampler::run(RowSource& rows, const Resize& resize, const Placement& place) {
  const bool clamps = is_rounded_between(resize.filter);
  const bool columns_first = clamps && is_columns_first(resize) != resize.orientation.swap;
  const int first = kFirstPrecision - clamps, second = kSecondPrecision - clamps;
  vertical_.prepare(resize.height, resize.out_height, resize.filter, resize.orientation.flip_rows,
                    resize.reduction, resize.top, columns_first ? second : first);
  horizontal_.prepare(resize.width, resize.out_width, resize.filter, resize.orientation.flip_columns,
                      resize.reduction, resize.left, columns_first ? first : second);
  if (columns_first) return run_columns_first(rows, resize.is_gray, place);
  const int box_height = vertical_.in, box_width = horizontal_.in;
  const int out_height = resize.out_height, out_width = resize.out_width;
  const size_t pair_count = (vertical_.taps + 1) / 2;
  const size_t ring_rows = 2 * pair_count + 1;
  // Rows of RGB are resampled where they lie if a copy of them would not stay in the first-level cache: then
  // 0.65 of the time; otherwise 1.15, because three numbers per pixel are gathered by two loads.
  constexpr size_t kSmall = 16 << 10;
  const int kept_bytes = ring_rows * 4 * static_cast<size_t>(box_width) > kSmall ? rows.kept_bytes() : 0;
  const bool is_kept = kept_bytes == rows.kept_bytes() && rows.kept(0) != nullptr;
  const int pixel = resize.is_gray ? 1 : is_kept && kept_bytes > 0 ? kept_bytes : 4;
  const size_t step = static_cast<size_t>(pixel);
  const int pixel_bytes = resize.is_gray ? 1 : 3;
  // A mirrored row is blended from right to left, and its bytes are in order again.
  const bool reversed = place.column_step == -pixel_bytes,
             packed = std::abs(place.column_step) == pixel_bytes;
  PlaneColumns& gray_columns = passes_[0].columns;
  if (resize.is_gray) {
    gray_columns.prepare(horizontal_, 0, reversed, kBlendBits);
    at_least(&lines_, (static_cast<size_t>(out_width) + 15) / 16 * 16);
  } else {
    prepare_columns(reversed);
  }
  const size_t length = step * static_cast<size_t>(box_width);
  // The passes work on whole vectors and whole groups of taps: past the end they read zeros of weight zero.
  const size_t padded = (length + 31) / 32 * 32;
  const size_t skip = step * static_cast<size_t>(rows.skip());
  const size_t ring_stride = std::max(rows.stride(), skip + padded);
  if (ring_.size() < ring_rows * ring_stride) ring_.resize(ring_rows * ring_stride);
  const size_t beyond = resize.is_gray ? horizontal_.taps + PlaneColumns::kBeyond : 16 * (blocks_ + 1);
  const size_t blend_size = padded + beyond;
  if (blend_.size() < blend_size) blend_.resize(blend_size);
  std::memset(blend_.data() + length, 0, (blend_size - length) * sizeof(int16_t));
  if (pixels_.size() < 3 * static_cast<size_t>(out_width) + 16)
    pixels_.resize(3 * static_cast<size_t>(out_width) + 16);
  taps_.resize(2 * pair_count);
  pairs_.resize(pair_count);

  const Columns columns{horizontal_.start.data(),
                        columns_.data(),
                        blocks_,
                        out_width,
                        horizontal_.precision + kBlendBits,
                        pixel};
  int have = 0;
  for (int y = 0; y < out_height; ++y) {
    const int first = vertical_.start[y];
    const int end = std::min(first + vertical_.taps, box_height);
    for (; !is_kept && have < end; ++have) {
      uint8_t* const row = ring_.data() + (have % ring_rows) * ring_stride;
      const Status status = have < first ? rows.pass(row) : rows.next(row);
      if (status != Status::kOk) return status;
    }
    const int16_t* weights = vertical_.weights.data() + static_cast<size_t>(y) * vertical_.taps;
    for (size_t tap = 0; tap < 2 * pair_count; ++tap) {
      const int row = std::min(first + static_cast<int>(tap), end - 1);
      taps_[tap] = is_kept ? rows.kept(row) : ring_.data() + (row % ring_rows) * ring_stride + skip;
    }
    pair_up(weights, vertical_.taps, pairs_.data());
    const Rows rows_in{
        taps_.data(), pairs_.data(), static_cast<int>(pair_count), length, vertical_.precision - kBlendBits,
        clamps};
    uint8_t* line = place.origin + y * place.row_step;
    uint8_t* const target = reversed ? line + (out_width - 1) * place.column_step : line;
    uint8_t* const pixels = packed ? target : pixels_.data();
    blend_rows(rows_in, blend_.data());
    if (resize.is_gray) {
      gray_columns.blend(blend_.data(), lines_.data());
      to_levels(lines_.data(), out_width, pixels);
    } else {
      blend(columns, blend_.data(), pixels);
    }
    if (packed) continue;
    scatter_pixels(pixels_.data(), out_width, static_cast<size_t>(pixel_bytes), place.column_step, line);
  }
  return Status::kOk;
}

void Resampler::prepare_pass(const Samples& plane, const Box& box, bool reversed, PlanePass* pass) {
  const Axis* columns = &horizontal_;
  pass->rows = &vertical_;
  pass->top = box.top;
  pass->left = box.left;
  if (plane.down.times > 1) {
    pass->down.prepare_component(vertical_, box.top, plane.down, plane.height, kRowPrecision);
    pass->rows = &pass->down;
    pass->top = 0;
  }
  int offset = box.left;  // of the axis
  if (plane.across.times > 1) {
    pass->across.prepare_component(horizontal_, box.left, plane.across, plane.width, kColumnPrecision);
    columns = &pass->across;
    offset = 0;
  }
  const int first = *std::min_element(columns->start.begin(), columns->start.end());
  pass->left = offset + first;
  pass->width = columns->end - first;
  pass->columns.prepare(*columns, first, reversed, kRowPrecision - kBlendBits);
  // Vector code of the second pass reads past the last sample, with weights of zero.
  const size_t length =
      static_cast<size_t>((pass->width + 31) / 32 * 32 + columns->taps + PlaneColumns::kBeyond);
  at_least(&blend_, length);
  at_least(&taps_, static_cast<size_t>(pass->rows->taps) + 1);
  at_least(&row_weights_, static_cast<size_t>(pass->rows->taps) + 1);
}

void Resampler::run(const Samples* planes, const Box& box, const Resize& resize, const Placement& place) {
  vertical_.prepare(resize.height, resize.out_height, resize.filter, resize.orientation.flip_rows,
                    resize.reduction, resize.top, kRowPrecision);
  horizontal_.prepare(resize.width, resize.out_width, resize.filter, resize.orientation.flip_columns,
                      resize.reduction, resize.left, kColumnPrecision);
  const int out_width = resize.out_width;
  // A mirrored row is blended from right to left, and its bytes are in order again.
  const bool reversed = place.column_step == -3, packed = std::abs(place.column_step) == 3;
  PlanePass* pass_of[3];
  for (int i = 0; i < 3; ++i) {
    const bool is_same = i > 0 && planes[i].has_geometry_of(planes[i - 1]);
    pass_of[i] = is_same ? pass_of[i - 1] : &passes_[i];
    if (!is_same) prepare_pass(planes[i], box, reversed, pass_of[i]);
  }
  const size_t line_stride = (static_cast<size_t>(out_width) + 15) / 16 * 16;
  int16_t* const lines = at_least(&lines_, 3 * line_stride);
  uint8_t* const pixels = at_least(&pixels_, 3 * static_cast<size_t>(out_width));
  for (int y = 0; y < resize.out_height; ++y) {
    for (int i = 0; i < 3; ++i) {
      const PlanePass& pass = *pass_of[i];
      const Axis& rows = *pass.rows;
      const int16_t* weights = rows.weights.data() + static_cast<ptrdiff_t>(y) * rows.taps;
      const int pairs = (rows.taps + 1) / 2;
      for (int tap = 0; tap < 2 * pairs; ++tap) {
        const int weight = tap < rows.taps ? weights[tap] : 0;
        const int row = std::min(rows.start[y] + tap, rows.end - 1);
        taps_[tap] = planes[i].at(pass.top + row, pass.left);
        row_weights_[tap] = static_cast<uint8_t>(weight);
        if (weight != 1 << kRowPrecision) continue;
        // More than a byte: half of it twice. The other weights are zero.
        const int other = tap ^ 1;
        taps_[other] = taps_[tap];
        row_weights_[tap] = row_weights_[other] = 1 << (kRowPrecision - 1);
        tap |= 1;
      }
      blend_plane_rows({taps_.data(), row_weights_.data(), pairs, static_cast<size_t>(pass.width)},
                       blend_.data());
      pass.columns.blend(blend_.data(), lines + i * line_stride);
    }
    uint8_t* const line = place.origin + y * place.row_step;
    uint8_t* const target = reversed ? line + (out_width - 1) * place.column_step : line;
    planes_to_rgb(lines, lines + line_stride, lines + 2 * line_stride, out_width, packed ? target : pixels);
    if (!packed) scatter_pixels(pixels, out_width, 3, place.column_step, line);
  }
}

Status Resampler::run_columns_first(RowSource& rows, bool is_gray, const Placement& place) {
  const int width = horizontal_.out, taps = vertical_.taps, column_pairs = (horizontal_.taps + 1) / 2;
  const int pairs = (taps + 1) / 2, pixel_bytes = is_gray ? 1 : 3;
  // A mirrored row is blended from right to left, and its bytes are in order again.
  const bool packed = std::abs(place.column_step) == pixel_bytes,
             reversed = place.column_step == -pixel_bytes;
  int* const starts = at_least(&starts_, width);
  WeightPair* const weights = at_least(&pairs_, static_cast<size_t>(width) * column_pairs + pairs);
  WeightPair* const row_weights = weights + static_cast<size_t>(width) * column_pairs;
  for (int x = 0; x < width; ++x) {
    const int column = reversed ? width - 1 - x : x;
    starts[x] = horizontal_.start[column];
    pair_up(horizontal_.weights.data() + static_cast<ptrdiff_t>(column) * horizontal_.taps, horizontal_.taps,
            weights + static_cast<ptrdiff_t>(x) * column_pairs);
  }
  const ColumnPass column_pass{starts,  weights, column_pairs, width, horizontal_.precision - kBlendBits,
                               &groups_};
  groups_.prepare(column_pass);

  // Vector code reads past the last sample, with weights of zero. Three gray rows are blended as the three
  // channels of one row.
  const int rows_each = is_gray ? 3 : 1, ring_rows = taps + kRowsAtOnce * rows_each;
  const size_t skip = (is_gray ? 1 : 4) * static_cast<size_t>(rows.skip());
  const size_t in_stride =
      std::max(rows.stride(), skip + 4 * static_cast<size_t>(horizontal_.in)) + 8 * (column_pairs + 2);
  const size_t length = pixel_bytes * static_cast<size_t>(width);
  const size_t stride = (length + 31) / 32 * 32 + kWrittenBeyond;
  const size_t gray_stride = 3 * static_cast<size_t>(width) + kWrittenBeyond + kSplitBeyond;
  uint8_t* const in = at_least(&ring_, kRowsAtOnce * in_stride + kReadBeyond);
  uint8_t* const gray_in = is_gray ? at_least(&gray_, kRowsAtOnce * rows_each * rows.stride()) : nullptr;
  int16_t* const gray_out = is_gray ? at_least(&gray_between_, kRowsAtOnce * gray_stride) : nullptr;
  int16_t* const ring = at_least(&blend_, ring_rows * stride + 64);
  uint8_t* const pixels = at_least(&pixels_, stride + 24);
  const int16_t** const tap_rows = at_least(&taps_between_, 2 * static_cast<size_t>(pairs));
  const RowPass row_pass{tap_rows, row_weights, pairs, length, vertical_.precision + kBlendBits};

  const int last = std::min(vertical_.start[vertical_.out - 1] + taps, vertical_.in);
  int have = 0;
  for (int y = 0; y < vertical_.out; ++y) {
    const int first = vertical_.start[y];
    const int end = std::min(first + taps, vertical_.in);
    for (; have < first; ++have) {
      const Status status = rows.pass(is_gray ? gray_in : in);
      if (status != Status::kOk) return status;
    }
    while (have < end) {
      const int count = std::min(kRowsAtOnce * rows_each, last - have);
      for (int i = 0; i < count; ++i) {
        const Status status = rows.next(is_gray ? gray_in + i * rows.stride() : in + i * in_stride);
        if (status != Status::kOk) return status;
      }
      const uint8_t* sources[kRowsAtOnce];
      int16_t* targets[kRowsAtOnce];
      for (int i = 0; i < kRowsAtOnce; ++i) {  // past the end the last row is blended again
        const int row = std::min(i, (count - 1) / rows_each);
        sources[i] = in + row * in_stride + (is_gray ? 0 : skip);
        targets[i] = is_gray ? gray_out + row * gray_stride : ring + (have + row) % ring_rows * stride;
      }
      for (int i = 0; is_gray && i < count; i += 3) {
        join_rows(gray_in + i * rows.stride() + skip, rows.stride(), count - i, horizontal_.in,
                  in + i / 3 * in_stride);
      }
      blend_columns_first(column_pass, sources, targets);
      for (int i = 0; is_gray && i < count; i += 3) {
        int16_t* three[3];
        for (int row = 0; row < 3; ++row) three[row] = ring + (have + i + row) % ring_rows * stride;
        split_rows(gray_out + i / 3 * gray_stride, width, std::min(3, count - i), three);
      }
      have += count;
    }
    for (int tap = 0; tap < 2 * pairs; ++tap) {
      tap_rows[tap] = ring + std::min(first + tap, end - 1) % ring_rows * stride;
    }
    pair_up(vertical_.weights.data() + static_cast<ptrdiff_t>(y) * taps, taps, row_weights);
    uint8_t* const line = place.origin + y * place.row_step;
    uint8_t* const target = reversed ? line + (width - 1) * place.column_step : line;
    const bool fits = packed && length % 32 == 0;
    blend_rows_second(row_pass, fits ? target : pixels);
    if (fits) continue;
    if (packed) {
      std::memcpy(target, pixels, length);
    } else {
      scatter_pixels(pixels, width, pixel_bytes, place.column_step, line);
    }
  }
  return Status::kOk;
}

}  // namespace tarpeg
