#include <cstring>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "gather/gather.h"
#include "gather/weights.h"
#include "ops/checks.h"
#include "ops/filters.h"
#include "ops/share.h"

namespace tarpeg {
namespace {

std::vector<Request> requests_of(const std::vector<Tensor>& images, const Tensor& boxes,
                                 const std::optional<Tensor>& flip, const Request& all) {
  const int64_t count = static_cast<int64_t>(images.size());
  check_boxes(boxes, flip, count);
  const int32_t* box = boxes.const_data_ptr<int32_t>();
  const bool* mirror = flip ? flip->const_data_ptr<bool>() : nullptr;
  std::vector<Request> requests(images.size(), all);
  for (int64_t i = 0; i < count; ++i, box += 4) {
    check_bytes(images[i], "images", i);
    requests[i].box = {box[0], box[1], box[2], box[3]};
    requests[i].mirror = mirror != nullptr && mirror[i];
  }
  return requests;
}

std::tuple<Tensor, Tensor> gather_tiles(std::vector<Tensor> images, Tensor boxes, int64_t height,
                                        int64_t width, std::optional<Tensor> flip, std::string interpolation,
                                        bool antialias, bool exact, int64_t max_pixels, int64_t threads,
                                        int64_t channels) {
  STD_TORCH_CHECK(channels == 1 || channels == 3, "channels must be 1 or 3, got ", channels);
  Request all{};
  all.height = check_size(height, "height");
  all.width = check_size(width, "width");
  all.filter = filter_of(interpolation, antialias);
  all.exact = exact;
  all.max_pixels = max_pixels;
  all.is_gray = channels == 1;
  const std::vector<Request> requests = requests_of(images, boxes, flip, all);
  const int64_t count = static_cast<int64_t>(images.size());
  gather::Header header{};
  header.magic = gather::kMagic;
  header.version = gather::kVersion;
  header.count = static_cast<uint32_t>(count);
  header.height = static_cast<uint32_t>(height);
  header.width = static_cast<uint32_t>(width);
  header.channels = static_cast<uint8_t>(channels);
  header.filter = static_cast<uint8_t>(all.filter);
  header.exact = exact;
  std::vector<gather::Source> sources(images.size());
  share_pieces(count, count, threads, [&](int64_t i) {
    gather::find_parts(images[i].const_data_ptr<uint8_t>(), static_cast<size_t>(images[i].numel()),
                       requests[i], header, &sources[i]);
  });
  std::vector<uint64_t> places(images.size());
  constexpr uint64_t kLanczos = sizeof(double) * kLanczosNumbers;
  static_assert(kLanczos % gather::kUnit == 0);
  const bool is_lanczos = all.filter == Filter::kLanczos;
  uint64_t room = is_lanczos ? kLanczos : 0;
  for (int64_t i = 0; i < count; ++i) {
    gather::Source& source = sources[i];
    check_box(source.status, i, requests[i].box, source.header);
    const uint64_t work = source.image.work;  // so far: how many bytes
    source.image.work = header.work;
    source.image.first_piece = static_cast<uint32_t>(header.pieces);
    header.work += work;
    header.pieces += source.parts.size();
    places[i] = room;
    room += source.room;
  }
  const uint64_t tables =
      sizeof header + sizeof(gather::Image) * header.count + sizeof(gather::Piece) * header.pieces;
  const uint64_t first = (tables + gather::kUnit - 1) / gather::kUnit * gather::kUnit;
  header.bytes = first + room;
  header.lanczos = is_lanczos ? first : 0;
  STD_TORCH_CHECK(header.bytes / gather::kUnit <= UINT32_MAX && header.pieces <= UINT32_MAX,
                  "images need more bytes together than can be gathered: gather fewer at a time");
  Tensor data = new_images({static_cast<int64_t>(header.bytes)}, {1});
  Tensor statuses = new_images({count}, {1}, ScalarType::Int);
  uint8_t* const tensor = data.mutable_data_ptr<uint8_t>();
  std::memcpy(tensor, &header, sizeof header);
  std::memset(tensor + tables, 0, first - tables);
  if (is_lanczos) std::memcpy(tensor + first, lanczos_table(), kLanczos);
  uint8_t* const records = tensor + sizeof header;
  auto* const pieces = reinterpret_cast<gather::Piece*>(records + sizeof(gather::Image) * header.count);
  int32_t* const status = statuses.mutable_data_ptr<int32_t>();
  share_pieces(count, count, threads, [&](int64_t i) {
    gather::Source& source = sources[i];
    if (source.status == Status::kOk)
      gather::copy_parts(&source, tensor, first + places[i], pieces + source.image.first_piece);
    const gather::Image record = gather::record_of(source);
    std::memcpy(records + sizeof record * static_cast<size_t>(i), &record, sizeof record);
    status[i] = static_cast<int32_t>(source.status);
  });
  return {data, statuses};
}

}  // namespace
}  // namespace tarpeg

STABLE_TORCH_LIBRARY_IMPL(tarpeg, CPU, m) { m.impl("gather_tiles", TORCH_BOX(&tarpeg::gather_tiles)); }
