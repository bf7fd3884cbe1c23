// A libFuzzer target over PNGs of masks: their chunks, bands and filters, and DEFLATE.
//
// The first kHead bytes of an input are choices; the rest is the file. Apart from the errors that the
// sanitisers report, it aborts if a box of a mask that decodes is not that part of the whole mask. Files
// with bands are left out of this: each may be crafted so that it decodes alone to other rows.

#include "png/png.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "base/crc.h"
#include "base/simd.h"

// Instead of base/simd.cpp, for the files that are linked for other targets.
tarpeg::Vectors tarpeg::vectors() noexcept { return Vectors::kNone; }

namespace {

using namespace tarpeg;

constexpr size_t kHead = 5;
constexpr int64_t kMaxPixels = 1 << 16;

void require(bool holds, const char* promise) {
  if (holds) return;
  std::fprintf(stderr, "broken promise: %s\n", promise);
  std::abort();
}

// The fuzzer finds no checksums.
void correct_sums(std::vector<uint8_t>* file) {
  for (size_t at = 8; at + 12 <= file->size();) {
    uint8_t* chunk = file->data() + at;
    const size_t length = static_cast<size_t>(chunk[0]) << 24 | chunk[1] << 16 | chunk[2] << 8 | chunk[3];
    if (length > file->size() - at - 12) return;
    const uint32_t sum = crc32(chunk + 4, length + 4);
    for (int i = 0; i < 4; ++i) chunk[8 + length + i] = static_cast<uint8_t>(sum >> (24 - 8 * i));
    at += length + 12;
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < kHead) return 0;
  // A buffer of exactly the file's size: a read behind it is seen.
  std::vector<uint8_t> file(data + kHead, data + size);
  if ((data[4] & 1) == 0) correct_sums(&file);
  BytePng png;
  if (png.parse(file.data(), file.size(), kMaxPixels) != Status::kOk) return 0;
  const Box whole = {0, 0, png.height, png.width};
  Box box = {data[0] * png.height / 256, data[1] * png.width / 256, 0, 0};
  box.height = 1 + data[2] * (png.height - box.top - 1) / 255;
  box.width = 1 + data[3] * (png.width - box.left - 1) / 255;
  std::vector<uint8_t> memory, memory_of_box;
  BytePng::Rows rows = {}, rows_of_box = {};
  Runs runs;
  if (png.open(&runs)) {
    for (int row = box.top; row < box.top + box.height && runs.go(row); ++row) {
      require(runs.count > 0 && runs.ends[runs.count - 1] == png.width, "runs cover their row");
      for (int r = 1; r < runs.count; ++r) require(runs.ends[r - 1] < runs.ends[r], "runs are in order");
    }
  }
  const Status status = png.decode(whole, &memory, &rows);
  const Status cropped = png.decode(box, &memory_of_box, &rows_of_box);
  const char bands[] = {'t', 'p', 'R', 'B'};
  const bool has_bands = std::search(file.begin(), file.end(), bands, bands + sizeof bands) != file.end();
  if (status != Status::kOk || cropped != Status::kOk || has_bands) return 0;
  const size_t step = static_cast<size_t>(png.width) + 1;
  for (int y = box.top; y < box.top + box.height; ++y) {
    const uint8_t* one = rows.first_row + step * static_cast<size_t>(y - rows.first);
    const uint8_t* other = rows_of_box.first_row + step * static_cast<size_t>(y - rows_of_box.first);
    // Whatever is in a mask, all of it is read.
    require(std::memcmp(one + box.left, other + box.left, static_cast<size_t>(box.width)) == 0,
            "a box is that part of the whole mask");
  }
  return 0;
}
