// Runs calls of the operators that helpers/recorded.py has written, without torch: replay CALLS RESULTS
//
// For machines that have no torch, such as an emulated one. CALLS: for each call a text, the operator's name,
// and the arguments; RESULTS: the bytes of each call's result, preceded by their number. See `Value`.

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <string>
#include <vector>

#include "base/simd.h"
#include "batch/engine.h"
#include "batch/programs.h"
#include "batch/warp_rows.h"
#include "image/decode.h"
#include "image/normalise.h"
#include "jpeg/transcode.h"

namespace {

using namespace tarpeg;
using Bytes = std::vector<uint8_t>;

void require(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "replay: %s\n", what);
  std::exit(1);
}

std::FILE* calls;

template <class T>
T read() {
  T value;
  require(std::fread(&value, sizeof value, 1, calls) == 1, "the file of calls ends early");
  return value;
}

Bytes read_bytes(size_t count) {
  Bytes bytes(count);
  require(std::fread(bytes.data(), 1, count, calls) == count, "the file of calls ends early");
  return bytes;
}

// An argument: one byte for its kind, its length or value as int64, and what follows.
struct Value {
  char kind;       // n: none, i: integer, f: numbers, s: text, t: tensor, l: list
  int64_t number;  // of integers; otherwise how many numbers, bytes or values follow
  std::vector<double> numbers;
  std::vector<Value> list;
  Bytes bytes;                 // of texts, and of tensors, in the order of memory
  std::vector<int64_t> sizes;  // of tensors
  bool is_planar;              // or channels_last
  Number type;

  static Value next() {
    Value value{};
    value.kind = read<char>();
    value.number = read<int64_t>();
    const size_t count = static_cast<size_t>(value.number);
    if (value.kind == 'f') {
      for (size_t i = 0; i < count; ++i) value.numbers.push_back(read<double>());
    } else if (value.kind == 'l') {
      for (size_t i = 0; i < count; ++i) value.list.push_back(next());
    } else if (value.kind == 's') {
      value.bytes = read_bytes(count);
    } else if (value.kind == 't') {
      value.type = static_cast<Number>(read<char>());
      value.is_planar = read<char>() != 0;
      for (int64_t i = read<int64_t>(); i > 0; --i) value.sizes.push_back(read<int64_t>());
      value.bytes = read_bytes(count);
    }
    return value;
  }

  std::string text() const { return {bytes.begin(), bytes.end()}; }
  int integer() const { return static_cast<int>(number); }
  template <class T>
  const T* data() const {
    return kind == 'n' ? nullptr : reinterpret_cast<const T*>(bytes.data());
  }
  BatchLayout layout() const { return {sizes[0], sizes[1], sizes[2], sizes[3], is_planar}; }
};

Filter filter_of(const std::string& name, bool antialias) {
  if (name == "nearest") return Filter::kNearest;
  if (name == "nearest-exact") return Filter::kNearestExact;
  if (name == "bilinear") return antialias ? Filter::kAntialias : Filter::kBilinear;
  if (name == "bicubic") return antialias ? Filter::kBicubic : Filter::kSharpBicubic;
  return name == "lanczos" ? Filter::kLanczos : Filter::kBox;
}

// How decode_batch and decode_sizes_out want the images of a call.
struct Decoding {
  const std::vector<Value>& jpegs;
  const int32_t* boxes;
  const uint8_t* flip;
  Filter filter;
  bool exact;
  int64_t max_pixels;
};

// Images [begin, begin + count) of a call, one after the other; neighbours of one file are decoded together.
Bytes decode(const Decoding& of, size_t begin, size_t count, int channels, int height, int width) {
  const size_t numbers = static_cast<size_t>(channels) * height * width;
  Bytes images(count * numbers);
  for (size_t i = begin; i < begin + count;) {
    const Bytes& file = of.jpegs[i].bytes;
    std::vector<View> views;
    for (; i < begin + count && of.jpegs[i].bytes == file; ++i) {
      const int32_t* box = of.boxes + 4 * i;
      const bool mirror = of.flip != nullptr && of.flip[i] != 0;
      const Request request{{box[0], box[1], box[2], box[3]},
                            height,
                            width,
                            mirror,
                            of.filter,
                            of.exact,
                            of.max_pixels,
                            channels == 1};
      views.push_back({request, images.data() + (i - begin) * numbers, Status::kCorrupt});
    }
    Header header;
    decode_views(file.data(), file.size(), views.data(), static_cast<int>(views.size()), &header);
    for (const View& view : views) {
      if (view.status != Status::kOk) std::memset(view.out, 0, numbers);
    }
  }
  return images;
}

Bytes decode_batch(const std::vector<Value>& a) {
  const Decoding of{
      a[0].list,        a[1].data<int32_t>(), a[4].data<uint8_t>(), filter_of(a[5].text(), a[6].number != 0),
      a[7].number != 0, a[8].number};
  return decode(of, 0, a[0].list.size(), a[10].integer(), a[2].integer(), a[3].integer());
}

Bytes decode_sizes_out(const std::vector<Value>& a) {
  const Decoding of{
      a[0].list,        a[1].data<int32_t>(), a[2].data<uint8_t>(), filter_of(a[3].text(), a[4].number != 0),
      a[5].number != 0, a[6].number};
  Bytes all;
  size_t begin = 0;
  for (const Value& out : a[8].list) {
    const size_t count = static_cast<size_t>(out.sizes[0]);
    const int channels = static_cast<int>(out.sizes[1]), height = static_cast<int>(out.sizes[2]),
              width = static_cast<int>(out.sizes[3]);
    const Bytes images = decode(of, begin, count, channels, height, width);
    begin += count;
    if (out.type == Number::kUint8) {
      all.insert(all.end(), images.begin(), images.end());
      continue;
    }
    Normalisation how;
    const float* numbers = a[7].data<float>();
    std::copy(numbers, numbers + channels, how.scale);
    std::copy(numbers + channels, numbers + 2 * channels, how.shift);
    Bytes normalised(out.bytes.size());
    const int64_t pixels = int64_t{height} * width;
    for (size_t i = 0; i < count; ++i) {
      const Target target{normalised.data() + i * normalised.size() / count,
                          out.type,
                          height,
                          width,
                          channels == 1 || out.is_planar,
                          false};
      normalise({images.data() + i * channels * pixels, channels, 1, false, channels}, how, 0, pixels,
                target);
    }
    all.insert(all.end(), normalised.begin(), normalised.end());
  }
  return all;
}

Bytes decode_crop(const std::vector<Value>& a) {
  const Box box{a[1].integer(), a[2].integer(), a[3].integer(), a[4].integer()};
  Bytes image(3 * static_cast<size_t>(box.height) * box.width);
  Request request{box, box.height, box.width, false, Filter::kNearest, true, a[5].number};
  Header header;
  require(decode_image(a[0].bytes.data(), a[0].bytes.size(), request, &header, image.data()) == Status::kOk,
          "a crop");
  return image;
}

Bytes tile(const std::vector<Value>& a) {
  const Bytes& file = a[0].bytes;
  Bytes tiled;
  tile_jpeg(file.data(), file.size(), read_header(file.data(), file.size()), a[1].integer(), a[2].number,
            &tiled);
  return tiled;
}

Bytes pack(const std::vector<Value>& a) {
  const Bytes& file = a[0].bytes;
  Bytes packed;
  pack_jpeg(file.data(), file.size(), read_header(file.data(), file.size()), a[1].integer(), a[2].number,
            &packed);
  return packed;
}

Bytes unpack(const std::vector<Value>& a) {
  const Bytes& file = a[0].bytes;
  Bytes jpeg;
  unpack_jpeg(file.data(), file.size(), read_header(file.data(), file.size()), a[1].number, &jpeg);
  return jpeg;
}

Bytes warp_affine(const std::vector<Value>& a) {
  Bytes out(a[6].bytes.size());
  WarpJob job{a[0].layout(), a[6].layout(),    a[0].bytes.data(), a[1].data<double>(), {},
              a[2].number,   a[3].number != 0, a[4].number != 0,  a[0].type,           out.data()};
  std::copy(a[2].numbers.begin(), a[2].numbers.end(), job.fill);
  for (int64_t i = 0; i < job.to.count; ++i) {
    const Affine map = affine_of(job.matrices + 6 * i, job.inverse);
    if (job.type == Number::kFloat32) {
      warp_any<float>(job, map, i, 0, job.to.height);
    } else if (job.to.channels == 3) {
      warp_rgb(job, map, i, 0, job.to.height);
    } else {
      warp_any<uint8_t>(job, map, i, 0, job.to.height);
    }
  }
  return out;
}

Bytes run_batch(const std::vector<Value>& a) {
  const Value &ops = a[1], &numbers = a[6], &boxes = a[8], &mask = a[9], &target = a[12];
  Bytes out(target.bytes.size());
  BatchJob job{};
  job.from = a[0].layout();
  job.to = target.layout();
  job.images = a[0].bytes.data();
  job.type = target.type;
  job.out = out.data();
  Programs& programs = job.programs;
  programs.ops = ops.data<int32_t>();
  programs.values = a[2].data<float>();
  programs.weights = a[3].data<float>();
  if (!ops.sizes.empty()) programs.chains = ops.sizes[1], programs.length = ops.sizes[2];
  programs.nearest = a[4].number != 0;
  programs.has_fill = a[5].number != 0;
  for (size_t i = 0; i < a[5].numbers.size(); ++i) programs.fill[i] = static_cast<float>(a[5].numbers[i]);
  FinalPass& pass = job.pass;
  pass.numbers = numbers.data<double>();
  pass.parts = a[7].integer();
  pass.boxes = boxes.data<int32_t>();
  if (pass.boxes) pass.box_count = boxes.sizes[1], pass.box_columns = boxes.sizes[2];
  pass.mask = mask.data<uint8_t>();
  if (pass.mask) pass.mask_height = mask.sizes[1], pass.mask_width = mask.sizes[2];
  for (size_t i = 0; i < a[10].numbers.size() / 3; ++i) {
    pass.fill[i] = static_cast<float>(a[10].numbers[i]);
    pass.how.scale[i] = static_cast<float>(a[10].numbers[3 + i]);
    pass.how.shift[i] = static_cast<float>(a[10].numbers[6 + i]);
  }
  for (int64_t piece = 0; piece < pieces_of(job); ++piece) run_piece(job, piece);
  return out;
}

struct Operator {
  const char* name;
  Bytes (*run)(const std::vector<Value>&);
};
constexpr Operator kOperators[] = {{"decode_batch", decode_batch},
                                   {"decode_sizes_out", decode_sizes_out},
                                   {"decode_crop", decode_crop},
                                   {"tile_jpeg", tile},
                                   {"pack_jpeg", pack},
                                   {"unpack_jpeg", unpack},
                                   {"warp_affine", warp_affine},
                                   {"run_batch", run_batch}};

}  // namespace

int main(int count, char** arguments) {
  require(count == 3, "usage: replay CALLS RESULTS");
  calls = std::fopen(arguments[1], "rb");
  std::FILE* results = std::fopen(arguments[2], "wb");
  require(calls != nullptr && results != nullptr, "cannot open the files");
  for (int next = std::fgetc(calls); next != EOF; next = std::fgetc(calls)) {
    std::ungetc(next, calls);
    const Value call = Value::next();
    const Operator* found = nullptr;
    for (const Operator& one : kOperators) {
      if (call.list[0].text() == one.name) found = &one;
    }
    require(found != nullptr, "unknown operator");
    const Bytes bytes = found->run({call.list.begin() + 1, call.list.end()});
    const int64_t size = static_cast<int64_t>(bytes.size());
    std::fwrite(&size, sizeof size, 1, results);
    std::fwrite(bytes.data(), 1, bytes.size(), results);
  }
  require(std::fclose(results) == 0, "cannot write the results");
  std::puts(vectors_name());
  return 0;
}
