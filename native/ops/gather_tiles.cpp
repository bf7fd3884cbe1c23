#include <cstring>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "gather/gather.h"
#include "gather/weights.h"
#include "ops/files.h"
#include "ops/filters.h"
#include "ops/share.h"

namespace tarpeg {
namespace {

constexpr uint64_t kLanczos = sizeof(double) * kLanczosNumbers;
static_assert(kLanczos % gather::kUnit == 0);

uint64_t end_of_tables(const gather::Header& header) {
  return sizeof header + sizeof(gather::Image) * header.count + sizeof(gather::Piece) * header.pieces;
}

std::vector<Request> requests_of(int64_t count, const Tensor& boxes, const std::optional<Tensor>& flip,
                                 const Request& all) {
  check_boxes(boxes, flip, count);
  const int32_t* box = boxes.const_data_ptr<int32_t>();
  const bool* mirror = flip ? flip->const_data_ptr<bool>() : nullptr;
  std::vector<Request> requests(static_cast<size_t>(count), all);
  for (int64_t i = 0; i < count; ++i, box += 4) {
    requests[i].box = {box[0], box[1], box[2], box[3]};
    requests[i].mirror = mirror != nullptr && mirror[i];
  }
  return requests;
}

// Images are one after the other in the memory of their chunk. The next chunk begins if that would exceed the
// budget: an image that needs more has a chunk of its own.
class Chunks {
 public:
  explicit Chunks(uint64_t budget) noexcept : budget_(budget) {}

  // Where the memory of image `index` begins.
  uint64_t place(int64_t index, uint64_t bytes) {
    if (firsts_.empty() || (bytes > 0 && end_ > 0 && end_ + bytes > budget_)) {
      firsts_.push_back(index);
      end_ = 0;
    }
    const uint64_t begin = end_;
    end_ += bytes;
    largest_ = std::max(largest_, end_);
    return begin;
  }
  // The first image of each.
  const std::vector<int64_t>& firsts() const noexcept { return firsts_; }
  // Bytes for the largest, of few possible numbers: then an allocator uses the memory of a batch for the
  // next.
  uint64_t bytes() const noexcept {
    const uint64_t step = std::max<uint64_t>(budget_ / 8 / 64 * 64, 64);
    return (largest_ + step - 1) / step * step;
  }

 private:
  uint64_t budget_, end_ = 0, largest_ = 0;
  std::vector<int64_t> firsts_;
};

// What is gathered of a batch: found, and yet to be copied.
struct Batch {
  gather::Header header{};
  std::vector<gather::Source> sources;
  std::vector<uint64_t> places;
  uint64_t first = 0;  // where the first image begins
  std::vector<int64_t> chunks;
};

Batch find_batch(const std::vector<FileBytes>& files, const Tensor& boxes, const std::optional<Tensor>& flip,
                 const Request& all, int64_t threads, int64_t budget) {
  STD_TORCH_CHECK(budget > 0, "budget must be at least 1 byte, got ", budget);
  const int64_t count = static_cast<int64_t>(files.size());
  const std::vector<Request> requests = requests_of(count, boxes, flip, all);
  Batch batch;
  gather::Header& header = batch.header;
  header.magic = gather::kMagic;
  header.version = gather::kVersion;
  header.count = static_cast<uint32_t>(count);
  header.height = static_cast<uint32_t>(all.height);
  header.width = static_cast<uint32_t>(all.width);
  header.channels = all.is_gray ? 1 : 3;
  header.filter = static_cast<uint8_t>(all.filter);
  header.exact = all.exact;
  batch.sources.resize(files.size());
  share_pieces(count, count, threads, [&](int64_t i) {
    gather::find_parts(files[i].data, files[i].size, requests[i], header, &batch.sources[i]);
  });
  batch.places.resize(files.size());
  const bool is_lanczos = all.filter == Filter::kLanczos;
  uint64_t room = is_lanczos ? kLanczos : 0;
  Chunks chunks(static_cast<uint64_t>(budget));
  for (int64_t i = 0; i < count; ++i) {
    gather::Source& source = batch.sources[i];
    check_box(source.status, i, requests[i].box, source.header);
    source.image.work = chunks.place(i, source.image.work);  // so far: how many bytes
    source.image.first_piece = static_cast<uint32_t>(header.pieces);
    header.pieces += source.parts.size();
    batch.places[i] = room;
    room += source.room;
  }
  header.work = chunks.bytes();
  batch.chunks = chunks.firsts();
  const uint64_t tables = end_of_tables(header);
  batch.first = (tables + gather::kUnit - 1) / gather::kUnit * gather::kUnit;
  header.bytes = batch.first + room;
  header.lanczos = is_lanczos ? batch.first : 0;
  STD_TORCH_CHECK(header.bytes / gather::kUnit <= UINT32_MAX && header.pieces <= UINT32_MAX,
                  "images need more bytes together than can be gathered: gather fewer at a time");
  return batch;
}

// To memory of header.bytes. Returns the status of each image.
Tensor copy_batch(Batch* batch, int64_t threads, uint8_t* tensor) {
  const gather::Header& header = batch->header;
  const int64_t count = header.count;
  Tensor statuses = new_images({count}, {1}, ScalarType::Int);
  std::memcpy(tensor, &header, sizeof header);
  const uint64_t tables = end_of_tables(header);
  std::memset(tensor + tables, 0, batch->first - tables);
  if (header.lanczos != 0) std::memcpy(tensor + batch->first, lanczos_table(), kLanczos);
  uint8_t* const records = tensor + sizeof header;
  auto* const pieces = reinterpret_cast<gather::Piece*>(records + sizeof(gather::Image) * header.count);
  int32_t* const status = statuses.mutable_data_ptr<int32_t>();
  share_pieces(count, count, threads, [&](int64_t i) {
    gather::Source& source = batch->sources[i];
    if (source.status == Status::kOk)
      gather::copy_parts(&source, tensor, batch->first + batch->places[i], pieces + source.image.first_piece);
    const gather::Image record = gather::record_of(source);
    std::memcpy(records + sizeof record * static_cast<size_t>(i), &record, sizeof record);
    status[i] = static_cast<int32_t>(source.status);
  });
  return statuses;
}

// What the host needs to know of it: its bytes, those of memory for a chunk, the first image of each chunk.
Tensor numbers_of(const Batch& batch) {
  const size_t chunks = batch.chunks.size();
  Tensor numbers = new_images({static_cast<int64_t>(chunks) + 2}, {1}, ScalarType::Long);
  int64_t* const values = static_cast<int64_t*>(numbers.mutable_data_ptr());
  values[0] = static_cast<int64_t>(batch.header.bytes);
  values[1] = static_cast<int64_t>(batch.header.work);
  std::copy(batch.chunks.begin(), batch.chunks.end(), values + 2);
  return numbers;
}

Request request_of(int64_t height, int64_t width, const std::string& interpolation, bool antialias,
                   bool exact, int64_t max_pixels, int64_t channels) {
  STD_TORCH_CHECK(channels == 1 || channels == 3, "channels must be 1 or 3, got ", channels);
  Request all{};
  all.height = check_size(height, "height");
  all.width = check_size(width, "width");
  all.filter = filter_of(interpolation, antialias);
  all.exact = exact;
  all.max_pixels = max_pixels;
  all.is_gray = channels == 1;
  return all;
}

std::tuple<Tensor, Tensor, Tensor> gather_tiles(std::vector<Tensor> images, std::optional<Tensor> places,
                                                Tensor boxes, int64_t height, int64_t width,
                                                std::optional<Tensor> flip, std::string interpolation,
                                                bool antialias, bool exact, int64_t max_pixels,
                                                int64_t threads, int64_t channels, int64_t budget) {
  const Request all = request_of(height, width, interpolation, antialias, exact, max_pixels, channels);
  Batch batch = find_batch(files_of(images, places, "images"), boxes, flip, all, threads, budget);
  Tensor data = new_images({static_cast<int64_t>(batch.header.bytes)}, {1});
  Tensor statuses = copy_batch(&batch, threads, data.mutable_data_ptr<uint8_t>());
  return {data, statuses, numbers_of(batch)};
}

// If `out` is too small, nothing is written, and the statuses are those that are known so far.
std::tuple<Tensor, Tensor> gather_tiles_out(std::vector<Tensor> images, std::optional<Tensor> places,
                                            Tensor boxes, int64_t height, int64_t width,
                                            std::optional<Tensor> flip, std::string interpolation,
                                            bool antialias, bool exact, int64_t max_pixels, int64_t threads,
                                            int64_t channels, int64_t budget, Tensor out) {
  STD_TORCH_CHECK(
      out.is_cpu() && out.scalar_type() == ScalarType::Byte && out.dim() == 1 && out.is_contiguous(),
      "out must be a contiguous uint8 tensor [n] on the CPU");
  const uint64_t size = static_cast<uint64_t>(out.numel());
  uint8_t* const memory = out.mutable_data_ptr<uint8_t>();
  STD_TORCH_CHECK(reinterpret_cast<uintptr_t>(memory) % gather::kUnit == 0,
                  "out must begin at a multiple of ", gather::kUnit, " bytes");
  const Request all = request_of(height, width, interpolation, antialias, exact, max_pixels, channels);
  Batch batch = find_batch(files_of(images, places, "images"), boxes, flip, all, threads, budget);
  if (batch.header.bytes <= size) return {copy_batch(&batch, threads, memory), numbers_of(batch)};
  const size_t count = batch.sources.size();
  Tensor statuses = new_images({static_cast<int64_t>(count)}, {1}, ScalarType::Int);
  int32_t* const status = statuses.mutable_data_ptr<int32_t>();
  for (size_t i = 0; i < count; ++i) status[i] = static_cast<int32_t>(batch.sources[i].status);
  return {statuses, numbers_of(batch)};
}

}  // namespace
}  // namespace tarpeg

STABLE_TORCH_LIBRARY_IMPL(tarpeg, CPU, m) {
  m.impl("gather_tiles", TORCH_BOX(&tarpeg::gather_tiles));
  m.impl("gather_tiles_out", TORCH_BOX(&tarpeg::gather_tiles_out));
}
