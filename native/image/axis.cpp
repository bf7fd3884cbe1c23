#include "image/axis.h"

#include <algorithm>
#include <cmath>

namespace tarpeg {
namespace {

constexpr double kPi = 3.14159265358979323846;

// sinc(x) sinc(x / 3) for x from 0 to 3. Linear interpolation is off by at most 5e-7, less than a hundredth
// of the unit of a weight.
class LanczosTable {
 public:
  LanczosTable() {
    for (int i = 1; i <= 3 * kSteps; ++i) {
      const double x = kPi * i / kSteps;
      values_[i] = i % kSteps == 0 ? 0.0 : 3 * std::sin(x) * std::sin(x / 3) / (x * x);
    }
  }
  double operator()(double x) const noexcept {
    const double place = std::min(std::abs(x), 3.0) * kSteps;
    const int step = static_cast<int>(place);
    return values_[step] + (place - step) * (values_[step + 1] - values_[step]);
  }

 private:
  static constexpr int kSteps = 1024;
  double values_[3 * kSteps + 2] = {1.0};
};

// Keys' cubic with a = -0.5 (antialiased) or -0.75 (not), as in torch: (a + 2) x^3 - (a + 3) x^2 + 1 below 1
// and a (x^3 - 5 x^2 + 8 x - 4) below 2, without branches.
double cubic(double x, double a) noexcept {
  x = std::abs(x);
  const double inner = std::max(0.0, 1 - x), outer = std::max(0.0, 2 - x);
  return a * (x - 1) * (outer * outer) + (2 * x + 1 + 4 * a) * (inner * inner);
}

// Weights of an antialiased filter for `count` samples from `first` on; returns their sum.
template <class Weight>
double fill(int first, int count, double center, double inverse, double* weights, Weight weight) {
  double total = 0;
  for (int j = 0; j < count; ++j) {
    weights[j] = weight((first + j - center + 0.5) * inverse);
    total += weights[j];
  }
  return total;
}

// Half the width of a filter, in samples of the larger of the two axes.
constexpr double half_width(Filter filter) noexcept {
  return filter == Filter::kAntialias ? 1.0
         : filter == Filter::kBicubic ? 2.0
         : filter == Filter::kLanczos ? 3.0
                                      : 0.5;
}

// More samples than an output has taps, before zeros are dropped and means are made.
int most_taps(int in, int out, Filter filter) noexcept {
  const double scale = std::max(1.0, static_cast<double>(in) / out);
  return std::min(in, 2 * static_cast<int>(std::ceil(half_width(filter) * scale)) + 2) + 4;
}

struct Taps {
  int first, count;
};

// What all outputs of an axis have in common.
struct Scale {
  double scale, support, inverse;

  Scale(int in, int out, Filter filter) noexcept
      : scale(static_cast<double>(in) / out),
        support(half_width(filter) * std::max(1.0, scale)),
        inverse(1.0 / std::max(1.0, scale)) {}
};

// The taps of one output as torch (aten UpSampleKernel.cpp) and, for Lanczos and box, Pillow (Resample.c)
// compute them.
inline Taps tap_weights(int i, int in, int out, Filter filter, const Scale& how, double* weights) {
  const double scale = how.scale, support = how.support, inverse = how.inverse;
  weights[0] = 1.0;
  if (filter == Filter::kNearest || filter == Filter::kNearestExact) {
    // torch rounds the scale to float for nearest neighbours.
    const float center = static_cast<float>(i) + (filter == Filter::kNearestExact ? 0.5f : 0.0f);
    const float nearest = std::floor(center * (static_cast<float>(in) / static_cast<float>(out)));
    return {std::min(static_cast<int>(nearest), in - 1), 1};
  }
  if (filter == Filter::kBilinear) {
    const double source = std::max(0.0, scale * (i + 0.5) - 0.5);
    const int first = std::min(static_cast<int>(source), in - 1);
    if (first + 1 == in) return {first, 1};
    weights[1] = std::min(1.0, source - first);
    weights[0] = 1.0 - weights[1];
    return {first, 2};
  }
  if (is_rounded_between(filter) && in == out) return {i, 1};
  if (filter == Filter::kSharpBicubic) {
    // A sample beyond the end counts as the last one.
    const double source = scale * (i + 0.5) - 0.5;
    const int before = static_cast<int>(std::floor(source));
    const int first = std::clamp(before - 1, 0, in - 1), last = std::clamp(before + 2, 0, in - 1);
    std::fill_n(weights, last - first + 1, 0.0);
    for (int j = before - 1; j <= before + 2; ++j) {
      weights[std::clamp(j, 0, in - 1) - first] += cubic(source - j, -0.75);
    }
    return {first, last - first + 1};
  }
  const double center = scale * (i + 0.5);
  const int first = std::max(static_cast<int>(center - support + 0.5), 0);
  const int count = std::min(static_cast<int>(center + support + 0.5), in) - first;
  double total;
  if (filter == Filter::kBicubic) {
    total = fill(first, count, center, inverse, weights, [](double x) { return cubic(x, -0.5); });
  } else if (filter == Filter::kLanczos) {
    static const LanczosTable lanczos;
    total = fill(first, count, center, inverse, weights, [](double x) { return lanczos(x); });
  } else {
    total = fill(first, count, center, inverse, weights,
                 [](double x) { return x > -0.5 && x <= 0.5 ? 1.0 : 0.0; });
  }
  const double factor = 1 / total;  // divisions are slow
  for (int j = 0; j < count; ++j) weights[j] *= factor;
  return {first, count};
}

// The same for kAntialias. At least `least` taps are computed, kMost if that is not 0, those past the
// filter's end as zeros: loops of a known length have no branch that is hard to predict.
template <int kMost>
inline Taps triangle_weights(int i, int in, const Scale& how, int least, double* weights) {
  const double center = how.scale * (i + 0.5);
  const int first = std::max(static_cast<int>(center - how.support + 0.5), 0);
  const int count = std::min(static_cast<int>(center + how.support + 0.5), in) - first;
  if (kMost > 0 && count > kMost) return triangle_weights<0>(i, in, how, least, weights);  // by rounding
  const int most = kMost > 0 ? kMost : std::max(count, least);
  double total = 0;
  for (int j = 0; j < most; ++j) {
    const double weight = std::max(0.0, 1.0 - std::abs((first + j - center + 0.5) * how.inverse));
    weights[j] = j < count ? weight : 0.0;
    total += weights[j];
  }
  for (int j = 0; j < most; ++j) weights[j] /= total;
  return {first, std::max(count, std::min(least, in - first))};
}

}  // namespace

void Axis::prepare(int in_size, int out_size, Filter filter, bool mirrored, int reduction, int offset,
                   int max_precision) {
  in = (in_size + offset + reduction - 1) / reduction;
  out = out_size;
  start.resize(out);
  counts_.resize(out);
  const Scale how(in_size, out, filter);
  const int width =
      static_cast<int>(std::ceil(2 * how.support));  // taps of a triangle, written also beyond `in`
  const size_t most = static_cast<size_t>(std::max(most_taps(in_size, out, filter), width));
  if (shares_.size() < most * out) shares_.resize(most * out);
  double* row = shares_.data();
  const bool drops_zeros = !mirrored && filter != Filter::kAntialias;
  for (int i = 0; i < out; ++i) {
    // In the order of the stored axis: a mirrored output takes the mirrored samples.
    const int output = mirrored ? out - 1 - i : i;
    auto [first, count] = filter != Filter::kAntialias ? tap_weights(output, in_size, out, filter, how, row)
                          : width <= 4 ? triangle_weights<4>(output, in_size, how, width, row)
                                       : triangle_weights<0>(output, in_size, how, width, row);
    // Mirrored these would be the first: `start` may not go back, as rows are read once.
    while (drops_zeros && count > 1 && row[count - 1] == 0.0) --count;
    if (mirrored) {
      first = in_size - first - count;
      std::reverse(row, row + count);
    }
    if (reduction > 1) {
      const int begin = (offset + first) / reduction;
      int mean = begin, left = (begin + 1) * reduction - offset - first;  // samples of this mean
      double sum = 0;
      for (int j = 0; j < count; ++j, --left) {
        if (left == 0) {
          row[mean++ - begin] = sum;
          sum = 0;
          left = reduction;
        }
        sum += row[j];
      }
      row[mean - begin] = sum;
      first = begin;
      count = mean - begin + 1;
    }
    start[i] = first;
    counts_[i] = count;
    row += count;
  }
  round_weights(max_precision);
}

void Axis::prepare_component(const Axis& pixels, int offset, const Upsampling& upsampling, int count,
                             int max_precision) {
  in = count;
  out = pixels.out;
  start.resize(out);
  counts_.resize(out);
  const size_t most = static_cast<size_t>(pixels.taps) + 3;
  if (shares_.size() < most * out) shares_.resize(most * out);
  const double* share = pixels.shares_.data();
  double* row = shares_.data();
  padded_.assign(static_cast<size_t>(pixels.taps) + 8, 0.0);
  double* const padded = padded_.data() + 1;
  const int last = count - 1, times = upsampling.times;
  for (int i = 0; i < out; ++i) {
    const int begin = offset + pixels.start[i], end = begin + pixels.counts_[i];
    const int taken = end - begin;
    int first = begin / times, behind = (end - 1) / times;
    if (upsampling.is_mixed) {
      // A sample is three quarters of its own two pixels and a quarter of the next on either side; the first
      // and the last of the image are all of its outermost pixels.
      first = std::max(0, (begin - 1) / 2);
      std::copy(share, share + taken, padded + 2);
      std::fill_n(padded + taken + 2, 4, 0.0);
      const double* pixel = padded + (2 * first - begin + 2);
      const int samples = taken / 2 + 2;  // zeros at the end, if there are fewer
      for (int j = 0; j < samples; ++j, pixel += 2) {
        row[j] = 0.75 * (pixel[0] + pixel[1]) + 0.25 * (pixel[-1] + pixel[2]);
      }
      behind = std::min(last, end / 2);  // samples beyond it may not be decoded
      if (begin == 0) row[0] += 0.25 * share[0];
      if (end - 1 == 2 * last + 1) row[behind - first] += 0.25 * share[taken - 1];
    } else {
      std::fill(row, row + (behind - first + 1), 0.0);
      for (int j = 0; j < taken; ++j) row[(begin + j) / times - first] += share[j];
    }
    share += taken;
    start[i] = first;
    counts_[i] = behind - first + 1;
    row += counts_[i];
  }
  round_weights(max_precision);
}

// From shares_ and counts_.
void Axis::round_weights(int max_precision) {
  taps = 1;
  end = 0;
  ptrdiff_t total = 0;
  for (int i = 0; i < out; ++i) {
    taps = std::max(taps, counts_[i]);
    end = std::max(end, start[i] + counts_[i]);
    total += counts_[i];
  }
  double peak = 1;  // a filter without negative weights has none above 1
  if (max_precision > 14) peak = *std::max_element(shares_.begin(), shares_.begin() + total);
  precision = max_precision;
  while (peak * (1 << precision) > 32000) --precision;
  const double one = 1 << precision;
  weights.resize(static_cast<size_t>(out) * taps);
  const double* next = shares_.data();
  int16_t* target = weights.data();
  for (int i = 0; i < out; ++i, target += taps) {
    // Rounding the running sum instead of each weight keeps the total at exactly one.
    double sum = 0;
    int done = 0;
    const int count = counts_[i];
    for (int j = 0; j < count; ++j) {
      sum += *next++;
      const int upto = j + 1 == count ? 1 << precision : static_cast<int>(std::lrint(sum * one));
      target[j] = static_cast<int16_t>(upto - done);
      done = upto;
    }
    std::fill(target + count, target + taps, int16_t{0});
  }
}

}  // namespace tarpeg
