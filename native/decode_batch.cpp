#include <algorithm>
#include <atomic>
#include <cstring>
#include <new>
#include <optional>
#include <string>
#include <tuple>

#include "checks.h"

namespace tarpeg {
namespace {

Filter filter_of(const std::string& interpolation, bool antialias) {
  if (interpolation == "nearest") return Filter::kNearest;
  STD_TORCH_CHECK(interpolation == "bilinear", "interpolation must be 'bilinear' or 'nearest', got '",
                  interpolation, "'");
  return antialias ? Filter::kAntialias : Filter::kBilinear;
}

// One image to be decoded, with plain pointers: worker threads touch no tensor.
struct Job {
  const uint8_t* data;
  size_t size;
  Request request;
  Header header;
};

std::vector<Job> plan(const std::vector<Tensor>& jpegs, const Tensor& boxes, int64_t height, int64_t width,
                      const std::optional<Tensor>& flip, Filter filter, bool exact, int64_t max_pixels) {
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
                   max_pixels};
  }
  return jobs;
}

Tensor run(std::vector<Job>& jobs, uint8_t* out, size_t image_bytes) {
  const int64_t count = static_cast<int64_t>(jobs.size());
  Tensor statuses = new_images({count}, {1}, ScalarType::Int);
  int32_t* status = statuses.mutable_data_ptr<int32_t>();
  std::atomic<int64_t> next{0};
  std::atomic<bool> out_of_memory{false};
  // Images differ in cost: each thread takes the next one when it is done, instead of an equal share.
  const auto work = [&](int64_t, int64_t) {
    static thread_local Scratch scratch;
    for (int64_t i = next++; i < count; i = next++) {
      uint8_t* image = out + static_cast<size_t>(i) * image_bytes;
      Status result = Status::kCorrupt;
      try {
        result = decode_sample(jobs[i].data, jobs[i].size, jobs[i].request, &scratch, &jobs[i].header, image);
      } catch (const std::bad_alloc&) {  // parallel_for prints noise when an exception leaves its body
        out_of_memory = true;
      }
      if (result != Status::kOk) std::memset(image, 0, image_bytes);
      status[i] = static_cast<int32_t>(result);
    }
  };
  if (count > 0) {
    torch::stable::parallel_for(0, std::min<int64_t>(count, torch::stable::get_num_threads()), 1, work);
  }
  STD_TORCH_CHECK(!out_of_memory, "out of memory while decoding a batch of ", count, " images");
  for (int64_t i = 0; i < count; ++i) {
    if (status[i] != static_cast<int32_t>(Status::kBoxOutside)) continue;
    const Box& box = jobs[i].request.box;
    STD_TORCH_CHECK(false, "boxes[", i, "] (", box.top, ", ", box.left, ", ", box.height, ", ", box.width,
                    ") is outside its image of ", jobs[i].header.upright_height(), " x ",
                    jobs[i].header.upright_width());
  }
  return statuses;
}

std::tuple<Tensor, Tensor> decode_batch(std::vector<Tensor> jpegs, Tensor boxes, int64_t height,
                                        int64_t width, std::optional<Tensor> flip, std::string interpolation,
                                        bool antialias, bool exact, int64_t max_pixels) {
  std::vector<Job> jobs =
      plan(jpegs, boxes, height, width, flip, filter_of(interpolation, antialias), exact, max_pixels);
  const int64_t count = static_cast<int64_t>(jobs.size()), pixels = height * width;
  Tensor images = new_images({count, 3, height, width}, {3 * pixels, 1, 3 * width, 3});
  Tensor statuses = run(jobs, images.mutable_data_ptr<uint8_t>(), static_cast<size_t>(3 * pixels));
  return {images, statuses};
}

Tensor decode_batch_out(std::vector<Tensor> jpegs, Tensor boxes, std::optional<Tensor> flip,
                        std::string interpolation, bool antialias, bool exact, int64_t max_pixels,
                        Tensor out) {
  STD_TORCH_CHECK(out.is_cpu() && out.scalar_type() == ScalarType::Byte && out.dim() == 4 &&
                      out.size(0) == static_cast<int64_t>(jpegs.size()) && out.size(1) == 3,
                  "out must be a uint8 tensor [", jpegs.size(), ", 3, height, width] on the CPU");
  const int64_t height = out.size(2), width = out.size(3);
  STD_TORCH_CHECK(out.numel() == 0 || (out.stride(1) == 1 && out.stride(3) == 3 &&
                                       out.stride(2) == 3 * width && out.stride(0) == 3 * width * height),
                  "out must be dense in channels_last order");
  std::vector<Job> jobs =
      plan(jpegs, boxes, height, width, flip, filter_of(interpolation, antialias), exact, max_pixels);
  return run(jobs, out.mutable_data_ptr<uint8_t>(), static_cast<size_t>(3 * height * width));
}

}  // namespace
}  // namespace tarpeg

STABLE_TORCH_LIBRARY_IMPL(tarpeg, CPU, m) {
  m.impl("decode_batch", TORCH_BOX(&tarpeg::decode_batch));
  m.impl("decode_batch_out", TORCH_BOX(&tarpeg::decode_batch_out));
}
