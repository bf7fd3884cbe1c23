#include "image/resample.h"

#include <algorithm>
#include <cstdlib>

#include "image/method.h"
#include "image/pixels.h"

namespace tarpeg {
namespace {

// 255 * 2^22 and 255 * 128 * 2^16 are the largest sums that 32 bits hold with the rounding term. Absolute
// values of weights that may be negative sum to 1.6 at most, and need one bit more.
constexpr int kFirstPrecision = 22, kSecondPrecision = 16;
constexpr int kPlaneRowPrecision = 8, kPlaneColumnPrecision = 14;

template <class T>
T* at_least(std::vector<T>* memory, size_t count) {
  if (memory->size() < count) memory->resize(count);
  return memory->data();
}

// Vector code works on multiples of 32 numbers.
constexpr size_t padded(size_t count) noexcept { return (count + 31) / 32 * 32; }

void pair_up(const int16_t* weights, int taps, WeightPair* pairs) noexcept {
  for (int tap = 0; tap < taps; tap += 2) {
    const uint32_t low = static_cast<uint16_t>(weights[tap]);
    const uint32_t high = tap + 1 < taps ? static_cast<uint16_t>(weights[tap + 1]) : 0;
    *pairs++ = static_cast<WeightPair>(high << 16 | low);
  }
}

// A mirrored row is blended from right to left, and its bytes are in order again.
bool is_reversed(const Placement& place, int pixel_bytes) noexcept {
  return place.column_step == -pixel_bytes;
}

// Row y of the result, which `write` makes; in `pixels` if its pixels go to places apart.
template <class Write>
void put_row(const Placement& place, int y, int width, int pixel_bytes, std::vector<uint8_t>* pixels,
             Write write) {
  uint8_t* const line = place.origin + y * place.row_step;
  if (std::abs(place.column_step) == pixel_bytes) {
    return write(is_reversed(place, pixel_bytes) ? line + (width - 1) * place.column_step : line);
  }
  write(at_least(pixels, static_cast<size_t>(width) * pixel_bytes));
  scatter_pixels(pixels->data(), width, static_cast<size_t>(pixel_bytes), place.column_step, line);
}

void clamp_between(int16_t* numbers, size_t count) noexcept {
  for (size_t x = 0; x < count; ++x) numbers[x] = std::clamp<int16_t>(numbers[x], 0, kMostBetween);
}

// Rows of a source as planes: pixels of three bytes are split.
class PlanarRows {
 public:
  // memory: for rows of pixels, besides those that the caller keeps.
  PlanarRows(RowSource& rows, bool is_gray, int width, std::vector<uint8_t>* memory)
      : rows_(rows),
        width_(width),
        is_split_(!is_gray && rows.plane() == 0),
        is_kept_(rows.kept(0) != nullptr) {
    step_ = is_split_ ? static_cast<ptrdiff_t>(padded(width)) : rows.plane();
    // To memory that is aligned, libjpeg-turbo writes past the caches, which costs 5% of a progressive image.
    if (is_split_) pixels_ = at_least(memory, rows.stride() + 3 * kSplitBeyond + 1) + 1;
    const size_t bytes = (is_gray ? 0 : 2 * step_) + padded(width) + rows.skip();
    row_bytes_ = std::max(rows.stride(), bytes) + kBeyond;
  }

  // Bytes from plane to plane.
  ptrdiff_t step() const noexcept { return step_; }
  // Whether all rows lie in memory as they are needed, at row().
  bool is_kept() const noexcept { return is_kept_ && !is_split_; }
  const uint8_t* row(int y) const noexcept { return rows_.kept(y); }
  // Of memory for a row, with what both passes read past its end.
  size_t row_bytes() const noexcept { return row_bytes_; }
  // Reads row y, the next one, into `row`, or passes it if it is not needed. Its planes begin at
  // first_of(row).
  Status read(int y, bool is_needed, uint8_t* row) const {
    if (!is_split_) return is_needed ? rows_.next(row) : rows_.pass(row);
    const uint8_t* in = pixels_ + 3 * rows_.skip();
    if (is_kept_) {
      if (!is_needed) return Status::kOk;
      in = rows_.kept(y);
    } else if (const Status status = is_needed ? rows_.next(pixels_) : rows_.pass(pixels_);
               status != Status::kOk) {
      return status;
    }
    if (is_needed) split_rgb(in, width_, row, step_);
    return Status::kOk;
  }
  const uint8_t* first_of(const uint8_t* row) const noexcept { return is_split_ ? row : row + rows_.skip(); }

 private:
  static constexpr size_t kBeyond = 32 + ColumnPass::kBeyond;
  RowSource& rows_;
  int width_;
  bool is_split_, is_kept_;
  ptrdiff_t step_;
  uint8_t* pixels_ = nullptr;
  size_t row_bytes_;
};

}  // namespace

Status Resampler::run(RowSource& rows, const Resize& resize, const Placement& place) {
  const bool clamps = is_rounded_between(resize.filter);
  const bool columns_first = is_columns_first(resize.filter, resize.height - resize.out_height,
                                              resize.width - resize.out_width, resize.orientation.swap);
  const int first = kFirstPrecision - clamps, second = kSecondPrecision - clamps;
  vertical_.prepare(resize.height, resize.out_height, resize.filter, resize.orientation.flip_rows,
                    resize.reduction, resize.top, columns_first ? second : first);
  horizontal_.prepare(resize.width, resize.out_width, resize.filter, resize.orientation.flip_columns,
                      resize.reduction, resize.left, columns_first ? first : second);
  columns_.prepare(horizontal_, 0, is_reversed(place, resize.is_gray ? 1 : 3),
                   columns_first ? -kBlendBits : kBlendBits, columns_first);
  const size_t pair_count = (static_cast<size_t>(vertical_.taps) + 1) / 2;
  at_least(&pairs_, pair_count);
  return columns_first ? run_columns_first(rows, resize, place) : run_rows_first(rows, resize, place);
}

// Row y of the result, from lines_.
void Resampler::put_levels(int y, const Resize& resize, const Placement& place) {
  const int width = resize.out_width;
  const int16_t* const lines = lines_.data();
  const size_t stride = padded(width);
  put_row(place, y, width, resize.is_gray ? 1 : 3, &pixels_, [&](uint8_t* pixels) {
    if (resize.is_gray) {
      levels_to_gray(lines, width, pixels);
    } else {
      levels_to_rgb(lines, lines + stride, lines + 2 * stride, width, pixels);
    }
  });
}

Status Resampler::run_rows_first(RowSource& rows, const Resize& resize, const Placement& place) {
  const bool clamps = is_rounded_between(resize.filter);
  const int channels = resize.is_gray ? 1 : 3, width = horizontal_.in;
  const PlanarRows source(rows, resize.is_gray, width, &pixel_row_);
  const int pairs = (vertical_.taps + 1) / 2;
  const int ring_rows = 2 * pairs + 1;
  const size_t row_bytes = source.row_bytes();
  // The second pass reads past the last number, with weights of zero.
  const ptrdiff_t stride = padded(width) + horizontal_.taps + ColumnPass::kBeyond;
  const ptrdiff_t line_stride = padded(resize.out_width);
  uint8_t* const ring = source.is_kept() ? nullptr : at_least(&ring_, ring_rows * row_bytes);
  int16_t* const between = at_least(&between_, channels * stride);
  int16_t* const lines = at_least(&lines_, channels * line_stride);
  const uint8_t** const taps = at_least(&taps_, 2 * static_cast<size_t>(pairs));
  int have = 0;
  for (int y = 0; y < resize.out_height; ++y) {
    const int first = vertical_.start[y];
    const int end = std::min(first + vertical_.taps, vertical_.in);
    for (; !source.is_kept() && have < end; ++have) {
      const Status status = source.read(have, have >= first, ring + have % ring_rows * row_bytes);
      if (status != Status::kOk) return status;
    }
    for (int tap = 0; tap < 2 * pairs; ++tap) {
      const int row = std::min(first + tap, end - 1);
      taps[tap] = source.is_kept() ? source.row(row) : source.first_of(ring + row % ring_rows * row_bytes);
    }
    pair_up(vertical_.weights.data() + static_cast<ptrdiff_t>(y) * vertical_.taps, vertical_.taps,
            pairs_.data());
    for (int channel = 0; channel < channels; ++channel) {
      int16_t* const out = between + channel * stride;
      const size_t length = static_cast<size_t>(width);
      blend_rows({taps, pairs_.data(), pairs, length, vertical_.precision - kBlendBits}, out);
      if (clamps) clamp_between(out, length);
      for (int tap = 0; tap < 2 * pairs; ++tap) taps[tap] += source.step();
    }
    columns_.blend(Channels<const int16_t>{between, stride, channels}, {lines, line_stride, channels});
    put_levels(y, resize, place);
  }
  return Status::kOk;
}

Status Resampler::run_columns_first(RowSource& rows, const Resize& resize, const Placement& place) {
  const int channels = resize.is_gray ? 1 : 3;
  const PlanarRows source(rows, resize.is_gray, horizontal_.in, &pixel_row_);
  const int pairs = (vertical_.taps + 1) / 2, ring_rows = vertical_.taps;
  const ptrdiff_t line_stride = padded(resize.out_width), stride = channels * line_stride;
  // The first pass reads past the last pixel, with weights of zero.
  uint8_t* const in = at_least(&ring_, source.row_bytes() + horizontal_.taps);
  int16_t* const ring = at_least(&between_, ring_rows * stride);
  int16_t* const lines = at_least(&lines_, stride);
  const int16_t** const taps = at_least(&taps_between_, 2 * static_cast<size_t>(pairs));
  int have = 0;
  for (int y = 0; y < resize.out_height; ++y) {
    const int first = vertical_.start[y];
    const int end = std::min(first + vertical_.taps, vertical_.in);
    if (source.is_kept()) have = std::max(have, first);
    for (; have < end; ++have) {
      const Status status = source.is_kept() ? Status::kOk : source.read(have, have >= first, in);
      if (status != Status::kOk) return status;
      if (have < first) continue;
      const uint8_t* const row = source.is_kept() ? source.row(have) : source.first_of(in);
      columns_.blend(Channels<const uint8_t>{row, source.step(), channels},
                     {ring + have % ring_rows * stride, line_stride, channels});
    }
    for (int tap = 0; tap < 2 * pairs; ++tap) {
      taps[tap] = ring + std::min(first + tap, end - 1) % ring_rows * stride;
    }
    pair_up(vertical_.weights.data() + static_cast<ptrdiff_t>(y) * vertical_.taps, vertical_.taps,
            pairs_.data());
    blend_rows({taps, pairs_.data(), pairs, static_cast<size_t>(stride), vertical_.precision + kBlendBits},
               lines);
    put_levels(y, resize, place);
  }
  return Status::kOk;
}

void Resampler::prepare_pass(const Samples& plane, const Box& box, bool reversed, PlanePass* pass) {
  const Axis* columns = &horizontal_;
  pass->rows = &vertical_;
  pass->top = box.top;
  pass->left = box.left;
  if (plane.down.times > 1) {
    pass->down.prepare_component(vertical_, box.top, plane.down, plane.height, kPlaneRowPrecision);
    pass->rows = &pass->down;
    pass->top = 0;
  }
  int offset = box.left;  // of the axis
  if (plane.across.times > 1) {
    pass->across.prepare_component(horizontal_, box.left, plane.across, plane.width, kPlaneColumnPrecision);
    columns = &pass->across;
    offset = 0;
  }
  const int first = *std::min_element(columns->start.begin(), columns->start.end());
  pass->left = offset + first;
  pass->width = columns->end - first;
  pass->columns.prepare(*columns, first, reversed, kPlaneRowPrecision - kBlendBits, false);
  at_least(&between_, padded(pass->width) + columns->taps + ColumnPass::kBeyond);
  at_least(&taps_, static_cast<size_t>(pass->rows->taps) + 1);
  at_least(&row_weights_, static_cast<size_t>(pass->rows->taps) + 1);
}

void Resampler::run(const Samples* planes, const Box& box, const Resize& resize, const Placement& place) {
  vertical_.prepare(resize.height, resize.out_height, resize.filter, resize.orientation.flip_rows,
                    resize.reduction, resize.top, kPlaneRowPrecision);
  horizontal_.prepare(resize.width, resize.out_width, resize.filter, resize.orientation.flip_columns,
                      resize.reduction, resize.left, kPlaneColumnPrecision);
  const int out_width = resize.out_width;
  const bool reversed = is_reversed(place, 3);
  PlanePass* pass_of[3];
  for (int i = 0; i < 3; ++i) {
    const bool is_same = i > 0 && planes[i].has_geometry_of(planes[i - 1]);
    pass_of[i] = is_same ? pass_of[i - 1] : &passes_[i];
    if (!is_same) prepare_pass(planes[i], box, reversed, pass_of[i]);
  }
  const size_t line_stride = padded(out_width);
  int16_t* const lines = at_least(&lines_, 3 * line_stride);
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
        if (weight != 1 << kPlaneRowPrecision) continue;
        // More than a byte: half of it twice. The other weights are zero.
        const int other = tap ^ 1;
        taps_[other] = taps_[tap];
        row_weights_[tap] = row_weights_[other] = 1 << (kPlaneRowPrecision - 1);
        tap |= 1;
      }
      blend_plane_rows({taps_.data(), row_weights_.data(), pairs, static_cast<size_t>(pass.width)},
                       between_.data());
      pass.columns.blend(Channels<const int16_t>{between_.data(), 0, 1}, {lines + i * line_stride, 0, 1});
    }
    put_row(place, y, out_width, 3, &pixels_, [&](uint8_t* rgb) {
      planes_to_rgb(lines, lines + line_stride, lines + 2 * line_stride, out_width, rgb);
    });
  }
}

}  // namespace tarpeg
