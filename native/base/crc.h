#pragma once

#include <cstddef>
#include <cstdint>

namespace tarpeg {

// CRC-32, that of zlib and PNG.
uint32_t crc32(const uint8_t* data, size_t size) noexcept;

}  // namespace tarpeg
