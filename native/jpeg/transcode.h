#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/status.h"
#include "jpeg/header.h"

namespace tarpeg {

// Rewrites a JPEG, losslessly, as a baseline one in tiles about `tile` pixels wide: the coefficients are
// copied. A source that cannot be tiled with exactly the same pixels comes back as it is (see Note
// [laundering]); one that is damaged gives a status. `header` is that of `data`.
Status tile_jpeg(const uint8_t* data, size_t size, const Header& header, int tile, int64_t max_pixels,
                 std::vector<uint8_t>* out);

// The same coefficients as a packed image (packed.h), in tiles about `tile` pixels wide. A source that cannot
// be packed with exactly the same pixels comes back as tile_jpeg() returns it; a packed image, as it is.
Status pack_jpeg(const uint8_t* data, size_t size, const Header& header, int tile, int64_t max_pixels,
                 std::vector<uint8_t>* out);

// The reverse: a baseline JPEG of the same coefficients, with the metadata that tile_jpeg() keeps. A JPEG
// comes back as it is.
Status unpack_jpeg(const uint8_t* data, size_t size, const Header& header, int64_t max_pixels,
                   std::vector<uint8_t>* out);

}  // namespace tarpeg
