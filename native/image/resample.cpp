#include "image/resample.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/simd.h"
#include "image/resample_kernels.h"

namespace tarpeg {
namespace {

// After the vertical pass a level is 128 units: 255 * 128 still fits 16 bits with a sign.
constexpr int kBlendBits = 7;
// 255 * 2^22 and 255 * 128 * 2^16 are the largest sums that 32 bits hold with the rounding term.
constexpr int kVerticalPrecision = 22, kHorizontalPrecision = 16;

// The taps of one output as torch computes them (aten UpSampleKernel.cpp): returns the first sample.
int tap_weights(int i, int in, int out, Filter filter, std::vector<double>* weights) {
  const double scale = static_cast<double>(in) / out;
  weights->clear();
  if (filter == Filter::kNearest || filter == Filter::kNearestExact) {
    // torch rounds the scale to float for nearest neighbours.
    const float center = static_cast<float>(i) + (filter == Filter::kNearestExact ? 0.5f : 0.0f);
    const float nearest = std::floor(center * (static_cast<float>(in) / static_cast<float>(out)));
    weights->push_back(1.0);
    return std::min(static_cast<int>(nearest), in - 1);
  }
  if (filter == Filter::kBilinear) {
    const double source = std::max(0.0, scale * (i + 0.5) - 0.5);
    const int first = std::min(static_cast<int>(source), in - 1);
    const double share = std::min(1.0, source - first);
    weights->push_back(first + 1 < in ? 1.0 - share : 1.0);
    if (first + 1 < in) weights->push_back(share);
    return first;
  }
  const double support = std::max(1.0, scale), inverse = 1.0 / support;
  const double center = scale * (i + 0.5);
  const int first = std::max(static_cast<int>(center - support + 0.5), 0);
  const int end = std::min(static_cast<int>(center + support + 0.5), in);
  double total = 0;
  for (int j = first; j < end; ++j) {
    const double weight = std::max(0.0, 1.0 - std::abs((j - center + 0.5) * inverse));
    weights->push_back(weight);
    total += weight;
  }
  for (double& weight : *weights) weight /= total;
  return first;
}

}  // namespace

void Axis::prepare(int in_size, int out_size, Filter filter, bool mirrored, int reduction, int offset,
                   int max_precision) {
  in = (in_size + offset + reduction - 1) / reduction;
  out = out_size;
  std::vector<double> row, grouped, all;
  std::vector<int> counts(out);
  start.resize(out);
  taps = 1;
  double peak = 0;
  for (int i = 0; i < out; ++i) {
    // In the order of the stored axis: a mirrored output takes the mirrored samples.
    int first = tap_weights(mirrored ? out - 1 - i : i, in_size, out, filter, &row);
    while (row.size() > 1 && row.back() == 0.0) row.pop_back();
    if (mirrored) {
      first = in_size - first - static_cast<int>(row.size());
      std::reverse(row.begin(), row.end());
    }
    if (reduction > 1) {
      grouped.assign((offset + first + row.size() - 1) / reduction - (offset + first) / reduction + 1, 0.0);
      for (size_t j = 0; j < row.size(); ++j) {
        grouped[(offset + first + j) / reduction - (offset + first) / reduction] += row[j];
      }
      first = (offset + first) / reduction;
      row.swap(grouped);
    }
    start[i] = first;
    counts[i] = static_cast<int>(row.size());
    taps = std::max(taps, counts[i]);
    for (double weight : row) peak = std::max(peak, weight);
    all.insert(all.end(), row.begin(), row.end());
  }
  precision = max_precision;
  while (peak * (1 << precision) > 32000) --precision;
  weights.assign(static_cast<size_t>(out) * taps, 0);
  const double* next = all.data();
  for (int i = 0; i < out; ++i) {
    int16_t* target = weights.data() + static_cast<size_t>(i) * taps;
    // Rounding the running sum instead of each weight keeps the total at exactly one.
    double sum = 0;
    int done = 0;
    for (int j = 0; j < counts[i]; ++j) {
      sum += *next++;
      const int upto =
          j + 1 == counts[i] ? 1 << precision : static_cast<int>(std::lrint(sum * (1 << precision)));
      target[j] = static_cast<int16_t>(upto - done);
      done = upto;
    }
  }
}

void Resampler::prepare_columns() {
  blocks_ = (horizontal_.taps + 3) / 4;
  columns_.assign(static_cast<size_t>(horizontal_.out) * blocks_ * 16, 0);
  for (int x = 0; x < horizontal_.out; ++x) {
    int16_t* target = columns_.data() + static_cast<size_t>(x) * blocks_ * 16;
    for (int tap = 0; tap < horizontal_.taps; ++tap) {
      const int16_t weight = horizontal_.weights[static_cast<size_t>(x) * horizontal_.taps + tap];
      for (int channel = 0; channel < 4; ++channel) target[tap / 2 * 8 + channel * 2 + tap % 2] = weight;
    }
  }
}

Status Resampler::run(RowSource& rows, const Resize& resize, const Placement& place) {
  vertical_.prepare(resize.height, resize.out_height, resize.filter, resize.orientation.flip_rows,
                    resize.reduction, resize.top, kVerticalPrecision);
  horizontal_.prepare(resize.width, resize.out_width, resize.filter, resize.orientation.flip_columns,
                      resize.reduction, resize.left, kHorizontalPrecision);
  const int box_height = vertical_.in, box_width = horizontal_.in;
  const int out_height = resize.out_height, out_width = resize.out_width;
  prepare_columns();

  const size_t pair_count = (vertical_.taps + 1) / 2;
  const size_t length = 4 * static_cast<size_t>(box_width);
  // The passes work on whole vectors and whole groups of taps: past the end they read zeros of weight zero.
  const size_t padded = (length + 31) / 32 * 32;
  const size_t ring_rows = 2 * pair_count + 1;
  const size_t ring_stride = std::max(rows.stride(), 4 * static_cast<size_t>(rows.skip()) + padded);
  if (ring_.size() < ring_rows * ring_stride) ring_.resize(ring_rows * ring_stride);
  const size_t blend_size = padded + 16 * static_cast<size_t>(blocks_ + 1);
  if (blend_.size() < blend_size) blend_.resize(blend_size);
  std::memset(blend_.data() + length, 0, (blend_size - length) * sizeof(int16_t));
  if (pixels_.size() < 3 * static_cast<size_t>(out_width) + 16)
    pixels_.resize(3 * static_cast<size_t>(out_width) + 16);
  taps_.resize(2 * pair_count);
  pairs_.resize(pair_count);

  const kernels::Columns columns{horizontal_.start.data(), columns_.data(), blocks_, out_width,
                                 horizontal_.precision + kBlendBits};
  const bool packed = place.column_step == 3;
  int have = 0;
  for (int y = 0; y < out_height; ++y) {
    const int first = vertical_.start[y];
    const int end = std::min(first + vertical_.taps, box_height);
    for (; have < end; ++have) {
      uint8_t* const row = ring_.data() + (have % ring_rows) * ring_stride;
      const Status status = have < first ? rows.pass(row) : rows.next(row);
      if (status != Status::kOk) return status;
    }
    const int16_t* weights = vertical_.weights.data() + static_cast<size_t>(y) * vertical_.taps;
    for (size_t tap = 0; tap < 2 * pair_count; ++tap) {
      const int row = std::min(first + static_cast<int>(tap), end - 1);
      taps_[tap] = ring_.data() + (row % ring_rows) * ring_stride + 4 * static_cast<size_t>(rows.skip());
    }
    for (size_t pair = 0; pair < pair_count; ++pair) {
      const int tap = static_cast<int>(2 * pair);
      const uint32_t low = static_cast<uint16_t>(weights[tap]);
      const uint32_t high = tap + 1 < vertical_.taps ? static_cast<uint16_t>(weights[tap + 1]) : 0;
      pairs_[pair] = static_cast<int32_t>(high << 16 | low);
    }
    const kernels::Rows blend{taps_.data(), pairs_.data(), static_cast<int>(pair_count), length,
                              vertical_.precision - kBlendBits};
    uint8_t* line = place.origin + y * place.row_step;
    uint8_t* target = packed ? line : pixels_.data();
    if (has_avx2()) {
      kernels::blend_rows_avx2(blend, blend_.data());
      kernels::blend_columns_avx2(columns, blend_.data(), target);
    } else {
      kernels::blend_rows(blend, blend_.data());
      kernels::blend_columns(columns, blend_.data(), target);
    }
    if (packed) continue;
    for (int x = 0; x < out_width; ++x) {
      std::memcpy(line + x * place.column_step, pixels_.data() + 3 * static_cast<ptrdiff_t>(x), 3);
    }
  }
  return Status::kOk;
}

}  // namespace tarpeg
