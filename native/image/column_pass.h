#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/pages.h"
#include "image/axis.h"

// The horizontal pass of resampling: each number of a row is the weighted sum of its neighbours. In lanes of
// 16 bits. The same integer sums with and without vector code.
namespace tarpeg {

// Between the passes a level is 128 units: 255 * 128 still fits 16 bits with a sign.
constexpr int kBlendBits = 7;
constexpr int kMostBetween = 255 << kBlendBits;

// Rows of one channel each, `step` numbers apart: gray, or three channels of a row, which share the loads of
// weights.
template <class T>
struct Channels {
  T* first;
  ptrdiff_t step;
  int count;  // 1 or 3
};

// The positions and weights of an axis in the order of the vector registers.
class ColumnPass {
 public:
  // Sample `first` of the axis is the first of a row; `reversed`: from right to left. The results have
  // `dropped` fractional bits less than a row. `are_bytes`: of rows that are to be blended.
  void prepare(const Axis& axis, int first, bool reversed, int dropped, bool are_bytes);
  // Fills out[axis.out] of each channel, and up to the next multiple of 16. Reads, but does not use, up to
  // axis.taps + kBeyond numbers past the end. Numbers of 16 bits become others; bytes become levels of
  // kBlendBits fractional bits, clamped to 0..255.
  void blend(const Channels<const int16_t>& in, const Channels<int16_t>& out) const noexcept;
  void blend(const Channels<const uint8_t>& in, const Channels<int16_t>& out) const noexcept;
  size_t bytes() const noexcept { return held_bytes(start_, weights_, picks_); }
  static constexpr int kBeyond = 128;

 private:
  friend struct ColumnPassCode;
  int width_ = 0, shift_ = 0;
  // Of vectors of 16 bytes: if every four outputs have their first two taps in one (kNear) or all their taps
  // (kOne), `picks_` are bytes of it [eight outputs][output][byte] and start_ has a number for each four
  // outputs; otherwise (kFar) for each. weights_ are [eight outputs][pair of taps][output][tap]. With AVX-512
  // the same for sixteen outputs that need one or two vectors of 64 bytes (vectors_), and picks_ are pairs of
  // the samples' numbers there. Portable code has blocks of four taps, weights_
  // [two outputs][block][output][tap], and a start for each output.
  enum class Reach { kOne, kNear, kFar };
  Reach reach_ = Reach::kNear;
  int pairs_ = 0, blocks_ = 0, vectors_ = 0;
  std::vector<int> start_;
  std::vector<int16_t> weights_;
  std::vector<uint8_t> picks_;
};

}  // namespace tarpeg
