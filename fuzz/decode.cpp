// A libFuzzer target over the decoders: header, entropy decoding, resampling, normalising, transcoding.
//
// The first kHead bytes of an input are choices; the rest is the file. Apart from the errors that the
// sanitisers report, it aborts if one of these does not hold:
// - the results of PlaneReader, and of libjpeg's crops, are crops of the whole image as libjpeg decodes it;
// - vector code and portable code give the same bytes;
// - views that are decoded together are those of each box alone;
// - a file that tile_jpeg() accepts decodes, its tiled twin decodes to the same pixels and is a regular
//   stream; tiling the twin again changes nothing. Packed it has the same pixels, too.
// Each input makes some of these checks (`Choices`): inputs are faster, and the choice mutates as well.
//
// An index that fits the crop's rows alone was made to show other tiles (Note [row index]): no pixel is
// compared then. Files that are damaged promise nothing but a status. libjpeg's vector code and its C code
// differ where coefficients overflow 16 bits, and PlaneReader follows the vector code: with
// JSIMD_FORCENONE=1, which lets the sanitisers see more of libjpeg, it is not compared.

#include "image/decode.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <vector>

#include "base/simd.h"
#include "image/normalise.h"
#include "jpeg/libjpeg.h"
#include "jpeg/transcode.h"

namespace {

bool with_vectors = true, with_avx512 = true;

}  // namespace

// Instead of base/simd.cpp: all kinds of code run in one process.
tarpeg::Vectors tarpeg::vectors() noexcept {
#if defined(__x86_64__)
  if (with_vectors && with_avx512 && __builtin_cpu_supports("avx512vbmi2")) return Vectors::kAvx512;
  if (with_vectors && __builtin_cpu_supports("avx2")) return Vectors::kAvx2;
#endif
  return Vectors::kNone;
}

namespace {

using namespace tarpeg;

constexpr size_t kHead = 10;
constexpr int64_t kMaxPixels = 1 << 13;  // enough for means of 8 x 8 pixels
constexpr int kMaxSide = 80;
const bool kIsVectorLibjpeg = std::getenv("JSIMD_FORCENONE") == nullptr;

// The first bytes of an input.
struct Choices {
  uint8_t box[4], size[2], tile, options, checks, numbers;

  bool mirror() const { return (options & 1) != 0; }
  Filter filter() const { return static_cast<Filter>(options / 2 % 4 + (options & 32) / 8); }
  bool exact() const { return (options & 8) != 0; }
  bool is_gray() const { return (numbers & 64) != 0; }
  bool portable() const { return (options & 16) != 0; }
  bool lacks_avx512() const { return (numbers & 128) != 0; }
  // Of four inputs one makes every check, and the others one each.
  bool checks_crop() const { return checks % 4 == 0 || checks % 4 == 3; }
  bool checks_vectors() const { return checks % 4 == 1 || checks % 4 == 3; }
  bool checks_tiling() const { return checks % 4 == 2 || checks % 4 == 3; }
  bool checks_views() const { return (checks & 24) == 0; }
  bool tiles_twice() const { return (checks & 4) != 0; }
  // libjpeg may allocate little.
  bool lacks_memory() const { return checks >= 192 && checks < 224; }
  // The file changes after its header was read, as a mapped file may.
  bool is_stale() const { return checks >= 224; }
};
static_assert(sizeof(Choices) == kHead);

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

// The whole image as libjpeg alone reads it, stored order. `is_checked`: PlaneReader has judged it. `to_end`:
// libjpeg judges the data after the image.
Status decode_by_libjpeg(const std::vector<uint8_t>& file, const Header& header, bool is_checked, bool to_end,
                         std::vector<uint8_t>* out) {
  const Box box{0, 0, header.height, header.width};
  JpegReader rows;
  Status status = rows.open(file.data(), file.size(), header.height, header.width, box, false, is_checked);
  if (status != Status::kOk) return status;
  const size_t bytes = 3 * static_cast<size_t>(header.width);
  std::vector<uint8_t> row(rows.stride());
  out->resize(bytes * header.height);
  for (int y = 0; y < header.height && status == Status::kOk; ++y) {
    status = rows.next(row.data());
    std::memcpy(out->data() + y * bytes, row.data() + 3 * static_cast<size_t>(rows.skip()), bytes);
  }
  return to_end && status == Status::kOk ? rows.finish() : status;
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
  return stream.parse(file.data(), file.size(), header) && stream.is_decodable;
}

// Whether the index of rows fits less than all of them.
bool has_wrong_index(const std::vector<uint8_t>& file, const Header& header) {
  static BaselineStream stream;
  stream.parse(file.data(), file.size(), header);
  return stream.has_index && !stream.is_indexed;
}

// Normalises the bytes of an image with and without vector code.
void check_normalising(const std::vector<uint8_t>& bytes, const Request& image, uint8_t choice) {
  const Number types[] = {Number::kFloat32, Number::kFloat16, Number::kBFloat16};
  const Number type = types[choice % 3];
  const int64_t count = static_cast<int64_t>(image.height) * image.width;
  const bool planar = (choice & 4) != 0, from_planes = (choice & 8) != 0, backwards = (choice & 16) != 0;
  const int64_t pixel = from_planes ? 1 : 3, last = backwards ? count - 1 : 0;
  const RgbRow row{bytes.data() + last * pixel, pixel, from_planes ? count : 1, backwards};
  const Normalisation how{{1 / 58.f, 1 / 57.f, -3}, {-2.1f, 0.5f, static_cast<float>(choice)}};
  std::vector<uint8_t> results[2];
  for (const bool vectors : {false, true}) {
    with_vectors = vectors;
    results[vectors].resize(3 * static_cast<size_t>(count * size_of(type)));
    normalise(row, how, 0, count,
              {results[vectors].data(), type, image.height, image.width, planar, (choice & 32) != 0});
    finish_stores();
  }
  require(results[0] == results[1], "vector code normalises as portable code does");
}

void check_vectors(const std::vector<uint8_t>& file, const Request& request, uint8_t numbers) {
  std::vector<uint8_t> pixels, others;
  with_vectors = true;
  const Status status = decode(file, request, &pixels);
  with_vectors = false;
  require(decode(file, request, &others) == status, "vector code and portable code give one status");
  if (status != Status::kOk) return;
  require(pixels == others, "vector code and portable code give the same pixels");
  check_normalising(pixels, request, numbers);
}

// Boxes of several reductions, a copy among them.
void check_views(const std::vector<uint8_t>& file, const Header& header, const Request& copy,
                 const Request& resized) {
  Request small = resized, flipped = resized, all = whole(header);
  small.height = small.width = 4;
  flipped.mirror = !flipped.mirror;
  flipped.height = flipped.width = kMaxSide;
  all.height = all.width = 5;
  Request requests[] = {resized, small, flipped, all, copy};
  std::vector<uint8_t> outs[5], alone;
  std::vector<View> views;
  for (int i = 0; i < 5; ++i) {
    requests[i].is_gray = resized.is_gray;
    outs[i].assign(3 * static_cast<size_t>(requests[i].height) * requests[i].width, 0xA5);
    views.push_back({requests[i], outs[i].data(), Status::kCorrupt});
  }
  Header found;
  const bool is_wrong = has_wrong_index(file, header);
  decode_views(file.data(), file.size(), views.data(), 5, &found);
  for (int i = 0; i < 5; ++i) {
    const Status status = decode(file, requests[i], &alone);
    require(is_wrong || views[i].status == status, "a view has the status of its box alone");
    require(is_wrong || status != Status::kOk || outs[i] == alone, "a view has the pixels of its box alone");
  }
}

// Decodes and tiles a file whose bytes are no longer those that the header was read from.
void check_stale(std::vector<uint8_t> file, const Header& header, const Choices& choices) {
  const auto change = [&](int high, int low, uint8_t value) {
    file[static_cast<size_t>(high << 8 | low) % file.size()] = value;
  };
  change(choices.box[0], choices.box[1], choices.box[2]);
  change(choices.box[3], choices.size[0], choices.size[1]);
  const Box box{0, 0, header.height, header.width};
  static BaselineStream stream;
  static PlaneReader planes;
  std::vector<uint8_t> out;
  for (const int reduction : {1, 2}) {
    if (stream.parse(file.data(), file.size(), header) &&
        planes.check(stream, header.height) != Status::kCorrupt && stream.is_decodable &&
        planes.decode(stream, box, reduction, PixelFormat::kRgb) == Status::kOk) {
      out.resize(planes.stride());
      for (int y = 0; y < reduced(box, reduction).height; ++y) planes.next(out.data());
    }
    planes.decode(file.data(), file.size(), header, box, reduction, PixelFormat::kRgb, choices.tiles_twice());
  }
  decode_by_libjpeg(file, header, choices.tiles_twice(), true, &out);
  if (tile_jpeg(file.data(), file.size(), header, choices.tile + 1, kMaxPixels, &out) != Status::kOk) return;
  if (out == file) return;
  const Header tiled = read_header(out.data(), out.size());
  require(tiled.status == Status::kOk && tiled.height == header.height && tiled.width == header.width,
          "a file that changed is not tiled at another size");
}

// Memory that runs out is not damage.
void check_memory(const std::vector<uint8_t>& file, const Header& header, const Request& request, int tile) {
  std::vector<uint8_t> out;
  Status decoded[2], tiled[2];
  for (const bool is_limited : {false, true}) {
    if (is_limited) setenv("JPEGMEM", "1", 1);
    decoded[is_limited] = decode(file, request, &out);
    tiled[is_limited] = tile_jpeg(file.data(), file.size(), header, tile, kMaxPixels, &out);
    unsetenv("JPEGMEM");
  }
  require((decoded[1] == decoded[0] || decoded[1] == Status::kOutOfMemory) &&
              (tiled[1] == tiled[0] || tiled[1] == Status::kOutOfMemory),
          "without memory the status is the same, or kOutOfMemory");
}

void check(const std::vector<uint8_t>& file, const Header& header, const Request& crop,
           const Request& resized, const Choices& choices) {
  with_vectors = !choices.portable();
  std::vector<uint8_t> pixels, others, small;
  const Status cropped = decode(file, crop, &pixels);
  if (header.format == Format::kPpm) require(cropped == Status::kOk, "a PPM with a good header decodes");
  if (header.format != Format::kJpeg) return;
  if (!choices.checks_crop() && !choices.checks_tiling()) return;
  const bool has_end = has_end_marker(file.data(), file.size(), header.body);
  // See Note [padding]: a file that can be parsed is judged by PlaneReader, all others by libjpeg.
  static BaselineStream stream;
  static PlaneReader planes;
  const Status judged = stream.parse(file.data(), file.size(), header) ? planes.check(stream, header.height)
                                                                       : Status::kUnsupported;
  const bool source_is_regular = is_regular(file, header), is_checked = judged == Status::kOk;
  const bool is_wrong = has_wrong_index(file, header);
  std::vector<uint8_t> image;
  const Status full =
      judged == Status::kCorrupt
          ? judged
          : decode_by_libjpeg(file, header, is_checked, !is_checked || !source_is_regular, &image);
  const Status shrunk = choices.checks_tiling() ? decode(file, resized, &small) : cropped;
  if (full == Status::kOk && has_end && header.orientation == 1) {
    require(cropped == Status::kOk && shrunk == Status::kOk,
            "what libjpeg decodes without a warning decodes");
    if ((kIsVectorLibjpeg || !source_is_regular) && !is_wrong)
      require(is_crop(pixels, image, header.width, crop.box), "a crop is the crop of the whole image");
  }
  if (!choices.checks_tiling()) return;

  std::vector<uint8_t> tiled, again;
  const int tile = choices.tile + 1;
  if (tile_jpeg(file.data(), file.size(), header, tile, kMaxPixels, &tiled) != Status::kOk) return;
  require(pack_jpeg(file.data(), file.size(), header, tile, kMaxPixels, &others) == Status::kOk,
          "what can be tiled can be packed, or stays a JPEG");
  const bool is_packed = read_header(others.data(), others.size()).format == Format::kPacked;
  require(is_packed || others == tiled, "what cannot be packed is tiled");
  if (tiled == file && !is_packed) return;
  std::vector<uint8_t> twice;
  if (is_packed) {
    require(decode(others, crop, &again) == Status::kOk && decode(others, resized, &twice) == Status::kOk,
            "a packed file decodes");
  }
  if (is_packed && kIsVectorLibjpeg) require(again == pixels && twice == small, "packing keeps every pixel");
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
  if (choices.tiles_twice()) {
    require(tile_jpeg(tiled.data(), tiled.size(), twin, tile, kMaxPixels, &again) == Status::kOk &&
                again == tiled,
            "tiling twice is tiling once");
  }
  require(decode(tiled, crop, &others) == Status::kOk, "a tiled file decodes");
  if (!kIsVectorLibjpeg || is_wrong) return;  // the one may be decoded by libjpeg, the other by PlaneReader
  require(pixels == others, "tiling keeps every pixel");
  require(decode(tiled, resized, &others) == Status::kOk && small == others,
          "tiling keeps every pixel, resized");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < kHead) return 0;
  Choices choices;
  std::memcpy(&choices, data, kHead);
  // A buffer of exactly the file's size: a read behind it is seen.
  const std::vector<uint8_t> file(data + kHead, data + size);
  const Header header = read_header(file.data(), file.size());
  const int tile = choices.tile + 1;
  std::vector<uint8_t> out;
  Request request = whole(header);
  with_vectors = !choices.portable();
  with_avx512 = !choices.lacks_avx512();
  if (header.status != Status::kOk || static_cast<int64_t>(header.height) * header.width > kMaxPixels) {
    request.height = request.width = 1 + choices.size[0] % 8;
    request.box = {0, 0, request.height, request.width};
    require(decode(file, request, &out) != Status::kOk, "without a good header there is no image");
    require(tile_jpeg(file.data(), file.size(), header, tile, kMaxPixels, &out) != Status::kOk,
            "without a good header there is no tiled file");
    return 0;
  }
  if (choices.is_stale()) {
    if (header.format == Format::kJpeg) check_stale(file, header, choices);
    return 0;
  }
  Box& box = request.box;
  box.top = choices.box[0] * request.height / 256;
  box.left = choices.box[1] * request.width / 256;
  box.height = 1 + choices.box[2] * (request.height - box.top - 1) / 255;
  box.width = 1 + choices.box[3] * (request.width - box.left - 1) / 255;
  request.mirror = false;
  Request resized = request;
  request.height = box.height;
  request.width = box.width;
  // Small results are the most frequent: means are used for strong reductions only.
  resized.height = 1 + choices.size[0] * choices.size[0] * kMaxSide / (256 * 256);
  resized.width = 1 + choices.size[1] * choices.size[1] * kMaxSide / (256 * 256);
  resized.mirror = choices.mirror();
  resized.filter = choices.filter();
  resized.exact = choices.exact();
  resized.is_gray = choices.is_gray();
  if (choices.lacks_memory()) return check_memory(file, header, resized, tile), 0;
  if (choices.checks_views()) check_views(file, header, request, resized);
  if (choices.checks_vectors()) check_vectors(file, resized, choices.numbers);
  check(file, header, request, resized, choices);
  return 0;
}
