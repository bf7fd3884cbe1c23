#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/status.h"

namespace tarpeg {

// Rewrites a JPEG, losslessly, as a baseline one in tiles about `tile` pixels wide: the coefficients are
// copied. A source that cannot be tiled with exactly the same pixels comes back as it is (see Note
// [laundering]); one that is damaged gives a status.
Status tile_jpeg(const uint8_t* data, size_t size, int tile, int64_t max_pixels, std::vector<uint8_t>* out);

}  // namespace tarpeg
