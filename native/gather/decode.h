#pragma once

#include <cstdint>
#include <vector>

#include "gather/plan.h"

namespace tarpeg::gather {

// Memory that a thread keeps from image to image, up to kMostKept bytes.
using Memory = std::vector<uint64_t>;

// Decodes an image to `out`, [height][width][channels] upright, by portable code: one thread does what the
// kernels of native/cuda/gathered.cu do. Its own status if that is not 0, kCorrupt if anything is damaged;
// then `out` is unchanged or half written. Throws only if memory runs out.
Status decode(const Gathered& all, uint32_t index, Memory* memory, uint8_t* out);

}  // namespace tarpeg::gather
