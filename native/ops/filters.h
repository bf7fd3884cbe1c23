#pragma once

#include <torch/headeronly/util/Exception.h>

#include <string>

#include "image/axis.h"

namespace tarpeg {

inline Filter filter_of(const std::string& interpolation, bool antialias) {
  if (interpolation == "nearest") return Filter::kNearest;
  if (interpolation == "nearest-exact") return Filter::kNearestExact;
  if (interpolation == "bilinear") return antialias ? Filter::kAntialias : Filter::kBilinear;
  if (interpolation == "bicubic") return antialias ? Filter::kBicubic : Filter::kSharpBicubic;
  STD_TORCH_CHECK(antialias, "antialias must be true for interpolation '", interpolation, "'");
  if (interpolation == "lanczos") return Filter::kLanczos;
  STD_TORCH_CHECK(interpolation == "box" || interpolation == "area", "interpolation must not be '",
                  interpolation, "'");
  return Filter::kBox;
}

}  // namespace tarpeg
