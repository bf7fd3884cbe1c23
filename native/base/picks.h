#pragma once

#include <cstdint>
#include <vector>

namespace tarpeg {

// Bytes behind a row that `Picks::run` may read.
constexpr int kPicksMargin = 32;

// Takes bytes of a row by their places, which never fall, or never rise: nearest neighbour along a row.
class Picks {
 public:
  void begin(const std::vector<int>& places);

  // Writes as many bytes as there are places.
  void run(const uint8_t* from, uint8_t* to) const noexcept;

 private:
  // Consecutive bytes of the result, whose sources are close to each other.
  struct Piece {
    int first, base;  // place in the result, and of the first byte in the source
    int count, span;  // bytes of the result and of the source
  };

  std::vector<int> places_;
  std::vector<Piece> pieces_;
  std::vector<uint8_t> offsets_;  // of each source from the base of its piece, kLanes per piece
};

}  // namespace tarpeg
