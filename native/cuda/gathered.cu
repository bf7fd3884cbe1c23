#include <torch/csrc/stable/library.h>

#include <algorithm>
#include <tuple>
#include <vector>

#include "cuda/launch.h"
#include "gather/idct.h"
#include "gather/resample.h"
#include "gather/unpack.h"
#include "ops/checks.h"

// decode_gathered on a GPU, by the arithmetic of native/gather/. Images are the grid's second dimension, and
// the blocks of an image share its work. The CPU has not seen the tensor: plans_kernel checks the records.
namespace tarpeg {
namespace {

using namespace gather;

constexpr int kThreads = 128, kWarp = 32, kWarps = kThreads / kWarp;
constexpr int kMostAxes = 6, kLanes = 8;  // threads of a block of coefficients
using Peaks = double[kThreads];
using Codes = Code[kMostTables];
using Verdicts = bool[2 * kMostTables];
struct Zigzag {
  alignas(8) uint8_t natural[64];
};
using BlockStates = BlockState[kThreads / kLanes];
constexpr int kMostValues = 2 * kMostTileBlocks;
using TileBlocks = BlockValues[kMostValues];
constexpr int64_t kMostImages = 4096;  // in one launch: each block of plans_kernel looks at all of them
constexpr int64_t kMostShares = 256;   // blocks of an image

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

template <class T>
TARPEG_DEVICE void copy(const T* from, T* to, int threads) {
  static_assert(sizeof(T) % sizeof(uint32_t) == 0);
  const auto* const in = reinterpret_cast<const uint32_t*>(from);
  auto* const out = reinterpret_cast<uint32_t*>(to);
  for (unsigned i = threadIdx.x; i < sizeof(T) / sizeof(uint32_t); i += static_cast<unsigned>(threads))
    out[i] = in[i];
}

TARPEG_DEVICE uint8_t* memory_of(const Job& job, const Plan& plan) { return job.memory + plan.image.work; }

// The plan of the block's image, in shared memory. False, in all threads, if there is nothing to decode.
TARPEG_DEVICE bool load_plan(const Job& job, Plan* plan) {
  copy(job.plans + job.first + blockIdx.y, plan, kThreads);
  __syncthreads();
  return plan->image.status == 0;
}

TARPEG_DEVICE bool read(const Job& job, Gathered* all) {
  return read_header(job.data, job.bytes, job.count, job.height, job.width, job.channels, all);
}

// Of a thread: its warp among those of all blocks of its image, and its number in the warp.
TARPEG_DEVICE int warp_of() { return static_cast<int>(blockIdx.x * kWarps + threadIdx.x / kWarp); }
TARPEG_DEVICE int lane_of() { return static_cast<int>(threadIdx.x % kWarp); }

// A warp for each image of a launch, whose first thread makes the plan. An image has memory up to that of the
// next: that is its own if all are in order; if they are not, nothing is decoded.
__global__ void __launch_bounds__(kWarp) plans_kernel(Job job) {
  TARPEG_SHARED(Plan, plan);
  TARPEG_SHARED(bool, is_in_order);
  const uint32_t index = job.first + blockIdx.x, end = job.first + job.rows;
  auto* const words = reinterpret_cast<uint32_t*>(&plan);
  for (unsigned i = threadIdx.x; i < sizeof plan / sizeof *words; i += kWarp) words[i] = 0;
  if (threadIdx.x == 0) is_in_order = true;
  __syncthreads();
  Gathered all;
  const bool is_read = read(job, &all);
  if (is_read) copy(reinterpret_cast<const Image*>(all.images()) + index, &plan.image, kWarp);
  for (uint32_t i = job.first + threadIdx.x; is_read && i + 1 < end; i += kWarp) {
    if (all.work_of(i) > all.work_of(i + 1)) is_in_order = false;
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    const Image& image = plan.image;
    Status status = Status::kCorrupt;
    if (is_read && image.status != 0) {
      status = given_status(image);
    } else if (is_read && is_in_order && plan_image(all, &plan) && image.work % 64 == 0) {
      const uint64_t next = index + 1 < end ? all.work_of(index + 1) : job.work;
      if (next <= job.work && image.work <= next && plan.work <= next - image.work) status = Status::kOk;
    }
    plan.image.status = static_cast<int32_t>(status);
    job.statuses[index] = plan.image.status;
  }
  __syncthreads();
  copy(&plan, job.plans + index, kWarp);
}

// A block for each axis.
__global__ void __launch_bounds__(kThreads) weights_kernel(Job job) {
  TARPEG_SHARED(Plan, plan);
  TARPEG_SHARED(Peaks, peaks);
  if (!load_plan(job, &plan) || static_cast<int>(blockIdx.x) >= plan.axis_count) return;
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

// The Huffman codes of an image, by a block. False, in all threads, if one of them is impossible.
TARPEG_DEVICE bool build_codes(const Gathered& all, const Plan& plan, Code* codes) {
  TARPEG_SHARED(Verdicts, verdicts);
  const auto* const tables = reinterpret_cast<const Table*>(all.data + kUnit * plan.image.tables_at);
  const int count = plan.image.tables, number = static_cast<int>(threadIdx.x);
  for (int i = number; i < 256 * count; i += kThreads)
    codes[i / 256].symbols[i % 256] = tables[i / 256].symbols[i % 256];
  if (number < count) verdicts[number] = codes[number].build(tables[number].counts);
  __syncthreads();
  for (int i = 0; i < count; ++i) {
    if (!verdicts[i]) return false;
  }
  __syncthreads();
  // Each component's use of two tables.
  if (number < 2 * plan.components) {
    const int i = number / 2;
    verdicts[number] = number % 2 == 0 ? codes[plan.image.dc_table[i]].is_known(true)
                                       : codes[plan.image.ac_table[i]].is_known(false);
  }
  for (int i = number; i < count << Code::kLookahead; i += kThreads)
    codes[i >> Code::kLookahead].fill_quick(i & ((1 << Code::kLookahead) - 1));
  __syncthreads();
  for (int i = 0; i < 2 * plan.components; ++i) {
    if (!verdicts[i]) return false;
  }
  return true;
}

// A thread for each segment. If there are more threads, those between two segments rest: the fewer threads of
// a warp decode, the less of their ways they wait for.
__global__ void __launch_bounds__(kThreads) segments_kernel(Job job) {
  TARPEG_SHARED(Plan, plan);
  TARPEG_SHARED(Codes, codes);
  if (!load_plan(job, &plan) || plan.image.kind != static_cast<uint8_t>(Kind::kSegments)) return;
  const int64_t threads = int64_t{job.blocks} * kThreads, pieces = int64_t{plan.pieces};
  const int64_t apart = threads < pieces ? 1 : least(static_cast<int>(threads / pieces), kWarp);
  const int64_t thread = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (int64_t{blockIdx.x} * kThreads >= pieces * apart) return;
  Gathered all;
  read(job, &all);
  bool is_sound = build_codes(all, plan, codes);
  if (thread % apart != 0) return;
  for (int64_t i = thread / apart; i < pieces && is_sound; i += threads)
    is_sound = decode_segment(all, plan, static_cast<int>(i), codes, memory_of(job, plan));
  if (!is_sound) job.statuses[job.first + blockIdx.y] = static_cast<int32_t>(Status::kCorrupt);
}

// A thread for each packed tile, then one for each block of these tiles.
__global__ void __launch_bounds__(kThreads) tiles_kernel(Job job) {
  TARPEG_SHARED(Plan, plan);
  TARPEG_SHARED(TileBlocks, blocks);
  if (!load_plan(job, &plan) || plan.image.kind != static_cast<uint8_t>(Kind::kPacked)) return;
  Gathered all;
  read(job, &all);
  uint8_t* const memory = memory_of(job, plan);
  const int most = plan.image.tile * plan.mcu_blocks, thread = static_cast<int>(threadIdx.x);
  const int tiles = least(kThreads, kMostValues / most);
  for (int64_t first = int64_t{blockIdx.x} * tiles; first < int64_t{plan.pieces};
       first += int64_t{job.blocks} * tiles) {
    const int begin = static_cast<int>(first), count = least(tiles, static_cast<int>(plan.pieces) - begin);
    if (thread < count && !find_blocks(plan, tile_of(all, plan, begin + thread), blocks + thread * most))
      job.statuses[job.first + blockIdx.y] = static_cast<int32_t>(Status::kCorrupt);
    __syncthreads();
    for (int i = thread; i < count * most; i += kThreads) {
      const Tile tile = tile_of(all, plan, begin + i / most);
      if (i % most < wanted_blocks(plan, tile)) place_values(plan, tile, i % most, blocks[i], memory);
    }
    __syncthreads();
  }
}

// Eight threads for each block of coefficients: one for each row, and each column.
__global__ void __launch_bounds__(kThreads) idct_kernel(Job job) {
  TARPEG_SHARED(Plan, plan);
  TARPEG_SHARED(BlockStates, states);
  TARPEG_SHARED(Zigzag, zigzag);
  if (!load_plan(job, &plan)) return;
  uint8_t* const memory = memory_of(job, plan);
  const int lane = static_cast<int>(threadIdx.x) % kLanes, group = static_cast<int>(threadIdx.x) / kLanes;
  BlockState* const state = states + group;
  if (threadIdx.x < 64) zigzag.natural[threadIdx.x] = job.zigzag[threadIdx.x];
  __syncthreads();
  alignas(8) uint8_t natural[8];
  read_aligned<8>(zigzag.natural + 8 * lane, &natural);
  for (int i = 0; i < plan.wanted; ++i) {
    const gather::Plane& plane = plan.planes[i];
    const bool is_halved = plane.side == 4;
    for (int row = plane.first_row + static_cast<int>(blockIdx.x); row <= plane.last_row; row += job.blocks) {
      for (int first = plane.first_column; first <= plane.last_column; first += kThreads / kLanes) {
        const int column = first + group;
        const bool is_there = column <= plane.last_column;
        if (is_there) {
          load_eight(block_at(plan, plane, row, column, memory), plan.image.quantisers[i], natural, is_halved,
                     lane, state);
        }
        __syncthreads();
        if (is_there) transform_column(is_halved, lane, state);
        __syncthreads();
        if (is_there) transform_row(is_halved, lane, state);
        __syncthreads();
        if (is_there) put_row(plane, row, column, lane, *state, memory);
      }
    }
  }
}

// A warp for each line of the crop.
__global__ void __launch_bounds__(kThreads) pixels_kernel(Job job) {
  TARPEG_SHARED(Plan, plan);
  if (!load_plan(job, &plan) || plan.way == Way::kPlanes) return;
  for (int y = warp_of(); y < plan.box.height; y += job.blocks * kWarps)
    convert_line(plan, y, lane_of(), kWarp, memory_of(job, plan));
}

// A warp for each line between the passes.
__global__ void __launch_bounds__(kThreads) first_pass_kernel(Job job) {
  TARPEG_SHARED(Plan, plan);
  if (!load_plan(job, &plan) || plan.way == Way::kCopy) return;
  const int channels = plan.way == Way::kPlanes ? plan.wanted : plan.channels;
  for (int channel = 0; channel < channels; ++channel) {
    for (int y = warp_of(); y < line_count(plan); y += job.blocks * kWarps)
      first_pass(plan, channel, y, lane_of(), kWarp, memory_of(job, plan));
  }
}

// A warp for each row of the result; zeros if anything is damaged.
__global__ void __launch_bounds__(kThreads) result_kernel(Job job) {
  TARPEG_SHARED(Plan, plan);
  load_plan(job, &plan);
  const uint32_t image = job.first + blockIdx.y;
  const int64_t numbers = int64_t{job.height} * job.width * job.channels;
  uint8_t* const out = job.out + static_cast<uint64_t>(image) * static_cast<uint64_t>(numbers);
  if (job.statuses[image] == 0) {
    for (int row = kRowsAtOnce * warp_of(); row < plan.out_rows; row += kRowsAtOnce * job.blocks * kWarps)
      put_pixels(plan, row, lane_of(), kWarp, memory_of(job, plan), out);
  } else {
    const int64_t step = int64_t{job.blocks} * kThreads;
    for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < numbers; i += step) out[i] = 0;
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
  chunks.push_back(count);
  size_t chunk = 0;
  // Chunks use the same memory: the kernels of a stream run one after the other.
  for (int64_t first = 0, end = 0; first < count; first = end) {
    while (chunks[chunk] <= first) ++chunk;
    end = std::min(chunks[chunk], first + kMostImages);
    job.first = static_cast<uint32_t>(first);
    job.rows = static_cast<uint32_t>(end - first);
    launch(plans_kernel, dim3(job.rows), kWarp, stream, "plans of gathered images", job);
    const auto run = [&](auto kernel, int64_t numbers, int64_t of_block, const char* name) {
      job.blocks = static_cast<int>(std::clamp<int64_t>((numbers + of_block - 1) / of_block, 1, kMostShares));
      launch(kernel, dim3(static_cast<unsigned>(job.blocks), job.rows), kThreads, stream, name, job);
    };
    // Several rounds of a block, so that its plan is worth loading. Sizes of crops are unknown here, but for
    // the memory that they take.
    const int64_t share = work / job.rows, lines = std::max(height, width);
    constexpr int64_t kOfPiece = 4096, kOfRow = 16384, kRounds = 4;
    run(weights_kernel, kMostAxes, 1, "weights of gathered images");
    run(segments_kernel, share / kOfPiece * 4, kThreads, "segments of gathered images");
    run(tiles_kernel, share / kOfPiece, 40, "tiles of gathered images");
    run(idct_kernel, share / kOfRow, 1, "inverse DCT of gathered images");
    run(pixels_kernel, lines, kWarps * kRounds, "pixels of gathered images");
    run(first_pass_kernel, lines, kWarps * kRounds, "first pass of gathered images");
    run(result_kernel, lines, kWarps * kRounds, "second pass of gathered images");
  }
  return {images, statuses};
}

}  // namespace
}  // namespace tarpeg

STABLE_TORCH_LIBRARY_IMPL(tarpeg, TARPEG_DISPATCH, m) {
  m.impl("decode_gathered", TORCH_BOX(&tarpeg::decode_gathered));
}
