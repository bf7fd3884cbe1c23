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
  // (2 * i + 1) * source / (2 * result), without a division for each i.
  const int64_t twice = 2 * static_cast<int64_t>(axis.result);
  const int64_t whole = axis.source / axis.result, rest = axis.source % axis.result;
  int64_t centre = axis.source / twice, over = axis.source % twice;
  for (int i = 0; i < axis.result; ++i) {
    const int64_t at = centres ? centre : static_cast<int64_t>(std::floor(static_cast<float>(i) * scale));
    const int place = axis.is_flipped ? axis.result - 1 - i : i;
    (*places)[static_cast<size_t>(place)] =
        axis.begin + static_cast<int>(std::min<int64_t>(at, axis.source - 1));
    centre += whole, over += 2 * rest;
    if (over >= twice) ++centre, over -= twice;
  }
}

// The number of places in the result, which is not flipped, that are before each place in the source, and
// before its end. places: scratch.
inline void fill_firsts(const Nearest& axis, bool centres, std::vector<int>* places,
                        std::vector<int>* firsts) {
  fill_places(axis, centres, places);
  firsts->resize(static_cast<size_t>(axis.source) + 1);
  int at = 0;
  for (int i = 0; i <= axis.source; ++i) {
    while (at < axis.result && (*places)[static_cast<size_t>(at)] < i) ++at;
    (*firsts)[static_cast<size_t>(i)] = at;
  }
}

}  // namespace tarpeg
