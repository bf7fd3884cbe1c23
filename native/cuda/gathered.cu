#include <torch/csrc/stable/library.h>

#include <algorithm>
#include <tuple>
#include <vector>

#include "cuda/launch.h"
#include "gather/resample.h"
#include "gather/unpack.h"
#include "ops/checks.h"

// decode_gathered on a GPU, by the arithmetic of native/gather/. Images are the grid's second dimension, and
// the blocks of an image share its work. The CPU has not seen the tensor: plans_kernel checks the records.
namespace tarpeg {
namespace {

using namespace gather;

constexpr int kThreads = 128, kSegmentThreads = 64, kWarp = 32;
using Peaks = double[kThreads];
using Codes = Code[kMostTables];
using Verdicts = bool[kMostTables];
constexpr int64_t kMostImages = 65535;  // in one launch

// Parameters of all kernels. Memory is that of `work` bytes, and the plans are before it.
struct Job {
  const uint8_t* data;
  uint64_t bytes, work;
  uint32_t count, height, width, channels;
  Plan* plans;
  uint8_t* memory;
  int32_t* statuses;
  uint8_t* out;
  uint8_t zigzag[64];
  uint32_t first, rows;  // images of the launch
  int blocks;            // of an image
};

TARPEG_DEVICE uint8_t* memory_of(const Job& job, const Plan& plan) { return job.memory + plan.image.work; }

// The plan of the block's image, in shared memory. False, in all threads, if there is nothing to decode.
TARPEG_DEVICE bool load_plan(const Job& job, int threads, Plan* plan) {
  const auto* const from = reinterpret_cast<const uint32_t*>(job.plans + job.first + blockIdx.y);
  auto* const to = reinterpret_cast<uint32_t*>(plan);
  static_assert(sizeof(Plan) % sizeof(uint32_t) == 0);
  for (int i = static_cast<int>(threadIdx.x); i < static_cast<int>(sizeof(Plan) / sizeof(uint32_t));
       i += threads)
    to[i] = from[i];
  __syncthreads();
  return plan->image.status == 0;
}

TARPEG_DEVICE bool read(const Job& job, Gathered* all) {
  return read_header(job.data, job.bytes, job.count, job.height, job.width, job.channels, all);
}

TARPEG_DEVICE int64_t first_of(int threads) { return int64_t{blockIdx.x} * threads + threadIdx.x; }

// Plans the images of a launch, each with memory up to that of the next. That is its own if all are in order;
// if they are not, nothing is decoded.
__global__ void __launch_bounds__(kThreads) plans_kernel(Job job) {
  TARPEG_SHARED(bool, is_in_order);
  Gathered all;
  const bool is_read = read(job, &all);
  const uint32_t end = job.first + job.rows;
  if (threadIdx.x == 0) is_in_order = true;
  __syncthreads();
  for (uint32_t i = job.first + threadIdx.x; is_read && i + 1 < end; i += kThreads) {
    if (all.work_of(i) > all.work_of(i + 1)) is_in_order = false;
  }
  __syncthreads();
  const uint32_t index = job.first + blockIdx.x * static_cast<uint32_t>(kThreads) + threadIdx.x;
  if (index >= end) return;
  Plan plan{};
  int32_t status = static_cast<int32_t>(Status::kCorrupt);
  if (is_read) {
    const Image image = all.image(index);
    if (image.status != 0) {
      const bool is_known = image.status > 0 && image.status <= static_cast<int32_t>(Status::kNotGathered);
      status = is_known ? image.status : status;
    } else if (is_in_order && plan_image(all, image, &plan) && image.work % 64 == 0) {
      const uint64_t next = index + 1 < end ? all.work_of(index + 1) : job.work;
      if (next <= job.work && image.work <= next && plan.work <= next - image.work) status = 0;
    }
  }
  plan.image.status = status;
  job.plans[index] = plan;
  job.statuses[index] = status;
}

// A block for each axis.
__global__ void __launch_bounds__(kThreads) weights_kernel(Job job) {
  TARPEG_SHARED(Plan, plan);
  TARPEG_SHARED(Peaks, peaks);
  if (!load_plan(job, kThreads, &plan) || static_cast<int>(blockIdx.x) >= plan.axis_count) return;
  Gathered all;
  read(job, &all);
  const AxisPlan& axis = plan.axes[blockIdx.x];
  const AxisView view(axis, memory_of(job, plan));
  double peak = -1e300;
  for (int i = static_cast<int>(threadIdx.x); i < axis.out; i += kThreads)
    peak = largest(peak, view.fill(axis, i, all.lanczos()));
  peaks[threadIdx.x] = peak;
  __syncthreads();
  if (threadIdx.x == 0) {
    for (int i = 0; i < kThreads; ++i) peak = largest(peak, peaks[i]);
    view.start[axis.out] = precision_of(axis, peak);
  }
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < axis.out; i += kThreads) view.round(i);
}

// A thread for each piece.
__global__ void __launch_bounds__(kSegmentThreads) segments_kernel(Job job) {
  TARPEG_SHARED(Plan, plan);
  TARPEG_SHARED(Codes, codes);
  TARPEG_SHARED(Verdicts, are_codes);
  if (!load_plan(job, kSegmentThreads, &plan)) return;
  if (plan.image.kind != static_cast<uint8_t>(Kind::kSegments)) return;
  Gathered all;
  read(job, &all);
  const int tables = plan.image.tables, number = static_cast<int>(threadIdx.x);
  if (number < tables) {
    Table table;
    memcpy(&table, all.data + kUnit * plan.image.tables_at + sizeof table * static_cast<uint64_t>(number),
           sizeof table);
    are_codes[number] = codes[number].build(table);
  }
  __syncthreads();
  bool is_sound = true;
  for (int i = 0; i < tables; ++i) is_sound = is_sound && are_codes[i];
  for (int i = 0; i < plan.components && is_sound; ++i) {
    is_sound = codes[plan.image.dc_table[i]].is_known(true) && codes[plan.image.ac_table[i]].is_known(false);
  }
  for (int i = number; i < tables << Code::kLookahead && is_sound; i += kSegmentThreads)
    codes[i >> Code::kLookahead].fill_quick(i & ((1 << Code::kLookahead) - 1));
  __syncthreads();
  const int64_t step = int64_t{job.blocks} * kSegmentThreads;
  for (int64_t i = first_of(kSegmentThreads); i < int64_t{plan.pieces} && is_sound; i += step)
    is_sound = decode_segment(all, plan, static_cast<int>(i), codes, job.zigzag, memory_of(job, plan));
  if (!is_sound) job.statuses[job.first + blockIdx.y] = static_cast<int32_t>(Status::kCorrupt);
}

// A warp for each piece.
__global__ void __launch_bounds__(kWarp) tiles_kernel(Job job) {
  TARPEG_SHARED(Plan, plan);
  TARPEG_SHARED(TileState, state);
  TARPEG_SHARED(bool, is_sound);
  if (!load_plan(job, kWarp, &plan)) return;
  if (plan.image.kind != static_cast<uint8_t>(Kind::kPacked)) return;
  Gathered all;
  read(job, &all);
  uint8_t* const memory = memory_of(job, plan);
  const int lane = static_cast<int>(threadIdx.x);
  for (int64_t index = blockIdx.x; index < int64_t{plan.pieces}; index += job.blocks) {
    const Tile tile = tile_of(all, plan, static_cast<int>(index));
    const int end = tile.blocks;
    for (int i = lane; i < end; i += kWarp) find_length(tile, i, &state);
    __syncthreads();
    if (lane == 0) find_masks(tile, &state);
    __syncthreads();
    for (int i = lane; i < end; i += kWarp) read_mask(tile, i, &state);
    __syncthreads();
    if (lane == 0) find_values(tile, &state);
    __syncthreads();
    for (int i = lane; i < end; i += kWarp) count_escapes(tile, i, &state);
    __syncthreads();
    if (lane == 0) find_bytes(tile, &state);
    __syncthreads();
    for (int i = lane; i < end; i += kWarp) count_wides(tile, i, &state);
    __syncthreads();
    if (lane == 0) is_sound = tile.bytes.size >= tile.head && find_wides(plan, tile, &state);
    __syncthreads();
    if (is_sound) {
      for (int i = lane; i < end; i += kWarp) place_values(plan, tile, i, job.zigzag, &state, memory);
      __syncthreads();
      if (lane < plan.wanted) sum_differences(plan, tile, lane, &state);
      __syncthreads();
      for (int i = lane; i < end; i += kWarp) place_dc(plan, tile, i, state, memory);
    } else if (lane == 0) {
      job.statuses[job.first + blockIdx.y] = static_cast<int32_t>(Status::kCorrupt);
    }
    __syncthreads();
  }
}

// A thread for each block of coefficients.
__global__ void __launch_bounds__(kThreads) idct_kernel(Job job) {
  TARPEG_SHARED(Plan, plan);
  if (!load_plan(job, kThreads, &plan)) return;
  uint8_t* const memory = memory_of(job, plan);
  for (int component = 0; component < plan.wanted; ++component) {
    const int64_t count = plan.planes[component].block_count(), step = int64_t{job.blocks} * kThreads;
    for (int64_t i = first_of(kThreads); i < count; i += step)
      transform_block(plan, component, static_cast<int>(i), memory);
  }
}

// A thread for each pixel of the crop.
__global__ void __launch_bounds__(kThreads) pixels_kernel(Job job) {
  TARPEG_SHARED(Plan, plan);
  if (!load_plan(job, kThreads, &plan) || plan.way == Way::kPlanes) return;
  const int64_t count = int64_t{plan.box.height} * plan.box.width, step = int64_t{job.blocks} * kThreads;
  for (int64_t i = first_of(kThreads); i < count; i += step) convert_pixel(plan, i, memory_of(job, plan));
}

// A thread for each number between the passes.
__global__ void __launch_bounds__(kThreads) first_pass_kernel(Job job) {
  TARPEG_SHARED(Plan, plan);
  if (!load_plan(job, kThreads, &plan) || plan.way == Way::kCopy) return;
  const int channels = plan.way == Way::kPlanes ? plan.wanted : plan.channels;
  for (int channel = 0; channel < channels; ++channel) {
    const int64_t count = between_count(plan, channel), step = int64_t{job.blocks} * kThreads;
    for (int64_t i = first_of(kThreads); i < count; i += step)
      first_pass(plan, channel, i, memory_of(job, plan));
  }
}

// A thread for each pixel of the result; zeros if anything is damaged.
__global__ void __launch_bounds__(kThreads) result_kernel(Job job) {
  TARPEG_SHARED(Plan, plan);
  load_plan(job, kThreads, &plan);
  const uint32_t image = job.first + blockIdx.y;
  const int64_t count = int64_t{job.height} * job.width, step = int64_t{job.blocks} * kThreads;
  uint8_t* const out = job.out + static_cast<uint64_t>(image) * static_cast<uint64_t>(count) * job.channels;
  const bool is_sound = job.statuses[image] == 0;
  for (int64_t i = first_of(kThreads); i < count; i += step) {
    if (is_sound) {
      put_pixel(plan, static_cast<int>(i / plan.out_columns), static_cast<int>(i % plan.out_columns),
                memory_of(job, plan), out);
    } else {
      for (uint32_t c = 0; c < job.channels; ++c) out[i * job.channels + c] = 0;
    }
  }
}

Tensor new_on_device(const Tensor& data, const std::vector<int64_t>& sizes,
                     const std::vector<int64_t>& strides, int32_t type) {
  AtenTensorHandle handle;
  TORCH_ERROR_CODE_CHECK(
      aoti_torch_empty_strided(static_cast<int64_t>(sizes.size()), sizes.data(), strides.data(), type,
                               data.is_cpu() ? aoti_torch_device_type_cpu() : aoti_torch_device_type_cuda(),
                               data.get_device_index(), &handle));
  return Tensor(handle);
}

std::tuple<Tensor, Tensor> decode_gathered(Tensor data, int64_t count, int64_t height, int64_t width,
                                           int64_t channels, int64_t work, std::vector<int64_t> chunks,
                                           int64_t) {
  STD_TORCH_CHECK(data.scalar_type() == ScalarType::Byte && data.dim() == 1 && data.is_contiguous(),
                  "data must be a contiguous uint8 tensor [n]");
  STD_TORCH_CHECK(reinterpret_cast<uintptr_t>(data.const_data_ptr()) % kUnit == 0,
                  "data must begin at a multiple of ", kUnit, " bytes");
  STD_TORCH_CHECK(channels == 1 || channels == 3, "channels must be 1 or 3, got ", channels);
  STD_TORCH_CHECK(count >= 0 && count <= INT32_MAX && work >= 0, "count and work must not be negative");
  check_chunks(chunks, count);
  check_size(height, "height");
  check_size(width, "width");
  const torch::stable::accelerator::DeviceGuard guard(data.get_device_index());
  const Stream stream = current_stream(data.get_device_index());
  Tensor images =
      new_on_device(data, {count, channels, height, width},
                    {channels * height * width, 1, channels * width, channels}, aoti_torch_dtype_uint8());
  Tensor statuses = new_on_device(data, {count}, {1}, aoti_torch_dtype_int32());
  if (count == 0) return {images, statuses};
  const int64_t plans = (count * static_cast<int64_t>(sizeof(Plan)) + 63) / 64 * 64;
  Tensor memory = new_on_device(data, {plans + work}, {1}, aoti_torch_dtype_uint8());
  Job job{};
  job.data = data.const_data_ptr<uint8_t>();
  job.bytes = static_cast<uint64_t>(data.numel());
  job.work = static_cast<uint64_t>(work);
  job.count = static_cast<uint32_t>(count);
  job.height = static_cast<uint32_t>(height);
  job.width = static_cast<uint32_t>(width);
  job.channels = static_cast<uint32_t>(channels);
  job.plans = static_cast<Plan*>(memory.mutable_data_ptr());
  job.memory = static_cast<uint8_t*>(memory.mutable_data_ptr()) + plans;
  job.statuses = static_cast<int32_t*>(statuses.mutable_data_ptr());
  job.out = static_cast<uint8_t*>(images.mutable_data_ptr());
  std::copy(kZigzag, kZigzag + 64, job.zigzag);
  const auto blocks_of = [](int64_t numbers) {
    return dim3(static_cast<unsigned>((numbers + kThreads - 1) / kThreads));
  };
  chunks.push_back(count);
  size_t chunk = 0;
  // Chunks use the same memory: the kernels of a stream run one after the other.
  for (int64_t first = 0, end = 0; first < count; first = end) {
    while (chunks[chunk] <= first) ++chunk;
    end = std::min(chunks[chunk], first + kMostImages);
    job.first = static_cast<uint32_t>(first);
    job.rows = static_cast<uint32_t>(end - first);
    launch(plans_kernel, blocks_of(end - first), kThreads, stream, "plans of gathered images", job);
    const auto run = [&](auto kernel, unsigned blocks, unsigned threads, const char* name) {
      job.blocks = static_cast<int>(blocks);
      launch(kernel, dim3(blocks, job.rows), threads, stream, name, job);
    };
    run(weights_kernel, 6, kThreads, "weights of gathered images");
    run(segments_kernel, 2, kSegmentThreads, "segments of gathered images");
    run(tiles_kernel, 32, kWarp, "tiles of gathered images");
    run(idct_kernel, 8, kThreads, "inverse DCT of gathered images");
    run(pixels_kernel, 16, kThreads, "pixels of gathered images");
    run(first_pass_kernel, 16, kThreads, "first pass of gathered images");
    run(result_kernel, 16, kThreads, "second pass of gathered images");
  }
  return {images, statuses};
}

}  // namespace
}  // namespace tarpeg

STABLE_TORCH_LIBRARY_IMPL(tarpeg, TARPEG_DISPATCH, m) {
  m.impl("decode_gathered", TORCH_BOX(&tarpeg::decode_gathered));
}
