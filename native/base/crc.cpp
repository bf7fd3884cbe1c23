#include "base/crc.h"

#include <array>
#include <cstring>

namespace tarpeg {
namespace {

// [i][byte]: the sum of this byte and i zeros after it, each of eight more bits.
constexpr std::array<std::array<uint32_t, 256>, 8> crc_tables() {
  std::array<std::array<uint32_t, 256>, 8> tables{};
  for (size_t i = 0; i < 8 * 256; ++i) {
    uint32_t sum = i < 256 ? static_cast<uint32_t>(i) : tables[i / 256 - 1][i % 256];
    for (int bit = 0; bit < 8; ++bit) sum = sum >> 1 ^ (sum & 1 ? 0xEDB88320 : 0);
    tables[i / 256][i % 256] = sum;
  }
  return tables;
}
constexpr auto kCrc = crc_tables();

}  // namespace

uint32_t crc32(const uint8_t* data, size_t size) noexcept {
  static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "words are read as they lie");
  uint32_t sum = ~uint32_t{0};
  size_t at = 0;
  for (; at + 8 <= size; at += 8) {
    uint64_t word;
    std::memcpy(&word, data + at, sizeof word);
    word ^= sum;
    sum = 0;
    for (size_t i = 0; i < 8; ++i) sum ^= kCrc[7 - i][word >> (8 * i) & 255];
  }
  for (; at < size; ++at) sum = sum >> 8 ^ kCrc[0][(sum ^ data[at]) & 255];
  return ~sum;
}

}  // namespace tarpeg
