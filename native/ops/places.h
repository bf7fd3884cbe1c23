#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

namespace tarpeg {

struct Nearest {
  int begin, source, result;
  bool is_flipped;
};

// The place in the source of each place in the result: of the pixel under its centre, or, in torch's
// arithmetic, of the one under its corner.
inline void fill_places(const Nearest& axis, bool centres, std::vector<int>* places) {
  places->resize(static_cast<size_t>(axis.result));
  const float scale = static_cast<float>(axis.source) / static_cast<float>(axis.result);
  for (int i = 0; i < axis.result; ++i) {
    const int64_t at =
        centres ? (2 * static_cast<int64_t>(i) + 1) * axis.source / (2 * static_cast<int64_t>(axis.result))
                : static_cast<int64_t>(std::floor(static_cast<float>(i) * scale));
    const int place = axis.is_flipped ? axis.result - 1 - i : i;
    (*places)[static_cast<size_t>(place)] =
        axis.begin + static_cast<int>(std::min<int64_t>(at, axis.source - 1));
  }
}

}  // namespace tarpeg
