// A libFuzzer target over the torch-free core: header, entropy decoding, resampling, transcoding.
//
// The first kHead bytes of an input choose box, size, filter and tile; the rest is the file. Apart from what
// the sanitisers see, it aborts where one of these does not hold:
// - what PlaneReader and the crops of libjpeg give is the crop of what libjpeg makes of the whole file;
// - a file that tile_jpeg() takes is one that decodes, its tiled twin decodes too, to the same pixels, and is
//   a regular stream; tiling it again changes nothing.
//
// Files that are damaged promise nothing but a status. libjpeg's vector code and its C code differ where
// coefficients overflow 16 bits, and PlaneReader follows the vector code: with JSIMD_FORCENONE=1, which lets
// the sanitisers see more of libjpeg, it is not compared.

#include "image/decode.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <vector>

#include "jpeg/libjpeg.h"
#include "jpeg/transcode.h"

namespace {

using namespace tarpeg;

constexpr size_t kHead = 8;
constexpr int64_t kMaxPixels = 1 << 14;
constexpr int kMaxSide = 96;
const bool kIsVectorLibjpeg = std::getenv("JSIMD_FORCENONE") == nullptr;

void require(bool holds, const char* promise) {
  if (holds) return;
  std::fprintf(stderr, "broken promise: %s\n", promise);
  std::abort();
}

Status decode(const std::vector<uint8_t>& file, const Request& request, std::vector<uint8_t>* out) {
  Header header;
  out->assign(3 * static_cast<size_t>(request.height) * request.width, 0xA5);
  return decode_image(file.data(), file.size(), request, &header, out->data());
}

Request whole(const Header& header) {
  Request request{};
  request.height = header.upright_height();
  request.width = header.upright_width();
  request.box = {0, 0, request.height, request.width};
  request.filter = Filter::kAntialias;
  request.max_pixels = kMaxPixels;
  return request;
}

// The whole image as libjpeg alone reads it, stored order.
Status decode_by_libjpeg(const std::vector<uint8_t>& file, const Header& header, std::vector<uint8_t>* out) {
  const Box box{0, 0, header.height, header.width};
  JpegReader rows;
  Status status = rows.open(file.data(), file.size(), header.height, header.width, box, PixelFormat::kRgb);
  if (status != Status::kOk) return status;
  const size_t bytes = 3 * static_cast<size_t>(header.width);
  std::vector<uint8_t> row(rows.stride());
  out->resize(bytes * header.height);
  for (int y = 0; y < header.height && status == Status::kOk; ++y) {
    status = rows.next(row.data());
    std::memcpy(out->data() + y * bytes, row.data() + 3 * static_cast<size_t>(rows.skip()), bytes);
  }
  return status;
}

bool is_crop(const std::vector<uint8_t>& crop, const std::vector<uint8_t>& image, int width, const Box& box) {
  for (int y = 0; y < box.height; ++y) {
    const size_t at = 3 * (static_cast<size_t>(box.top + y) * width + box.left);
    const size_t bytes = 3 * static_cast<size_t>(box.width);
    if (std::memcmp(crop.data() + y * bytes, image.data() + at, bytes) != 0) return false;
  }
  return true;
}

bool is_regular(const std::vector<uint8_t>& file, const Header& header) {
  static BaselineStream stream;
  return stream.parse(file.data(), file.size(), header);
}

void check(const std::vector<uint8_t>& file, Header header, const Request& crop, const Request& resized,
           int tile, bool thorough) {
  std::vector<uint8_t> pixels, others, small;
  const Status cropped = decode(file, crop, &pixels);
  const Status shrunk = decode(file, resized, &small);
  if (header.format == Format::kPpm) {
    require(cropped == Status::kOk && shrunk == Status::kOk, "a PPM with a good header decodes");
    return;
  }
  const bool has_end = has_end_marker(file.data(), file.size(), header.body);
  const bool source_is_regular = is_regular(file, header);
  std::vector<uint8_t> image;
  const Status full = decode_by_libjpeg(file, header, &image);
  if (full == Status::kOk && has_end && header.orientation == 1) {
    require(cropped == Status::kOk && shrunk == Status::kOk,
            "what libjpeg decodes without a warning decodes");
    if (kIsVectorLibjpeg || !source_is_regular)
      require(is_crop(pixels, image, header.width, crop.box), "a crop is the crop of the whole image");
  }

  std::vector<uint8_t> tiled, again;
  if (tile_jpeg(file.data(), file.size(), header, tile, kMaxPixels, &tiled) != Status::kOk) return;
  if (tiled == file) return;
  require(full == Status::kOk && cropped == Status::kOk && shrunk == Status::kOk,
          "what can be tiled decodes");
  const Header twin = read_header(tiled.data(), tiled.size());
  require(twin.status == Status::kOk && twin.height == header.height && twin.width == header.width &&
              twin.orientation == header.orientation,
          "tiling keeps size and orientation");
  // Four components, or RGB, are libjpeg's.
  const bool tiled_is_regular = is_regular(tiled, twin);
  require(!source_is_regular || tiled_is_regular, "tiling keeps a file regular");
  if (thorough) {
    require(tile_jpeg(tiled.data(), tiled.size(), twin, tile, kMaxPixels, &again) == Status::kOk &&
                again == tiled,
            "tiling twice is tiling once");
  }
  require(decode(tiled, crop, &others) == Status::kOk, "a tiled file decodes");
  if (!kIsVectorLibjpeg) return;  // the one may be decoded by libjpeg, the other by PlaneReader
  require(pixels == others, "tiling keeps every pixel");
  require(decode(tiled, resized, &others) == Status::kOk && small == others,
          "tiling keeps every pixel, resized");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < kHead) return 0;
  // A buffer of exactly the file's size: a read behind it is seen.
  const std::vector<uint8_t> file(data + kHead, data + size);
  const Header header = read_header(file.data(), file.size());
  std::vector<uint8_t> out;
  Request request = whole(header);
  if (header.status != Status::kOk || static_cast<int64_t>(header.height) * header.width > kMaxPixels) {
    request.height = request.width = 1 + data[0] % 8;
    request.box = {0, 0, request.height, request.width};
    const Status status = decode(file, request, &out);
    require(status != Status::kOk, "without a good header there is no image");
    tile_jpeg(file.data(), file.size(), header, 1 + data[6], kMaxPixels, &out);
    return 0;
  }
  Box& box = request.box;
  box.top = data[0] * request.height / 256;
  box.left = data[1] * request.width / 256;
  box.height = 1 + data[2] * (request.height - box.top - 1) / 255;
  box.width = 1 + data[3] * (request.width - box.left - 1) / 255;
  request.mirror = false;
  Request resized = request;
  request.height = box.height;
  request.width = box.width;
  resized.height = 1 + data[4] % kMaxSide;
  resized.width = 1 + data[5] % kMaxSide;
  resized.mirror = (data[7] & 1) != 0;
  resized.filter = static_cast<Filter>(data[7] / 2 % 3);
  resized.exact = (data[7] & 8) != 0;
  check(file, header, request, resized, 1 + data[6], data[7] >= 192);
  return 0;
}
