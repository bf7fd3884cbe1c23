#include "image/axis.h"

#include <algorithm>
#include <cmath>

#include "image/taps.h"

namespace tarpeg {
namespace {

struct LanczosTable {
  double numbers[kLanczosNumbers] = {1.0};

  LanczosTable() {
    constexpr double kPi = 3.14159265358979323846;
    for (int i = 1; i <= 3 * kLanczosSteps; ++i) {
      const double x = kPi * i / kLanczosSteps;
      numbers[i] = i % kLanczosSteps == 0 ? 0.0 : 3 * std::sin(x) * std::sin(x / 3) / (x * x);
    }
  }
};

// tap_weights() for kAntialias. At least `fewest` taps are computed, kMost if that is not 0, those past the
// filter's end as zeros: loops of a known length have no branch that is hard to predict.
template <int kMost>
inline Taps triangle_weights(int i, int in, const Scale& how, int fewest, double* weights) {
  const double center = how.scale * (i + 0.5);
  const Taps taps = taps_under(center, how.support, in);
  if (kMost > 0 && taps.count > kMost)
    return triangle_weights<0>(i, in, how, fewest, weights);  // by rounding
  triangle(taps, kMost > 0 ? kMost : std::max(taps.count, fewest), center, how.inverse, weights);
  return {taps.first, std::max(taps.count, std::min(fewest, in - taps.first))};
}

}  // namespace

const double* lanczos_table() {
  static const LanczosTable table;
  return table.numbers;
}

void Axis::prepare(int in_size, int out_size, Filter filter, bool mirrored, int reduction, int offset,
                   int max_precision) {
  in = (in_size + offset + reduction - 1) / reduction;
  out = out_size;
  start.resize(out);
  counts_.resize(out);
  const Scale how(in_size, out, filter);
  const int width =
      static_cast<int>(std::ceil(2 * how.support));  // taps of a triangle, written also beyond `in`
  double* row = make_room(std::max(most_taps(in_size, out, filter), width));
  const double* const lanczos = filter == Filter::kLanczos ? lanczos_table() : nullptr;
  const bool drops_zeros = !mirrored && filter != Filter::kAntialias;
  for (int i = 0; i < out; ++i) {
    // In the order of the stored axis: a mirrored output takes the mirrored samples.
    const int output = mirrored ? out - 1 - i : i;
    auto [first, count] = filter != Filter::kAntialias
                              ? tap_weights(output, in_size, out, filter, how, lanczos, row)
                          : width <= 4 ? triangle_weights<4>(output, in_size, how, width, row)
                                       : triangle_weights<0>(output, in_size, how, width, row);
    // Mirrored these would be the first: `start` may not go back, as rows are read once.
    while (drops_zeros && count > 1 && row[count - 1] == 0.0) --count;
    if (mirrored) {
      first = in_size - first - count;
      std::reverse(row, row + count);
    }
    if (reduction > 1) {
      const Taps means = reduced({first, count}, reduction, offset, row);
      first = means.first;
      count = means.count;
    }
    start[i] = first;
    counts_[i] = count;
    std::fill_n(row + count, kGap, 0.0);
    row += count + kGap;
  }
  round_weights(max_precision);
}

void Axis::prepare_component(const Axis& pixels, int offset, const Upsampling& upsampling, int count,
                             int max_precision) {
  in = count;
  out = pixels.out;
  start.resize(out);
  counts_.resize(out);
  const double* share = pixels.shares_.data() + kGap;
  double* row = make_room(pixels.taps + 3);
  const int last = count - 1, times = upsampling.times;
  // As many for each output, as there is no branch that is hard to predict; those behind its own are not
  // used.
  const int samples = pixels.taps / 2 + 2;
  for (int i = 0; i < out; ++i) {
    const int begin = offset + pixels.start[i], end = begin + pixels.counts_[i];
    const int taken = end - begin;
    int first = begin / times, behind = (end - 1) / times;
    if (upsampling.is_mixed) {
      // A sample is three quarters of its own two pixels and a quarter of the next on either side; the first
      // and the last of the image are all of its outermost pixels.
      first = std::max(0, (begin - 1) / 2);
      const double* const pixel = share + (2 * first - begin);
      for (int j = 0; j < samples; ++j) {
        row[j] = 0.75 * (pixel[2 * j] + pixel[2 * j + 1]) + 0.25 * (pixel[2 * j - 1] + pixel[2 * j + 2]);
      }
      behind = std::min(last, end / 2);  // samples beyond it may not be decoded
      if (begin == 0) row[0] += 0.25 * share[0];
      if (end - 1 == 2 * last + 1) row[behind - first] += 0.25 * share[taken - 1];
    } else {
      std::fill(row, row + (behind - first + 1), 0.0);
      for (int j = 0; j < taken; ++j) row[(begin + j) / times - first] += share[j];
    }
    share += taken + kGap;
    start[i] = first;
    counts_[i] = behind - first + 1;
    row += counts_[i] + kGap;
  }
  round_weights(max_precision);
}

// The place of the first share, in memory for `most` of each output.
double* Axis::make_room(int most) {
  const size_t size = static_cast<size_t>(most + kGap) * (out + 1) + 2 * kGap;
  if (shares_.size() < size) shares_.resize(size);
  std::fill_n(shares_.data(), kGap, 0.0);
  return shares_.data() + kGap;
}

// From shares_ and counts_.
void Axis::round_weights(int max_precision) {
  taps = 1;
  end = 0;
  ptrdiff_t total = kGap;
  for (int i = 0; i < out; ++i) {
    taps = std::max(taps, counts_[i]);
    end = std::max(end, start[i] + counts_[i]);
    total += counts_[i] + kGap;
  }
  double peak = 1;  // a filter without negative weights has none above 1
  if (max_precision > 14) peak = *std::max_element(shares_.begin(), shares_.begin() + total);
  precision = max_precision;
  while (peak * (1 << precision) > 32000) --precision;
  weights.resize(static_cast<size_t>(out) * taps);
  const double* share = shares_.data() + kGap;
  int16_t* target = weights.data();
  for (int i = 0; i < out; ++i, target += taps) {
    tarpeg::round_weights(share, counts_[i], taps, precision, target);
    share += counts_[i] + kGap;
  }
}

}  // namespace tarpeg
