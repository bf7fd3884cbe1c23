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

namespace tarpeg {
namespace {

Filter filter_of(const std::string& interpolation, bool antialias) {
  if (interpolation == "nearest") return Filter::kNearest;
  if (interpolation == "nearest-exact") return Filter::kNearestExact;
  if (interpolation == "bilinear") return antialias ? Filter::kAntialias : Filter::kBilinear;
  if (interpolation == "bicubic") return antialias ? Filter::kBicubic : Filter::kSharpBicubic;
  STD_TORCH_CHECK(antialias, "antialias must be true for interpolation '", interpolation, "'");
  if (interpolation == "lanczos") return Filter::kLanczos;
  STD_TORCH_CHECK(interpolation == "box" || interpolation == "area", "interpolation must not be '",
                  interpolation, "'");
  return Filter::kBox;
}

constexpr int64_t kMostThreads = 1024;

// One image to be decoded, with plain pointers: the threads touch no tensor.
struct Job {
  const uint8_t* data;
  size_t size;
  Request request;
  Header header;
};

std::vector<Job> plan(const std::vector<Tensor>& jpegs, const Tensor& boxes, int64_t height, int64_t width,
                      const std::optional<Tensor>& flip, Filter filter, bool exact, int64_t max_pixels,
                      int64_t channels) {
  const int64_t count = static_cast<int64_t>(jpegs.size());
  STD_TORCH_CHECK(boxes.is_cpu() && boxes.scalar_type() == ScalarType::Int && boxes.is_contiguous() &&
                      boxes.dim() == 2 && boxes.size(0) == count && boxes.size(1) == 4,
                  "boxes must be a contiguous int32 tensor [", count, ", 4] on the CPU");
  STD_TORCH_CHECK(!flip || (flip->is_cpu() && flip->scalar_type() == ScalarType::Bool &&
                            flip->is_contiguous() && flip->dim() == 1 && flip->size(0) == count),
                  "flip must be a contiguous bool tensor [", count, "] on the CPU");
  const int32_t* box = boxes.const_data_ptr<int32_t>();
  const bool* mirror = flip ? flip->const_data_ptr<bool>() : nullptr;
  std::vector<Job> jobs(count);
  for (int64_t i = 0; i < count; ++i, box += 4) {
    check_bytes(jpegs[i], "jpegs", i);
    Job& job = jobs[i];
    job.data = jpegs[i].const_data_ptr<uint8_t>();
    job.size = static_cast<size_t>(jpegs[i].numel());
    job.request = {{box[0], box[1], box[2], box[3]},
                   check_size(height, "height"),
                   check_size(width, "width"),
                   mirror != nullptr && mirror[i],
                   filter,
                   exact,
                   max_pixels,
                   channels == 1};
  }
  return jobs;
}

// Where the images of a batch go, one after the other.
struct Output {
  uint8_t* data;
  int64_t channels, height, width;
  Number type = Number::kUint8;
  Normalisation how = {};  // of floating-point types
  bool planar = false;

  size_t numbers() const noexcept { return static_cast<size_t>(channels * height * width); }  // of an image
  size_t image_bytes() const noexcept { return numbers() * static_cast<size_t>(size_of(type)); }
};

Status decode_into(Job* job, const Output& output, uint8_t* image) {
  static thread_local std::vector<uint8_t> bytes;
  if (output.type == Number::kUint8) {
    return decode_image(job->data, job->size, job->request, &job->header, image);
  }
  // The bytes of one image stay in the cache until they are normalised.
  if (bytes.size() < output.numbers()) bytes.resize(output.numbers());
  const Status status = decode_image(job->data, job->size, job->request, &job->header, bytes.data());
  if (status == Status::kOk) {
    const Target target = {image, output.type, output.height, output.width, output.planar, false};
    const int channels = static_cast<int>(output.channels);
    normalise({bytes.data(), channels, 1, false, channels}, output.how, 0, output.height * output.width,
              target);
  }
  if (held_bytes(bytes) > kMostKept) std::vector<uint8_t>().swap(bytes);
  return status;
}

// State shared by the threads of one batch.
struct Batch {
  std::vector<Job>* jobs;
  const Output* output;
  int32_t* status;
  std::atomic<int64_t> next{0};
  std::atomic<Status> failure{Status::kOk};  // not the fault of a file

  // Images differ in cost: each thread takes the next one when it is done, instead of an equal share.
  void work() noexcept {
    const int64_t count = static_cast<int64_t>(jobs->size());
    for (int64_t i = next++; i < count; i = next++) {
      uint8_t* image = output->data + static_cast<size_t>(i) * output->image_bytes();
      Status result = Status::kCorrupt;
      try {
        result = decode_into(&(*jobs)[i], *output, image);
      } catch (const std::exception&) {
        result = Status::kOutOfMemory;
      }
      if (result == Status::kOutOfMemory || result == Status::kOtherLibrary) failure = result;
      if (result != Status::kOk) std::memset(image, 0, output->image_bytes());
      status[i] = static_cast<int32_t>(result);
    }
  }
};

Tensor run(std::vector<Job>& jobs, const Output& output, int64_t threads) {
  const int64_t count = static_cast<int64_t>(jobs.size());
  Tensor statuses = new_images({count}, {1}, ScalarType::Int);
  int32_t* status = statuses.mutable_data_ptr<int32_t>();
  Batch batch{&jobs, &output, status};
  const int64_t wanted = threads > 0 ? threads : torch::stable::get_num_threads();
  const auto work = [](void* shared) noexcept { static_cast<Batch*>(shared)->work(); };
  run_on_threads(static_cast<int>(std::min({count, wanted, kMostThreads})), work, &batch);
  check_status(batch.failure);
  for (int64_t i = 0; i < count; ++i) {
    if (status[i] != static_cast<int32_t>(Status::kBoxOutside)) continue;
    const Box& box = jobs[i].request.box;
    STD_TORCH_CHECK(false, "boxes[", i, "] (", box.top, ", ", box.left, ", ", box.height, ", ", box.width,
                    ") is outside its image of ", jobs[i].header.upright_height(), " x ",
                    jobs[i].header.upright_width());
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
  std::vector<Job> jobs = plan(jpegs, boxes, height, width, flip, filter_of(interpolation, antialias), exact,
                               max_pixels, channels);
  const int64_t count = static_cast<int64_t>(jobs.size()), pixels = height * width;
  Tensor images =
      new_images({count, channels, height, width}, {channels * pixels, 1, channels * width, channels});
  Tensor statuses = run(jobs, {images.mutable_data_ptr<uint8_t>(), channels, height, width}, threads);
  return {images, statuses};
}

Tensor decode_batch_out(std::vector<Tensor> jpegs, Tensor boxes, std::optional<Tensor> flip,
                        std::string interpolation, bool antialias, bool exact, int64_t max_pixels,
                        std::optional<Tensor> scale_shift, Tensor out, int64_t threads) {
  STD_TORCH_CHECK(out.is_cpu() && out.dim() == 4 && out.size(0) == static_cast<int64_t>(jpegs.size()) &&
                      (out.size(1) == 1 || out.size(1) == 3),
                  "out must be a tensor [", jpegs.size(), ", 1 or 3, height, width] on the CPU");
  const int64_t channels = out.size(1), height = out.size(2), width = out.size(3);
  Output output = {static_cast<uint8_t*>(out.mutable_data_ptr()), channels, height, width};
  output.type = number_of(out.scalar_type(), "out");
  output.how = normalisation_of(scale_shift, output.type, channels);
  const bool dense = out.stride(0) == channels * width * height;
  const bool last = dense && (channels == 1 || out.stride(1) == 1) && out.stride(3) == channels &&
                    out.stride(2) == channels * width;
  const bool planar = output.type != Number::kUint8 && out.is_contiguous();
  output.planar = channels == 1 || (planar && !last);
  STD_TORCH_CHECK(out.numel() == 0 || last || planar,
                  "out must be dense in channels_last order, or, if it is floating point, contiguous");
  std::vector<Job> jobs = plan(jpegs, boxes, height, width, flip, filter_of(interpolation, antialias), exact,
                               max_pixels, channels);
  return run(jobs, output, threads);
}

}  // namespace
}  // namespace tarpeg

STABLE_TORCH_LIBRARY_IMPL(tarpeg, CPU, m) {
  m.impl("decode_batch", TORCH_BOX(&tarpeg::decode_batch));
  m.impl("decode_batch_out", TORCH_BOX(&tarpeg::decode_batch_out));
}
