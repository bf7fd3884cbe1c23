#pragma once

#include <cstdint>

namespace tarpeg {

// The result of decoding one image; the same numbers as tarpeg.Status in errors.py.
enum class Status : int32_t {
  kOk = 0,
  kEmpty = 1,
  kNotAnImage = 2,
  kTruncated = 3,
  kCorrupt = 4,
  kUnsupported = 5,
  kTooLarge = 6,
  kLaterVersion = 7,
  kNotGathered = 8,
  // Never returned to Python: the operator raises an error.
  kBoxOutside = -1,
  kOutOfMemory = -2,
  kOtherLibrary = -3,
};

const char* describe(Status status) noexcept;

}  // namespace tarpeg
