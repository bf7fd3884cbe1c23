#include "image/decode.h"

#include <algorithm>
#include <cstring>

#include "image/method.h"
#include "image/pixels.h"
#include "image/ppm.h"
#include "jpeg/libjpeg.h"

namespace tarpeg {
namespace {

// The memory that one thread keeps from image to image.
struct Scratch {
  Resampler resampler;
  BaselineStream stream;
  PackedImage packed;
  PlaneReader planes[4];  // of reduction 1, 2, 4, 8; the first also of each box alone
  std::vector<uint8_t> row;

  size_t bytes() const noexcept {
    size_t sum = resampler.bytes() + stream.bytes() + held_bytes(row);
    for (const PlaneReader& reader : planes) sum += reader.bytes();
    return sum;
  }
};

// The box at its own size: rows are copied, pixels only turned upright.
Status copy_rows(RowSource& rows, const Box& box, size_t pixel_bytes, const Placement& place,
                 std::vector<uint8_t>* row) {
  if (row->size() < rows.stride()) row->resize(rows.stride());
  const uint8_t* pixels = row->data() + pixel_bytes * static_cast<size_t>(rows.skip());
  const size_t bytes = pixel_bytes * static_cast<size_t>(box.width);
  const bool is_in_order = place.column_step == static_cast<ptrdiff_t>(pixel_bytes);
  const bool is_exact = is_in_order && rows.stride() == bytes;
  for (int y = 0; y < box.height; ++y) {
    uint8_t* const line = place.origin + y * place.row_step;
    const Status status = rows.next(is_exact ? line : row->data());
    if (status != Status::kOk) return status;
    if (is_exact) continue;
    if (is_in_order) {
      std::memcpy(line, pixels, bytes);
    } else if (place.column_step == -static_cast<ptrdiff_t>(pixel_bytes)) {
      reverse_pixels(pixels, box.width, pixel_bytes, line + (box.width - 1) * place.column_step);
    } else {
      scatter_pixels(pixels, box.width, pixel_bytes, place.column_step, line);
    }
  }
  return Status::kOk;
}

// A request in stored order.
struct StoredRequest {
  Orientation orientation;
  Box box;
  int out_rows, out_columns, reduction;
  bool by_planes;  // Y, Cb and Cr, if the image has them, are resampled, not RGB
};

StoredRequest stored_request(const Request& request, const Header& header) noexcept {
  const Orientation orientation = Orientation::from_exif(header.orientation);
  const Box box = orientation.stored(request.box, header.height, header.width);
  const int rows = orientation.swap ? request.width : request.height;
  const int columns = orientation.swap ? request.height : request.width;
  const int reduction = reduction_of(request.filter, request.exact, box.height, box.width, rows, columns);
  const bool is_copy = request.box.height == request.height && request.box.width == request.width;
  const bool by_planes = !request.is_gray && !is_copy &&
                         takes_planes(request.filter, request.exact, reduction, box.height, rows);
  return {orientation, box, rows, columns, reduction, by_planes};
}

bool is_inside(const Request& request, const Header& header) noexcept {
  return static_cast<int64_t>(header.height) * header.width <= request.max_pixels &&
         request.box.is_inside(header.upright_height(), header.upright_width());
}

// `ready`: the reduction of the samples that scratch->planes already hold of this box; 0 if it has none.
Status decode(const uint8_t* data, size_t size, const Request& request, int ready, Scratch* scratch,
              Header* header, uint8_t* out) {
  // What was decoded by this header is read by it: the file may be mapped and have changed since then.
  if (ready == 0) *header = read_header(data, size);
  if (const Status status = check_request(request, *header); status != Status::kOk) return status;

  const StoredRequest stored = stored_request(request, *header);
  const Orientation& orientation = stored.orientation;
  const Box& box = stored.box;
  const int reduction = stored.reduction;
  const int channels = request.is_gray ? 1 : 3;
  const ptrdiff_t row_step =
      request.row_step != 0 ? request.row_step : channels * static_cast<ptrdiff_t>(request.width);
  const Placement place =
      Placement::upright(out, request.height, request.width, row_step, channels, orientation, request.mirror);
  const bool is_copy = request.box.height == request.height && request.box.width == request.width;
  PixelFormat format = is_copy ? PixelFormat::kRgb : PixelFormat::kPlanar;
  if (request.is_gray) format = PixelFormat::kGray;
  const auto resize_of = [&](int times) {
    return Resize{box.height,  box.width, stored.out_rows, stored.out_columns, request.filter,
                  orientation, times,     box.top % times, box.left % times,   request.is_gray};
  };
  const auto deliver = [&](RowSource& rows, int times) {
    const Status status = is_copy ? copy_rows(rows, box, static_cast<size_t>(channels), place, &scratch->row)
                                  : scratch->resampler.run(rows, resize_of(times), place);
    return status == Status::kOk ? rows.finish() : status;
  };
  const auto deliver_planes = [&](PlaneReader& reader) {
    if (!stored.by_planes || !reader.has_color()) return deliver(reader, reduction);
    const Samples samples[3] = {reader.samples(0), reader.samples(1), reader.samples(2)};
    scratch->resampler.run(samples, reader.reduced_box(), resize_of(reduction), place);
    return Status::kOk;
  };
  if (ready > 0) {
    PlaneReader& planes = scratch->planes[__builtin_ctz(static_cast<unsigned>(ready))];
    planes.select(box, format);
    return deliver_planes(planes);
  }
  if (header->format == Format::kPpm) {
    PpmReader rows(data + header->body, data + size, header->width, box, request.is_gray);
    return deliver(rows, 1);
  }
  if (header->format == Format::kPacked) {
    const PackedImage& packed = scratch->packed;
    Status status = scratch->packed.parse(data, size, *header);
    if (status != Status::kOk) return status;
    scratch->planes[0].plan(packed, box, reduction, format, nullptr);
    status = scratch->planes[0].decode(packed);
    return status == Status::kOk ? deliver_planes(scratch->planes[0]) : status;
  }
  // See Note [end of image].
  if (!has_end_marker(data, size, header->body)) return Status::kTruncated;
  // Note [two decoders]
  // Regular baseline files, tiled ones first of all, are decoded by PlaneReader: only the part under the
  // box, with pixels identical to libjpeg's. All other files, and files that turn out to be irregular, are
  // decoded by libjpeg, which decides whether a file is damaged; only surplus data between codes and markers
  // are judged by PlaneReader wherever it can, whatever the colours are (Note [padding]). Reductions are made
  // in the planes either way, so that a file and its tiled copy give the same pixels.
  PlaneReader& planes = scratch->planes[0];
  const BaselineStream& stream = scratch->stream;
  bool is_checked = false;
  if (scratch->stream.parse(data, size, *header, rows_of(box, reduction))) {
    const Status status = stream.is_decodable ? planes.decode(stream, box, reduction, format)
                                              : planes.check(stream, box.top + box.height + reduction);
    is_checked = status == Status::kOk;
    if (is_checked && stream.is_decodable) return deliver_planes(planes);
    if (!is_checked && status != Status::kUnsupported) return status;
  }
  if (reduction > 1 || stored.by_planes) {
    const Status status = planes.decode(data, size, *header, box, reduction, format, is_checked);
    if (status == Status::kOk) return deliver_planes(planes);
    if (status != Status::kUnsupported) return status;
  }
  JpegReader rows;
  const Status status =
      rows.open(data, size, header->height, header->width, box, request.is_gray, is_checked);
  return status == Status::kOk ? deliver(rows, 1) : status;
}

int64_t area(const Box& box) noexcept { return static_cast<int64_t>(box.height) * box.width; }

// The views of one reduction: how many, the box around theirs, and the sum of their areas.
struct Group {
  int count = 0;
  Box all{};
  int64_t separate = 0;

  void add(const Box& box) noexcept {
    all = count++ == 0 ? box : around(all, box);
    separate += area(box);
  }
  static Box around(const Box& a, const Box& b) noexcept {
    const int top = std::min(a.top, b.top), left = std::min(a.left, b.left);
    return {top, left, std::max(a.top + a.height, b.top + b.height) - top,
            std::max(a.left + a.width, b.left + b.width) - left};
  }
};

// The rows of all views that are inside of the image.
RowRange rows_of(const View* views, int count, const Header& header) noexcept {
  RowRange all{INT32_MAX, 0};
  for (const View* view = views; view < views + count; ++view) {
    if (!is_inside(view->request, header)) continue;
    const StoredRequest stored = stored_request(view->request, header);
    const RowRange rows = rows_of(stored.box, stored.reduction);
    all = {std::min(all.top, rows.top), std::max(all.bottom, rows.bottom)};
  }
  return all;
}

// Whether PlaneReader reads the image, so that its views may be decoded together; fills scratch->packed or
// scratch->stream.
bool has_planes(const uint8_t* data, size_t size, const Header& header, const View* views, int count,
                Scratch* scratch) {
  if (header.format == Format::kPacked) return scratch->packed.parse(data, size, header) == Status::kOk;
  return header.format == Format::kJpeg && has_end_marker(data, size, header.body) &&
         scratch->stream.parse(data, size, header, rows_of(views, count, header)) &&
         scratch->stream.is_decodable;
}

int power_of(const Request& request, const Header& header) noexcept {
  return __builtin_ctz(static_cast<unsigned>(stored_request(request, header).reduction));
}

// Decodes the views of these reductions together (a bit each): the samples under all boxes of a reduction
// once, from entropy-coded data that are decoded once, and from these every view. False, and nothing done, if
// the file is not sound under all boxes: then the fate of each view depends on its own box.
bool decode_together(const uint8_t* data, size_t size, const Group* groups, unsigned powers, View* views,
                     int count, Scratch* scratch, Header* header) {
  const PixelFormat format = views->request.is_gray ? PixelFormat::kGray : PixelFormat::kPlanar;
  const bool is_packed = header->format == Format::kPacked;
  const Frame& frame = is_packed ? static_cast<const Frame&>(scratch->packed) : scratch->stream;
  PlaneReader* first = nullptr;
  for (int power = 0; power < 4; ++power) {
    if ((powers >> power & 1) == 0) continue;
    scratch->planes[power].plan(frame, groups[power].all, 1 << power, format, first);
    first = &scratch->planes[power];
  }
  const Status status = is_packed ? first->decode(scratch->packed) : first->decode(scratch->stream);
  if (status != Status::kOk) return false;
  for (int power = 0; power < 4; ++power) {
    if (powers >> power & 1) scratch->planes[power].keep();
  }
  for (View* view = views; view < views + count; ++view) {
    if (!is_inside(view->request, *header)) continue;
    const int power = power_of(view->request, *header);
    if (powers >> power & 1)
      view->status = decode(data, size, view->request, 1 << power, scratch, header, view->out);
  }
  return true;
}

// Decodes together what is less work together; returns the reductions of the views that are done (a bit
// each).
unsigned decode_groups(const uint8_t* data, size_t size, View* views, int count, Scratch* scratch,
                       Header* header) {
  Group groups[4];
  for (const View* view = views; view < views + count; ++view) {
    // Images of several channel counts are decoded one by one.
    if (view->request.is_gray != views->request.is_gray) return 0;
    if (!is_inside(view->request, *header)) continue;
    const StoredRequest stored = stored_request(view->request, *header);
    groups[__builtin_ctz(static_cast<unsigned>(stored.reduction))].add(stored.box);
  }
  unsigned used = 0, worth = 0;
  Box all{};
  int64_t apart = 0;
  for (int power = 0; power < 4; ++power) {
    const Group& group = groups[power];
    if (group.count == 0) continue;
    all = used == 0 ? group.all : Group::around(all, group.all);
    used |= 1u << power;
    const bool is_worth = group.count > 1 && area(group.all) < group.separate;
    if (is_worth) worth |= 1u << power;
    apart += is_worth ? area(group.all) : group.separate;
  }
  const bool are_several = (used & (used - 1)) != 0;
  if (are_several && area(all) < apart &&
      decode_together(data, size, groups, used, views, count, scratch, header)) {
    return used;
  }
  unsigned done = 0;
  for (unsigned bit = 1; bit < 16; bit *= 2) {
    if ((worth & bit) && decode_together(data, size, groups, bit, views, count, scratch, header)) done |= bit;
  }
  return done;
}

}  // namespace

Status check_request(const Request& request, const Header& header) noexcept {
  if (header.status != Status::kOk) return header.status;
  if (static_cast<int64_t>(header.height) * header.width > request.max_pixels) return Status::kTooLarge;
  return is_inside(request, header) ? Status::kOk : Status::kBoxOutside;
}

Header read_header(const uint8_t* data, size_t size) noexcept {
  if (size >= 3 && std::memcmp(data, "\xFF\xD8\xFF", 3) == 0) return read_jpeg_header(data, size);
  if (size >= 3 && std::memcmp(data, "P6", 2) == 0) return read_ppm_header(data, size);
  if (size >= 4 && std::memcmp(data, PackedLayout::kMagic, 4) == 0) return read_packed_header(data, size);
  Header header;
  if (size == 0) header.status = Status::kEmpty;
  return header;
}

void decode_views(const uint8_t* data, size_t size, View* views, int count, Header* header) {
  static thread_local Scratch scratch;
  // Large boxes need much memory, and so does a small box in a file of one long segment, or of many short
  // ones.
  struct Release {
    ~Release() {
      if (scratch.bytes() > kMostKept) scratch = Scratch();
    }
  } release;
  unsigned done = 0;  // reductions
  if (count > 1) *header = read_header(data, size);
  if (count > 1 && header->status == Status::kOk &&
      static_cast<int64_t>(header->height) * header->width <= views->request.max_pixels &&
      has_planes(data, size, *header, views, count, &scratch)) {
    done = decode_groups(data, size, views, count, &scratch, header);
  }
  const Header known = *header;
  for (View* view = views; view < views + count; ++view) {
    const bool was_together =
        done != 0 && is_inside(view->request, known) && (done >> power_of(view->request, known) & 1) != 0;
    if (!was_together) view->status = decode(data, size, view->request, 0, &scratch, header, view->out);
  }
}

}  // namespace tarpeg
