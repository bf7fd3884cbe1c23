#pragma once

#include <cstddef>
#include <cstdint>

namespace tarpeg {

// The position of the next marker in entropy-coded data: the last 0xFF before a byte that is neither 0x00
// (stuffing) nor 0xFF (fill). `size` where there is none.
size_t next_marker(const uint8_t* data, size_t at, size_t size) noexcept;

}  // namespace tarpeg
