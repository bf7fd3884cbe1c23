#include <algorithm>
#include <atomic>
#include <cstring>
#include <exception>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "base/pool.h"
#include "image/normalise.h"
#include "ops/checks.h"
#include "ops/filters.h"

namespace tarpeg {
namespace {

constexpr int64_t kMostThreads = 1024;

// Where images go, one after the other.
struct Output {
  uint8_t* data;
  int64_t count, channels, height, width;
  Number type = Number::kUint8;
  Normalisation how = {};  // of floating-point types
  bool planar = false;

  size_t numbers() const noexcept { return static_cast<size_t>(channels * height * width); }  // of an image
  size_t image_bytes() const noexcept { return numbers() * static_cast<size_t>(size_of(type)); }
};

// A rectangle of an output image, and the part of it that the box of a file becomes; the rest has one colour.
struct Cell {
  Box all, part;
  uint8_t fill[3];
  bool is_image = true;  // both are the whole image
};

// One image to be decoded, with plain pointers: the threads touch no tensor.
struct Job {
  const uint8_t* data;
  size_t size;
  Request request;
  const Output* output;
  uint8_t* image;
  Header header;
  Cell cell;

  // Bytes before a pixel of an image of uint8.
  ptrdiff_t at(int y, int x) const noexcept {
    return (static_cast<ptrdiff_t>(y) * output->width + x) * output->channels;
  }
};

// Columns of a place: image, counted over all outputs; Cell::all; Cell::part within it; Cell::fill.
constexpr int64_t kPlaceColumns = 12;

// Moves a job into a cell; `place` is its row of places.
void place_job(const int32_t* place, const std::vector<Output>& outputs, Job* job) {
  int64_t image = place[0];
  STD_TORCH_CHECK(image >= 0, "places has the image ", image);
  const Output* output = outputs.data();
  const Output* const end = output + outputs.size();
  while (output != end && image >= output->count) image -= (output++)->count;
  STD_TORCH_CHECK(output != end, "places has the image ", place[0], ", and out has fewer");
  Cell& cell = job->cell;
  cell.is_image = place[7] == output->height && place[8] == output->width;
  cell.all = {place[1], place[2], place[3], place[4]};
  cell.part = {place[5], place[6], place[7], place[8]};
  STD_TORCH_CHECK(cell.all.is_inside(output->height, output->width) &&
                      cell.part.is_inside(cell.all.height, cell.all.width),
                  "places has a rectangle outside of an image of ", output->height, " x ", output->width);
  for (int c = 0; c < 3; ++c) {
    STD_TORCH_CHECK(place[9 + c] >= 0 && place[9 + c] <= 255, "places has the colour ", place[9 + c]);
    cell.fill[c] = static_cast<uint8_t>(place[9 + c]);
  }
  cell.part.top += cell.all.top;
  cell.part.left += cell.all.left;
  job->output = output;
  job->image = output->data + static_cast<size_t>(image) * output->image_bytes();
  job->request.height = cell.part.height;
  job->request.width = cell.part.width;
  job->request.is_gray = output->channels == 1;
  if (output->type == Number::kUint8) job->request.row_step = output->channels * output->width;
}

std::vector<Job> plan(const std::vector<Tensor>& jpegs, const Tensor& boxes,
                      const std::vector<Output>& outputs, const std::optional<Tensor>& flip, Filter filter,
                      bool exact, int64_t max_pixels, const std::optional<Tensor>& places = std::nullopt) {
  const int64_t count = static_cast<int64_t>(jpegs.size());
  check_boxes(boxes, flip, count);
  STD_TORCH_CHECK(
      !places || (places->is_cpu() && places->scalar_type() == ScalarType::Int && places->is_contiguous() &&
                  places->dim() == 2 && places->size(0) == count && places->size(1) == kPlaceColumns),
      "places must be a contiguous int32 tensor [", count, ", ", kPlaceColumns, "] on the CPU");
  const int32_t* place = places ? places->const_data_ptr<int32_t>() : nullptr;
  const int32_t* box = boxes.const_data_ptr<int32_t>();
  const bool* mirror = flip ? flip->const_data_ptr<bool>() : nullptr;
  std::vector<Job> jobs(count);
  const Output* output = outputs.data();
  for (int64_t i = 0, first = 0; i < count; ++i, box += 4) {
    check_bytes(jpegs[i], "jpegs", i);
    Job& job = jobs[i];
    job.data = jpegs[i].const_data_ptr<uint8_t>();
    job.size = static_cast<size_t>(jpegs[i].numel());
    if (place == nullptr) {
      while (i == first + output->count) first += (output++)->count;
      job.output = output;
      job.image = output->data + static_cast<size_t>(i - first) * output->image_bytes();
    }
    job.request = {{box[0], box[1], box[2], box[3]},
                   check_size(output->height, "height"),
                   check_size(output->width, "width"),
                   mirror != nullptr && mirror[i],
                   filter,
                   exact,
                   max_pixels,
                   output->channels == 1};
    if (place != nullptr) {
      place_job(place, outputs, &job);
      place += kPlaceColumns;
    }
  }
  return jobs;
}

// The jobs of one file, which share what they can.
struct File {
  Job** jobs;
  int count;
};

// What a thread keeps from file to file.
struct FileScratch {
  std::vector<View> views;
  std::vector<uint8_t> bytes, colour;
};

Target target_of(const Job& job) noexcept {
  const Output& output = *job.output;
  const bool streams = output.count * static_cast<int64_t>(output.image_bytes()) >= kLarge;
  return {job.image, output.type, output.height, output.width, output.planar, streams};
}

// Writes the pixels of a row of uint8 to row y of an image, from column x on.
void put_pixels(const Job& job, const uint8_t* pixels, int y, int x, int width) noexcept {
  const Output& output = *job.output;
  const int channels = static_cast<int>(output.channels);
  if (output.type == Number::kUint8) {
    std::memcpy(job.image + job.at(y, x), pixels, static_cast<size_t>(width) * channels);
  } else {
    normalise({pixels, channels, 1, false, channels}, output.how, y * output.width + x, width,
              target_of(job));
  }
}

// Gives the pixels of a cell outside of `part` its colour.
void fill_around(const Job& job, const Box& part, std::vector<uint8_t>* colour) {
  const Box& all = job.cell.all;
  const size_t channels = static_cast<size_t>(job.output->channels);
  colour->resize(channels * static_cast<size_t>(all.width));
  for (size_t i = 0; i < colour->size(); ++i) (*colour)[i] = job.cell.fill[i % channels];
  const int right = all.left + all.width, part_right = part.left + part.width;
  for (int y = all.top; y < all.top + all.height; ++y) {
    if (y < part.top || y >= part.top + part.height) {
      put_pixels(job, colour->data(), y, all.left, all.width);
    } else {
      put_pixels(job, colour->data(), y, all.left, part.left - all.left);
      put_pixels(job, colour->data(), y, part_right, right - part_right);
    }
  }
}

void decode_file(const File& file, FileScratch* scratch) {
  size_t numbers = 0;
  for (int i = 0; i < file.count; ++i) {
    const Output& output = *file.jobs[i]->output;
    const Request& request = file.jobs[i]->request;
    if (output.type != Number::kUint8) {
      numbers += static_cast<size_t>(output.channels * request.height) * static_cast<size_t>(request.width);
    }
  }
  // The bytes of one file's images stay in the cache until they are normalised.
  if (scratch->bytes.size() < numbers) scratch->bytes.resize(numbers);
  scratch->views.clear();
  uint8_t* bytes = scratch->bytes.data();
  for (int i = 0; i < file.count; ++i) {
    const Job& job = *file.jobs[i];
    const bool is_direct = job.output->type == Number::kUint8;
    uint8_t* const image =
        job.cell.is_image ? job.image : job.image + job.at(job.cell.part.top, job.cell.part.left);
    scratch->views.push_back({job.request, is_direct ? image : bytes, Status::kCorrupt});
    if (!is_direct)
      bytes += static_cast<ptrdiff_t>(job.output->channels) * job.request.height * job.request.width;
  }
  Job& first = *file.jobs[0];
  decode_views(first.data, first.size, scratch->views.data(), file.count, &first.header);
  for (int i = 0; i < file.count; ++i) {
    Job& job = *file.jobs[i];
    const View& view = scratch->views[i];
    job.header = first.header;
    job.header.status = view.status;
    if (view.status != Status::kOk) continue;
    const Output& output = *job.output;
    const int channels = static_cast<int>(output.channels);
    const bool is_direct = output.type == Number::kUint8;
    if (!job.cell.is_image) {
      const Box& part = job.cell.part;
      for (int y = 0; y < part.height && !is_direct; ++y) {
        const ptrdiff_t row = static_cast<ptrdiff_t>(channels) * part.width * y;
        put_pixels(job, view.out + row, part.top + y, part.left, part.width);
      }
      fill_around(job, part, &scratch->colour);
    } else if (!is_direct) {
      normalise({view.out, channels, 1, false, channels}, output.how, 0, output.height * output.width,
                target_of(job));
    }
  }
  if (held_bytes(scratch->bytes) > kMostKept) std::vector<uint8_t>().swap(scratch->bytes);
}

// Makes a cell zeros.
void clear(const Job& job) noexcept {
  const Output& output = *job.output;
  const Box& all = job.cell.all;
  const size_t size = static_cast<size_t>(size_of(output.type));
  const ptrdiff_t planes = output.planar ? static_cast<ptrdiff_t>(output.channels) : 1;
  const ptrdiff_t numbers = static_cast<ptrdiff_t>(output.channels) / planes;
  for (ptrdiff_t plane = 0; plane < planes; ++plane) {
    for (int y = all.top; y < all.top + all.height; ++y) {
      const ptrdiff_t pixel = (plane * output.height + y) * output.width + all.left;
      std::memset(job.image + pixel * numbers * static_cast<ptrdiff_t>(size), 0,
                  static_cast<size_t>(all.width * numbers) * size);
    }
  }
}

// State shared by the threads of one batch.
struct Batch {
  std::vector<File> files;
  std::atomic<size_t> next{0};
  std::atomic<Status> failure{Status::kOk};  // not the fault of a file

  // Files differ in cost: each thread takes the next one when it is done, instead of an equal share.
  void work() noexcept {
    static thread_local FileScratch scratch;
    for (size_t i = next++; i < files.size(); i = next++) {
      bool has_memory = true;
      try {
        decode_file(files[i], &scratch);
      } catch (const std::exception&) {
        has_memory = false;
      }
      for (int k = 0; k < files[i].count; ++k) {
        Job& job = *files[i].jobs[k];
        if (!has_memory) job.header.status = Status::kOutOfMemory;
        const Status result = job.header.status;
        if (result == Status::kOutOfMemory || result == Status::kOtherLibrary) failure = result;
        if (result == Status::kOk) continue;
        if (job.cell.is_image) {
          std::memset(job.image, 0, job.output->image_bytes());
        } else {
          clear(job);
        }
      }
    }
    finish_stores();
  }
};

Tensor run(std::vector<Job>& jobs, int64_t threads) {
  const int64_t count = static_cast<int64_t>(jobs.size());
  Tensor statuses = new_images({count}, {1}, ScalarType::Int);
  int32_t* status = statuses.mutable_data_ptr<int32_t>();
  std::vector<Job*> order(jobs.size());
  for (size_t i = 0; i < jobs.size(); ++i) order[i] = &jobs[i];
  std::stable_sort(order.begin(), order.end(), [](const Job* a, const Job* b) {
    return std::tie(a->data, a->size) < std::tie(b->data, b->size);
  });
  Batch batch;
  for (size_t i = 0; i < order.size(); ++i) {
    const bool is_same =
        i > 0 && order[i]->data == order[i - 1]->data && order[i]->size == order[i - 1]->size;
    if (is_same) {
      ++batch.files.back().count;
    } else {
      batch.files.push_back({&order[i], 1});
    }
  }
  const int64_t wanted = threads > 0 ? threads : torch::stable::get_num_threads();
  const auto work = [](void* shared) noexcept { static_cast<Batch*>(shared)->work(); };
  const int64_t files = static_cast<int64_t>(batch.files.size());
  run_on_threads(static_cast<int>(std::min({files, wanted, kMostThreads})), work, &batch);
  check_status(batch.failure);
  for (int64_t i = 0; i < count; ++i) {
    status[i] = static_cast<int32_t>(jobs[i].header.status);
    check_box(jobs[i].header.status, i, jobs[i].request.box, jobs[i].header);
  }
  return statuses;
}

// scale and shift, float32 [2 * channels] on the CPU: one of each per channel.
Normalisation normalisation_of(const std::optional<Tensor>& numbers, Number type, int64_t channels) {
  Normalisation how;
  STD_TORCH_CHECK(numbers.has_value() == (type != Number::kUint8),
                  "scale_shift must be given if out is floating point, and only then");
  if (!numbers) return how;
  STD_TORCH_CHECK(numbers->is_cpu() && numbers->scalar_type() == ScalarType::Float &&
                      numbers->is_contiguous() && numbers->numel() == 2 * channels,
                  "scale_shift must be a contiguous float32 tensor [", 2 * channels, "] on the CPU");
  const float* number = numbers->const_data_ptr<float>();
  std::copy(number, number + channels, how.scale);
  std::copy(number + channels, number + 2 * channels, how.shift);
  return how;
}

std::tuple<Tensor, Tensor> decode_batch(std::vector<Tensor> jpegs, Tensor boxes, int64_t height,
                                        int64_t width, std::optional<Tensor> flip, std::string interpolation,
                                        bool antialias, bool exact, int64_t max_pixels, int64_t threads,
                                        int64_t channels) {
  STD_TORCH_CHECK(channels == 1 || channels == 3, "channels must be 1 or 3, got ", channels);
  const int64_t count = static_cast<int64_t>(jpegs.size());
  // Checked before memory is allocated.
  check_size(height, "height");
  check_size(width, "width");
  Tensor images = new_images({count, channels, height, width},
                             {channels * height * width, 1, channels * width, channels});
  const std::vector<Output> outputs = {{images.mutable_data_ptr<uint8_t>(), count, channels, height, width}};
  std::vector<Job> jobs =
      plan(jpegs, boxes, outputs, flip, filter_of(interpolation, antialias), exact, max_pixels);
  return {images, run(jobs, threads)};
}

Output output_of(const Tensor& out, const std::optional<Tensor>& scale_shift) {
  STD_TORCH_CHECK(out.is_cpu() && out.dim() == 4 && (out.size(1) == 1 || out.size(1) == 3),
                  "out must be a tensor [B, 1 or 3, height, width] on the CPU");
  const int64_t channels = out.size(1), height = out.size(2), width = out.size(3);
  Output output = {static_cast<uint8_t*>(out.mutable_data_ptr()), out.size(0), channels, height, width};
  output.type = number_of(out.scalar_type(), "out");
  output.how = normalisation_of(scale_shift, output.type, channels);
  const bool dense = out.size(0) <= 1 || out.stride(0) == channels * width * height;
  const bool last = dense && (channels == 1 || out.stride(1) == 1) && out.stride(3) == channels &&
                    out.stride(2) == channels * width;
  const bool planar = output.type != Number::kUint8 && out.is_contiguous();
  output.planar = channels == 1 || (planar && !last);
  STD_TORCH_CHECK(out.numel() == 0 || last || planar,
                  "out must be dense in channels_last order, or, if it is floating point, contiguous");
  return output;
}

// Images of several sizes: out[0] has the first of jpegs, out[1] those that follow, and so on; or each goes
// to its row of places.
Tensor decode_sizes_out(std::vector<Tensor> jpegs, Tensor boxes, std::optional<Tensor> flip,
                        std::string interpolation, bool antialias, bool exact, int64_t max_pixels,
                        std::optional<Tensor> scale_shift, std::vector<Tensor> out, int64_t threads,
                        std::optional<Tensor> places) {
  std::vector<Output> outputs;
  int64_t count = 0;
  for (const Tensor& one : out) {
    outputs.push_back(output_of(one, scale_shift));
    count += outputs.back().count;
  }
  STD_TORCH_CHECK(!places || !outputs.empty(), "out must have a tensor");
  STD_TORCH_CHECK(places || count == static_cast<int64_t>(jpegs.size()), "out must have room for ",
                  jpegs.size(), " images, has ", count);
  std::vector<Job> jobs =
      plan(jpegs, boxes, outputs, flip, filter_of(interpolation, antialias), exact, max_pixels, places);
  return run(jobs, threads);
}

Tensor decode_batch_out(std::vector<Tensor> jpegs, Tensor boxes, std::optional<Tensor> flip,
                        std::string interpolation, bool antialias, bool exact, int64_t max_pixels,
                        std::optional<Tensor> scale_shift, Tensor out, int64_t threads) {
  return decode_sizes_out(jpegs, boxes, flip, interpolation, antialias, exact, max_pixels, scale_shift, {out},
                          threads, std::nullopt);
}

}  // namespace
}  // namespace tarpeg

STABLE_TORCH_LIBRARY_IMPL(tarpeg, CPU, m) {
  m.impl("decode_batch", TORCH_BOX(&tarpeg::decode_batch));
  m.impl("decode_batch_out", TORCH_BOX(&tarpeg::decode_batch_out));
  m.impl("decode_sizes_out", TORCH_BOX(&tarpeg::decode_sizes_out));
}
