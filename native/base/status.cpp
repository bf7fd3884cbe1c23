#include "base/status.h"

namespace tarpeg {

const char* describe(Status status) noexcept {
  switch (status) {
    case Status::kOk:
      return "ok";
    case Status::kEmpty:
      return "no bytes at all";
    case Status::kNotAnImage:
      return "neither a JPEG nor a PPM nor a packed image";
    case Status::kTruncated:
      return "the data ends before the image does";
    case Status::kCorrupt:
      return "the header or the coded data is damaged";
    case Status::kUnsupported:
      return "a kind of JPEG that is not supported, such as 12 bits, lossless, JPEG-LS or two components: "
             "convert it to an ordinary JPEG or PNG";
    case Status::kTooLarge:
      return "more pixels than max_pixels";
    case Status::kLaterVersion:
      return "a packed image of a later version, made by a later tarpeg: update tarpeg";
    case Status::kNotGathered:
      return "neither a tiled JPEG nor a packed image: gather_tiles leaves it to decode_batch";
    case Status::kBoxOutside:
      return "the box is outside the image";
    case Status::kOutOfMemory:
      return "out of memory";
    case Status::kOtherLibrary:
      return "the libjpeg that is loaded (tools/doctor.py prints it) is not the one that tarpeg was compiled "
             "with: compile again with its headers";
  }
  return "unknown";
}

}  // namespace tarpeg
