// A libFuzzer target over packed images: their header, directory, tiles, and unpacking to JPEG.
//
// The first kHead bytes of an input are choices; the rest is the file. Apart from the errors that the
// sanitisers report, it aborts if one of these does not hold:
// - every level of vector code gives the same status and the same pixels;
// - a crop is a crop of the whole image, and a view is the same together with others;
// - a file that unpack_jpeg() accepts decodes, and its JPEG has the same pixels, also when it is packed
// again.

#include "jpeg/packed.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <vector>

#include "base/simd.h"
#include "image/decode.h"
#include "jpeg/transcode.h"

namespace {

tarpeg::Vectors level = tarpeg::Vectors::kNone;

}  // namespace

// Instead of base/simd.cpp: all levels run in one process.
tarpeg::Vectors tarpeg::vectors() noexcept { return level; }

namespace {

using namespace tarpeg;

constexpr size_t kHead = 8;
constexpr int64_t kMaxPixels = 1 << 13;

// The first bytes of an input.
struct Choices {
  uint8_t box[4], size, options, place, value;

  bool is_gray() const { return (options & 1) != 0; }
  bool exact() const { return (options & 2) != 0; }
  // The checksum is corrected before the file is unpacked.
  bool corrects_sum() const { return (options & 4) == 0; }
  bool checks_views() const { return (options & 8) != 0; }
  // The file changes after its header was read, as a mapped file may.
  bool is_stale() const { return (options & 48) == 48; }
};
static_assert(sizeof(Choices) == kHead);

void require(bool holds, const char* promise) {
  if (holds) return;
  std::fprintf(stderr, "broken promise: %s\n", promise);
  std::abort();
}

Vectors highest() {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512vbmi2")) return Vectors::kAvx512;
  if (__builtin_cpu_supports("avx2")) return Vectors::kAvx2;
#endif
  return Vectors::kNone;
}

Status decode(const std::vector<uint8_t>& file, const Request& request, std::vector<uint8_t>* out) {
  Header header;
  out->assign((request.is_gray ? 1 : 3) * static_cast<size_t>(request.height) * request.width, 0xA5);
  return decode_image(file.data(), file.size(), request, &header, out->data());
}

Status decode_at_all_levels(const std::vector<uint8_t>& file, const Request& request,
                            std::vector<uint8_t>* out) {
  std::vector<uint8_t> other;
  level = Vectors::kNone;
  const Status status = decode(file, request, out);
  for (const Vectors next : {Vectors::kAvx2, Vectors::kAvx512}) {
    if (next > highest()) break;
    level = next;
    require(decode(file, request, &other) == status, "every level of vector code gives one status");
    require(status != Status::kOk || other == *out, "every level of vector code gives the same pixels");
  }
  return status;
}

void check_views(const std::vector<uint8_t>& file, const Request& crop, const Request& whole) {
  Request small = whole, large = crop;
  small.height = small.width = 3;
  large.height = large.width = 40;
  const Request requests[] = {crop, small, large, whole};
  std::vector<uint8_t> outs[4], alone;
  std::vector<View> views;
  for (int i = 0; i < 4; ++i) {
    outs[i].resize(3 * static_cast<size_t>(requests[i].height) * requests[i].width);
    views.push_back({requests[i], outs[i].data(), Status::kCorrupt});
  }
  Header header;
  decode_views(file.data(), file.size(), views.data(), 4, &header);
  for (int i = 0; i < 4; ++i) {
    require(views[i].status == decode(file, requests[i], &alone), "a view has the status of its box alone");
    outs[i].resize(alone.size());
    require(views[i].status != Status::kOk || outs[i] == alone, "a view has the pixels of its box alone");
  }
}

// Reads and unpacks a file whose bytes are no longer those that the header was read from.
void check_stale(std::vector<uint8_t> file, const Header& header, const Choices& choices) {
  file[(choices.place * 256u + choices.box[0]) % file.size()] = choices.value;
  file[choices.box[1] % file.size()] = choices.box[2];
  std::vector<uint8_t> out;
  static PackedImage image;
  static PlaneReader planes;
  if (image.parse(file.data(), file.size(), header) == Status::kOk) {
    planes.plan(image, {0, 0, header.height, header.width}, 1, PixelFormat::kRgb, nullptr);
    planes.decode(image);
  }
  if (unpack_jpeg(file.data(), file.size(), header, kMaxPixels, &out) != Status::kOk) return;
  const Header jpeg = read_header(out.data(), out.size());
  require(jpeg.status == Status::kOk && jpeg.height == header.height && jpeg.width == header.width,
          "a file that changed is not unpacked at another size");
}

void check_unpacking(std::vector<uint8_t> file, const Header& header, const Request& whole, bool corrects) {
  if (corrects && file.size() >= PackedLayout::kTables) {
    const uint32_t sum = packed_sum(file.data(), file.size());
    std::memcpy(file.data() + PackedLayout::kChecksum, &sum, sizeof sum);
  }
  std::vector<uint8_t> jpeg, again, pixels, others;
  if (unpack_jpeg(file.data(), file.size(), header, kMaxPixels, &jpeg) != Status::kOk) return;
  require(decode(file, whole, &pixels) == Status::kOk, "what can be unpacked decodes");
  // The orientation is the metadata's, which may be another than the header's.
  const Header unpacked = read_header(jpeg.data(), jpeg.size());
  require(
      unpacked.status == Status::kOk && unpacked.height == header.height && unpacked.width == header.width,
      "unpacking keeps the size");
  if (unpacked.orientation != header.orientation) return;
  require(decode(jpeg, whole, &others) == Status::kOk, "a file that was unpacked decodes");
  BaselineStream stream;
  // Adobe's marker in the metadata may mean other colours.
  if (!stream.parse(jpeg.data(), jpeg.size(), unpacked) || !stream.is_decodable) return;
  require(pixels == others, "unpacking keeps every pixel");
  const Status status = pack_jpeg(jpeg.data(), jpeg.size(), unpacked, 16, kMaxPixels, &again);
  require(status == Status::kOk, "a file that was unpacked can be packed");
  require(decode(again, whole, &others) == Status::kOk && pixels == others, "packing keeps every pixel");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < kHead) return 0;
  Choices choices;
  std::memcpy(&choices, data, kHead);
  // A buffer of exactly the file's size: a read behind it is seen.
  const std::vector<uint8_t> file(data + kHead, data + size);
  const Header header = read_header(file.data(), file.size());
  if (header.status == Status::kOk && header.format != Format::kPacked) return 0;
  Request whole{};
  whole.max_pixels = kMaxPixels;
  whole.height = whole.width = 1;
  whole.box = {0, 0, 1, 1};
  whole.filter = Filter::kAntialias;
  whole.is_gray = choices.is_gray();
  whole.exact = choices.exact();
  std::vector<uint8_t> pixels, crop_pixels;
  if (header.status != Status::kOk || static_cast<int64_t>(header.height) * header.width > kMaxPixels) {
    require(decode(file, whole, &pixels) != Status::kOk, "without a good header there is no image");
    require(unpack_jpeg(file.data(), file.size(), header, kMaxPixels, &pixels) != Status::kOk,
            "without a good header there is no JPEG");
    return 0;
  }
  if (choices.is_stale()) return check_stale(file, header, choices), 0;
  whole.height = header.upright_height();
  whole.width = header.upright_width();
  whole.box = {0, 0, whole.height, whole.width};
  Request crop = whole;
  Box& box = crop.box;
  box.top = choices.box[0] * whole.height / 256;
  box.left = choices.box[1] * whole.width / 256;
  box.height = crop.height = 1 + choices.box[2] * (whole.height - box.top - 1) / 255;
  box.width = crop.width = 1 + choices.box[3] * (whole.width - box.left - 1) / 255;
  const Status status = decode_at_all_levels(file, whole, &pixels);
  const Status cropped = decode_at_all_levels(file, crop, &crop_pixels);
  require(status != Status::kOk || cropped == Status::kOk, "a crop of an image that decodes decodes");
  const size_t channels = whole.is_gray ? 1 : 3, bytes = channels * box.width;
  for (int y = 0; y < box.height && status == Status::kOk; ++y) {
    const size_t at = channels * (static_cast<size_t>(box.top + y) * whole.width + box.left);
    require(std::memcmp(crop_pixels.data() + y * bytes, pixels.data() + at, bytes) == 0,
            "a crop is the crop of the whole image");
  }
  crop.height = 1 + choices.size % 16;
  crop.width = 1 + choices.size / 16;
  decode_at_all_levels(file, crop, &crop_pixels);
  if (choices.checks_views()) check_views(file, crop, whole);
  check_unpacking(file, header, whole, choices.corrects_sum());
  return 0;
}
