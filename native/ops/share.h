#pragma once

#include <torch/csrc/stable/ops.h>
#include <torch/headeronly/util/Exception.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <exception>

#include "base/pool.h"

namespace tarpeg {

constexpr int64_t kMostThreads = 1024;
constexpr int64_t kWorthwhile = 1 << 15;  // pixels below which no second thread is used

// Calls each(piece) for all pieces. They may differ in cost: each thread takes the next one when it is done.
// most: threads that are of use. threads: 0 for torch's number. Each may throw only for lack of memory.
template <class Each>
void share_pieces(int64_t pieces, int64_t most, int64_t threads, const Each& each) {
  struct Shared {
    const Each& each;
    const int64_t pieces;
    std::atomic<int64_t> next{0};
    std::atomic<bool> out_of_memory{false};
  } shared = {each, pieces};
  const auto work = [](void* context) noexcept {
    Shared& own = *static_cast<Shared*>(context);
    for (int64_t piece = own.next++; piece < own.pieces; piece = own.next++) {
      try {
        own.each(piece);
      } catch (const std::exception&) {
        own.out_of_memory = true;
      }
    }
  };
  const int64_t wanted = threads > 0 ? threads : torch::stable::get_num_threads();
  const int64_t useful = std::max<int64_t>(1, std::min({wanted, pieces, most, kMostThreads}));
  run_on_threads(static_cast<int>(useful), work, &shared);
  STD_TORCH_CHECK(!shared.out_of_memory, "out of memory, while images are decoded or augmented");
}

}  // namespace tarpeg
