#pragma once

#include <cmath>

#include "base/device.h"
#include "image/axis.h"

// The weights of one output of an axis, in doubles: for the CPU and for devices, in the same order.
namespace tarpeg {

TARPEG_HD int least(int a, int b) { return a < b ? a : b; }
TARPEG_HD int most(int a, int b) { return a > b ? a : b; }
TARPEG_HD int within(int value, int low, int high) { return least(most(value, low), high); }
TARPEG_HD double largest(double a, double b) { return a < b ? b : a; }
TARPEG_HD double smallest(double a, double b) { return b < a ? b : a; }

// sinc(x) sinc(x / 3) for x from 0 to 3. Linear interpolation is off by at most 5e-7, less than a hundredth
// of the unit of a weight. Devices get the table: they compute other sines.
constexpr int kLanczosSteps = 1024, kLanczosNumbers = 3 * kLanczosSteps + 2;
const double* lanczos_table();

TARPEG_HD double lanczos_of(double x, const double* table) {
  const double place = smallest(fabs(x), 3.0) * kLanczosSteps;
  const int step = static_cast<int>(place);
  return table[step] + (place - step) * (table[step + 1] - table[step]);
}

// Keys' cubic with a = -0.5 (antialiased) or -0.75 (not), as in torch: (a + 2) x^3 - (a + 3) x^2 + 1 below 1
// and a (x^3 - 5 x^2 + 8 x - 4) below 2, without branches.
TARPEG_HD double cubic(double x, double a) {
  x = fabs(x);
  const double inner = largest(0.0, 1 - x), outer = largest(0.0, 2 - x);
  return a * (x - 1) * (outer * outer) + (2 * x + 1 + 4 * a) * (inner * inner);
}

// Half the width of a filter, in samples of the larger of the two axes.
TARPEG_HD double half_width(Filter filter) {
  switch (filter) {
    case Filter::kAntialias:
      return 1.0;
    case Filter::kBicubic:
      return 2.0;
    case Filter::kLanczos:
      return 3.0;
    default:
      return 0.5;
  }
}

// What all outputs of an axis have in common.
struct Scale {
  double scale, support, inverse;

  TARPEG_HD Scale(int in, int out, Filter filter)
      : scale(static_cast<double>(in) / out),
        support(half_width(filter) * largest(1.0, scale)),
        inverse(1.0 / largest(1.0, scale)) {}
};

// More samples than an output has taps, before zeros are dropped and means are made.
TARPEG_HD int most_taps(int in, int out, Filter filter) {
  const double scale = largest(1.0, static_cast<double>(in) / out);
  return least(in, 2 * static_cast<int>(ceil(half_width(filter) * scale)) + 2) + 4;
}

struct Taps {
  int first, count;
};

// The samples that an antialiased filter has under an output.
TARPEG_HD Taps taps_under(double center, double support, int in) {
  const int first = most(static_cast<int>(center - support + 0.5), 0);
  return {first, least(static_cast<int>(center + support + 0.5), in) - first};
}

// Weights of an antialiased filter; returns their sum.
template <class Weight>
TARPEG_HD double fill(const Taps& taps, double center, double inverse, double* weights, Weight weight) {
  double total = 0;
  for (int j = 0; j < taps.count; ++j) {
    weights[j] = weight((taps.first + j - center + 0.5) * inverse);
    total += weights[j];
  }
  return total;
}

// The taps of one output as torch (aten UpSampleKernel.cpp) and, for Lanczos and box, Pillow (Resample.c)
// compute them. Not for kAntialias.
TARPEG_HD Taps tap_weights(int i, int in, int out, Filter filter, const Scale& how, const double* lanczos,
                           double* weights) {
  weights[0] = 1.0;
  if (filter == Filter::kNearest || filter == Filter::kNearestExact) {
    // torch rounds the scale to float for nearest neighbours.
    const float center = static_cast<float>(i) + (filter == Filter::kNearestExact ? 0.5f : 0.0f);
    const float nearest = floorf(center * (static_cast<float>(in) / static_cast<float>(out)));
    return {least(static_cast<int>(nearest), in - 1), 1};
  }
  if (filter == Filter::kBilinear) {
    const double source = largest(0.0, how.scale * (i + 0.5) - 0.5);
    const int first = least(static_cast<int>(source), in - 1);
    if (first + 1 == in) return {first, 1};
    weights[1] = smallest(1.0, source - first);
    weights[0] = 1.0 - weights[1];
    return {first, 2};
  }
  if (is_rounded_between(filter) && in == out) return {i, 1};
  if (filter == Filter::kSharpBicubic) {
    // A sample beyond the end counts as the last one.
    const double source = how.scale * (i + 0.5) - 0.5;
    const int before = static_cast<int>(floor(source));
    const int first = within(before - 1, 0, in - 1), count = within(before + 2, 0, in - 1) - first + 1;
    for (int j = 0; j < count; ++j) weights[j] = 0.0;
    for (int j = before - 1; j <= before + 2; ++j) {
      weights[within(j, 0, in - 1) - first] += cubic(source - j, -0.75);
    }
    return {first, count};
  }
  const double center = how.scale * (i + 0.5);
  const Taps taps = taps_under(center, how.support, in);
  double total;
  if (filter == Filter::kBicubic) {
    total = fill(taps, center, how.inverse, weights, [](double x) { return cubic(x, -0.5); });
  } else if (filter == Filter::kLanczos) {
    total = fill(taps, center, how.inverse, weights, [lanczos](double x) { return lanczos_of(x, lanczos); });
  } else {
    total =
        fill(taps, center, how.inverse, weights, [](double x) { return x > -0.5 && x <= 0.5 ? 1.0 : 0.0; });
  }
  const double factor = 1 / total;  // divisions are slow
  for (int j = 0; j < taps.count; ++j) weights[j] *= factor;
  return taps;
}

// Weights of `taps` samples by the antialiased triangle, of which taps.count are under it: the others are
// zeros.
TARPEG_HD void triangle(const Taps& taps, int count, double center, double inverse, double* weights) {
  double total = 0;
  for (int j = 0; j < count; ++j) {
    const double weight = largest(0.0, 1.0 - fabs((taps.first + j - center + 0.5) * inverse));
    weights[j] = j < taps.count ? weight : 0.0;
    total += weights[j];
  }
  for (int j = 0; j < count; ++j) weights[j] /= total;
}

// Makes means of `reduction` samples each of the taps, in place: Note [reduction].
TARPEG_HD Taps reduced(const Taps& taps, int reduction, int offset, double* weights) {
  const int begin = (offset + taps.first) / reduction;
  int mean = begin, left = (begin + 1) * reduction - offset - taps.first;  // samples of this mean
  double sum = 0;
  for (int j = 0; j < taps.count; ++j, --left) {
    if (left == 0) {
      weights[mean++ - begin] = sum;
      sum = 0;
      left = reduction;
    }
    sum += weights[j];
  }
  weights[mean - begin] = sum;
  return {begin, mean - begin + 1};
}

// `taps` weights, zeros from `count` on. Rounding the running sum instead of each weight keeps the total at
// exactly one.
TARPEG_HD void round_weights(const double* shares, int count, int taps, int precision, int16_t* weights) {
  const double one = 1 << precision;
  double sum = 0;
  int done = 0;
  for (int j = 0; j < taps; ++j) {
    sum += shares[j];
    const int rounded = static_cast<int>(lrint(sum * one));
    const int upto = j + 1 < count ? rounded : 1 << precision;
    weights[j] = static_cast<int16_t>(upto - done);
    done = upto;
  }
}

}  // namespace tarpeg
