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

// Weights of an antialiased filter for the samples from `first` on; returns their sum.
template <class Weight>
double fill(int first, double center, double inverse, std::vector<double>* weights, Weight weight) {
  double total = 0;
  for (size_t j = 0; j < weights->size(); ++j) {
    (*weights)[j] = weight((first + static_cast<int>(j) - center + 0.5) * inverse);
    total += (*weights)[j];
  }
  return total;
}

// The taps of one output as torch (aten UpSampleKernel.cpp) and, for Lanczos and box, Pillow (Resample.c)
// compute them: returns the first sample.
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
  if (is_rounded_between(filter) && in == out) {
    weights->push_back(1.0);
    return i;
  }
  if (filter == Filter::kSharpBicubic) {
    // A sample beyond the end counts as the last one.
    const double source = scale * (i + 0.5) - 0.5;
    const int before = static_cast<int>(std::floor(source));
    const int first = std::clamp(before - 1, 0, in - 1), last = std::clamp(before + 2, 0, in - 1);
    weights->assign(last - first + 1, 0.0);
    for (int j = before - 1; j <= before + 2; ++j) {
      (*weights)[std::clamp(j, 0, in - 1) - first] += cubic(source - j, -0.75);
    }
    return first;
  }
  const double half = filter == Filter::kAntialias ? 1.0
                      : filter == Filter::kBicubic ? 2.0
                      : filter == Filter::kLanczos ? 3.0
                                                   : 0.5;
  const double support = half * std::max(1.0, scale), inverse = 1.0 / std::max(1.0, scale);
  const double center = scale * (i + 0.5);
  const int first = std::max(static_cast<int>(center - support + 0.5), 0);
  const int end = std::min(static_cast<int>(center + support + 0.5), in);
  weights->resize(end - first);
  double total;
  if (filter == Filter::kAntialias) {
    total = fill(first, center, inverse, weights, [](double x) { return std::max(0.0, 1.0 - std::abs(x)); });
  } else if (filter == Filter::kBicubic) {
    total = fill(first, center, inverse, weights, [](double x) { return cubic(x, -0.5); });
  } else if (filter == Filter::kLanczos) {
    static const LanczosTable lanczos;
    total = fill(first, center, inverse, weights, [](double x) { return lanczos(x); });
  } else {
    total = fill(first, center, inverse, weights, [](double x) { return x > -0.5 && x <= 0.5 ? 1.0 : 0.0; });
  }
  if (filter == Filter::kAntialias) {
    for (double& weight : *weights) weight /= total;
  } else {
    const double factor = 1 / total;  // divisions are slow
    for (double& weight : *weights) weight *= factor;
  }
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
    // Mirrored these would be the first: `start` may not go back, as rows are read once.
    while (!mirrored && row.size() > 1 && row.back() == 0.0) row.pop_back();
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
    if (i == 0) all.reserve(static_cast<size_t>(out) * (row.size() * 2 + 1));  // more than half at the edge
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

}  // namespace tarpeg
