#include "image/decode.h"

#include <algorithm>
#include <cstring>

#include "image/ppm.h"
#include "jpeg/libjpeg.h"

namespace tarpeg {
namespace {

// The memory that one thread keeps from image to image.
struct Scratch {
  Resampler resampler;
  BaselineStream stream;
  PlaneReader planes;
  std::vector<uint8_t> row;

  size_t bytes() const noexcept {
    return resampler.bytes() + stream.bytes() + planes.bytes() + held_bytes(row);
  }
};

// The box at its own size: rows are copied, pixels only turned upright.
Status copy_rows(RowSource& rows, const Box& box, size_t pixel_bytes, const Placement& place,
                 std::vector<uint8_t>* row) {
  if (row->size() < rows.stride()) row->resize(rows.stride());
  const uint8_t* pixels = row->data() + pixel_bytes * static_cast<size_t>(rows.skip());
  for (int y = 0; y < box.height; ++y) {
    const Status status = rows.next(row->data());
    if (status != Status::kOk) return status;
    uint8_t* line = place.origin + y * place.row_step;
    if (place.column_step == static_cast<ptrdiff_t>(pixel_bytes)) {
      std::memcpy(line, pixels, pixel_bytes * static_cast<size_t>(box.width));
      continue;
    }
    scatter_pixels(pixels, box.width, pixel_bytes, place.column_step, line);
  }
  return Status::kOk;
}

bool is_inside(const Box& box, int height, int width) noexcept {
  return box.top >= 0 && box.left >= 0 && box.height > 0 && box.width > 0 && box.top <= height - box.height &&
         box.left <= width - box.width;
}

// The factor, 1, 2, 4 or 8, by which the box is reduced before it is resampled. Measured over photographs,
// the mean difference from torchvision v2 or Pillow is largest just at these limits. For 2, 4 and 8 it is
// 0.46, 0.54 and 0.54 level (bilinear), 0.37, 0.50, 0.41 (bicubic), 0.41, 0.55, 0.45 (Lanczos), 0.39, 0.52,
// 0.43 (box). The sharper a filter's edges are, the later may means begin.
int reduction_of(const Request& request, const Box& box, int out_rows, int out_columns) noexcept {
  struct Limits {
    int by_2, by_4, by_8;
  };
  Limits limits;
  switch (request.filter) {
    case Filter::kAntialias:
      limits = {2, 6, 20};
      break;
    case Filter::kBicubic:
    case Filter::kLanczos:
      limits = {3, 8, 24};
      break;
    case Filter::kBox:
      limits = {4, 10, 30};
      break;
    default:
      return 1;
  }
  if (request.exact) return 1;
  const int times = std::min(box.height / out_rows, box.width / out_columns);
  return times >= limits.by_8 ? 8 : times >= limits.by_4 ? 4 : times >= limits.by_2 ? 2 : 1;
}

Status decode(const uint8_t* data, size_t size, const Request& request, Scratch* scratch, Header* header,
              uint8_t* out) {
  *header = read_header(data, size);
  if (header->status != Status::kOk) return header->status;
  if (static_cast<int64_t>(header->height) * header->width > request.max_pixels) return Status::kTooLarge;
  if (!is_inside(request.box, header->upright_height(), header->upright_width())) return Status::kBoxOutside;

  const Orientation orientation = Orientation::from_exif(header->orientation);
  const Box box = orientation.stored(request.box, header->height, header->width);
  const int channels = request.is_gray ? 1 : 3;
  const Placement place =
      Placement::upright(out, request.height, request.width, channels, orientation, request.mirror);
  const bool is_copy = request.box.height == request.height && request.box.width == request.width;
  const PixelFormat format = request.is_gray ? PixelFormat::kGray
                             : is_copy       ? PixelFormat::kRgb
                                             : PixelFormat::kRgbx;
  const int out_rows = orientation.swap ? request.width : request.height;
  const int out_columns = orientation.swap ? request.height : request.width;
  const auto deliver = [&](RowSource& rows, int reduction) {
    const Resize resize{box.height,           box.width,      out_rows,  out_columns,
                        request.filter,       orientation,    reduction, box.top % reduction,
                        box.left % reduction, request.is_gray};
    const Status status = is_copy ? copy_rows(rows, box, static_cast<size_t>(channels), place, &scratch->row)
                                  : scratch->resampler.run(rows, resize, place);
    return status == Status::kOk ? rows.finish() : status;
  };
  if (header->format == Format::kPpm) {
    PpmReader rows(data + header->body, header->width, box, format);
    return deliver(rows, 1);
  }
  // See Note [end of image].
  if (!has_end_marker(data, size, header->body)) return Status::kTruncated;
  // Note [two decoders]
  // Regular baseline files, tiled ones first of all, are decoded by PlaneReader: only the part under the
  // box, with pixels identical to libjpeg's. All other files, and files that turn out to be irregular, are
  // decoded by libjpeg, which decides whether a file is damaged; only surplus data between codes and markers
  // are judged by PlaneReader wherever it can, whatever the colours are (Note [padding]). Reductions are made
  // in the planes either way, so that a file and its tiled copy give the same pixels.
  const int reduction = reduction_of(request, box, out_rows, out_columns);
  PlaneReader& planes = scratch->planes;
  const BaselineStream& stream = scratch->stream;
  bool is_checked = false;
  if (scratch->stream.parse(data, size, *header)) {
    const Status status = stream.is_decodable ? planes.decode(stream, box, reduction, format)
                                              : planes.check(stream, box.top + box.height + reduction);
    is_checked = status == Status::kOk;
    if (is_checked && stream.is_decodable) return deliver(planes, reduction);
    if (!is_checked && status != Status::kUnsupported) return status;
  }
  if (reduction > 1) {
    const Status status = planes.decode(data, size, *header, box, reduction, format, is_checked);
    if (status == Status::kOk) return deliver(planes, reduction);
    if (status != Status::kUnsupported) return status;
  }
  JpegReader rows;
  const Status status = rows.open(data, size, header->height, header->width, box, format, is_checked);
  return status == Status::kOk ? deliver(rows, 1) : status;
}

}  // namespace

Header read_header(const uint8_t* data, size_t size) noexcept {
  if (size >= 3 && std::memcmp(data, "\xFF\xD8\xFF", 3) == 0) return read_jpeg_header(data, size);
  if (size >= 3 && std::memcmp(data, "P6", 2) == 0) return read_ppm_header(data, size);
  Header header;
  if (size == 0) header.status = Status::kEmpty;
  return header;
}

Status decode_image(const uint8_t* data, size_t size, const Request& request, Header* header, uint8_t* out) {
  static thread_local Scratch scratch;
  // Large boxes need much memory, and so does a small box in a file of one long segment, or of many short
  // ones.
  struct Release {
    ~Release() {
      if (scratch.bytes() > kMostKept) scratch = Scratch();
    }
  } release;
  return decode(data, size, request, &scratch, header, out);
}

}  // namespace tarpeg
