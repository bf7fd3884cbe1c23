#include "gather/gather.h"

#include <algorithm>
#include <cstring>

#include "gather/plan.h"
#include "jpeg/entropy.h"
#include "jpeg/zigzag.h"

namespace tarpeg::gather {
namespace {

// A thread keeps it from image to image.
struct Scratch {
  BaselineStream stream;
  PackedImage packed;
};

constexpr uint64_t rounded(uint64_t bytes) noexcept { return (bytes + kUnit - 1) / kUnit * kUnit; }

void describe_frame(const Frame& frame, Image* image) noexcept {
  image->components = static_cast<uint8_t>(frame.component_count);
  for (int i = 0; i < frame.component_count; ++i) {
    const Component& component = frame.components[i];
    image->sampling[i] = static_cast<uint8_t>(component.across << 4 | component.down);
    for (int k = 0; k < 64; ++k) image->quantisers[i][k] = component.quantisers[kZigzag[k]];
  }
}

void copy_code(const HuffmanCode& code, Table* table) noexcept {
  *table = {};
  for (int length = 1; length <= 16; ++length) {
    const uint32_t codes = (code.limits[length] - code.limits[length - 1]) >> (32 - length);
    table->counts[length - 1] = static_cast<uint8_t>(codes);
  }
  std::memcpy(table->symbols, code.symbols, static_cast<size_t>(code.count));
}

// The tables of each component, those that several have once.
void add_tables(const BaselineStream& stream, Source* source) noexcept {
  Image& image = source->image;
  for (int i = 0; i < stream.component_count; ++i) {
    const Component& component = stream.components[i];
    int dc = -1, ac = -1;
    for (int before = 0; before < i; ++before) {
      if (stream.components[before].dc_table == component.dc_table) dc = image.dc_table[before];
      if (stream.components[before].ac_table == component.ac_table) ac = image.ac_table[before];
    }
    if (dc < 0) copy_code(stream.dc_tables[component.dc_table], source->tables + (dc = image.tables++));
    if (ac < 0) copy_code(stream.ac_tables[component.ac_table], source->tables + (ac = image.tables++));
    image.dc_table[i] = static_cast<uint8_t>(dc);
    image.ac_table[i] = static_cast<uint8_t>(ac);
  }
}

Status find_tiles(const PackedImage& packed, const Plan& plan, Source* source) {
  for (int row = plan.first_row; row <= plan.last_row; ++row) {
    for (int tile = plan.first_tile; tile < plan.first_tile + plan.tiles; ++tile) {
      Source::Part part;
      if (!packed.find(row, tile, &part.data, &part.size)) return Status::kCorrupt;
      source->parts.push_back(part);
      source->room += rounded(part.size);
    }
  }
  return Status::kOk;
}

Status find_segments(const BaselineStream& stream, const Plan& plan, Source* source) {
  const int per_row = stream.mcu_columns / stream.interval;
  for (int row = plan.first_row; row <= plan.last_row; ++row) {
    for (int tile = plan.first_tile; tile < plan.first_tile + plan.tiles; ++tile) {
      const size_t segment = static_cast<size_t>(row) * per_row + tile;
      if (segment < stream.first_segment || segment >= stream.end_segment) return Status::kNotGathered;
      const ptrdiff_t size = stream.ends[segment] - stream.starts[segment];
      if (size > UINT32_MAX / 2) return Status::kNotGathered;
      source->parts.push_back({stream.starts[segment], static_cast<uint32_t>(size)});
      source->room += rounded(static_cast<uint64_t>(size));
    }
  }
  return Status::kOk;
}

Status find(const uint8_t* data, size_t size, const Request& request, const Header& header, Scratch* scratch,
            Source* source) {
  tarpeg::Header& file = source->header;
  file = tarpeg::read_header(data, size);
  if (const Status status = check_request(request, file); status != Status::kOk) return status;
  const bool is_packed = file.format == Format::kPacked;
  if (!is_packed && file.format != Format::kJpeg) return Status::kNotGathered;
  Image& image = source->image;
  image.kind = static_cast<uint8_t>(is_packed ? Kind::kPacked : Kind::kSegments);
  image.orientation = static_cast<uint8_t>(file.orientation);
  image.mirror = request.mirror;
  image.height = static_cast<uint16_t>(file.height);
  image.width = static_cast<uint16_t>(file.width);
  image.top = request.box.top;
  image.left = request.box.left;
  image.box_height = request.box.height;
  image.box_width = request.box.width;
  const PackedImage& packed = scratch->packed;
  const BaselineStream& stream = scratch->stream;
  if (is_packed) {
    if (const Status status = scratch->packed.parse(data, size, file); status != Status::kOk) return status;
    describe_frame(packed, &image);
    image.tile = static_cast<uint16_t>(packed.tile_mcus);
    image.unit = static_cast<uint8_t>(packed.unit());
    const TileShape shape = packed.shape(0);
    for (int i = 0; i < packed.component_count; ++i)
      image.dc_bytes[i] = static_cast<uint8_t>(shape.dc_bytes[i]);
  } else {
    if (!has_end_marker(data, size, file.body)) return Status::kTruncated;
    const Box box = stored_box(image);
    const bool swap = Orientation::from_exif(image.orientation).swap;
    const int times =
        reduction_of(request.filter, request.exact, box.height, box.width,
                     swap ? request.width : request.height, swap ? request.height : request.width);
    const RowRange rows = rows_of(box, times);
    const bool is_regular = scratch->stream.parse(data, size, file, rows, false);
    if (!is_regular || !stream.is_decodable) return Status::kNotGathered;
    if (stream.mcu_columns % stream.interval != 0) return Status::kNotGathered;
    describe_frame(stream, &image);
    image.tile = static_cast<uint16_t>(stream.interval);
    add_tables(stream, source);
  }
  Plan plan{};
  plan.image = image;
  if (!plan_geometry(header, &plan)) return Status::kNotGathered;
  image.pieces = plan.pieces;
  image.work = plan.work;
  source->room = sizeof(Table) * image.tables + kGuard;
  source->parts.reserve(plan.pieces);
  return is_packed ? find_tiles(packed, plan, source) : find_segments(stream, plan, source);
}

}  // namespace

void find_parts(const uint8_t* data, size_t size, const Request& request, const Header& header,
                Source* source) {
  static thread_local Scratch scratch;
  source->image = {};
  source->status = find(data, size, request, header, &scratch, source);
  if (source->status != Status::kOk) {
    source->image = {};
    source->parts.clear();
    source->room = 0;
  }
  if (scratch.stream.bytes() > kMostKept) scratch = Scratch();
}

void copy_parts(Source* source, uint8_t* tensor, uint64_t at, Piece* pieces) {
  Image& image = source->image;
  const bool has_stuffing = image.kind == static_cast<uint8_t>(Kind::kSegments);
  image.tables_at = static_cast<uint32_t>(at / kUnit);
  const size_t tables = sizeof(Table) * image.tables;
  std::memcpy(tensor + at, source->tables, tables);
  at += tables;
  for (const Source::Part& part : source->parts) {
    uint8_t* const to = tensor + at;
    size_t size = part.size;
    if (has_stuffing) {
      // Writes up to kReadAhead bytes more, which the next part or the guard overwrite.
      const ptrdiff_t plain = remove_stuffing(part.data, size, to);
      if (plain < 0) source->status = Status::kNotGathered;
      size = static_cast<size_t>(std::max<ptrdiff_t>(plain, 0));
    } else {
      std::memcpy(to, part.data, size);
    }
    std::memset(to + size, 0, rounded(part.size) - size);
    *pieces++ = {static_cast<uint32_t>(at / kUnit), static_cast<uint32_t>(size)};
    at += rounded(part.size);
  }
  std::memset(tensor + at, 0, kGuard);
}

Image record_of(const Source& source) {
  if (source.status == Status::kOk) return source.image;
  Image image{};
  image.status = static_cast<int32_t>(source.status);
  image.work = source.image.work;
  return image;
}

}  // namespace tarpeg::gather
