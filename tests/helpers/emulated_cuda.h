// Stands in for native/cuda/launch.h: the kernels as loops on the CPU, thread after thread, registered for
// CPU tensors. So a machine without a GPU can tell whether they compute what the CPU's operators do. Thread 0
// goes first, which is enough for kernels in which it prepares what the others of its block read.
#define TARPEG_CUDA_LAUNCH_H

#include <torch/csrc/stable/accelerator.h>
#include <torch/headeronly/util/Exception.h>

#include <cstdint>
#include <cstring>

#define TARPEG_DEVICE inline
#define TARPEG_UNROLL
#define TARPEG_DISPATCH CPU
#define __global__
#define __shared__ static
#define __launch_bounds__(threads)
#define __syncthreads()

struct dim3 {
  unsigned x = 1, y = 1, z = 1;
  dim3(unsigned x, unsigned y) : x(x), y(y) {}
};
using cudaStream_t = void*;
inline dim3 blockIdx(0, 0), threadIdx(0, 0);

namespace torch::stable::accelerator {
struct NoGuard {
  explicit NoGuard(int) {}
};
}  // namespace torch::stable::accelerator
#define DeviceGuard NoGuard

// How many kernels ran: proof that these were called.
extern "C" __attribute__((visibility("default"))) inline int64_t tarpeg_launches = 0;

namespace tarpeg {

inline cudaStream_t current_stream(int32_t) { return nullptr; }

template <class... Parameters, class... Arguments>
void launch(void (*kernel)(Parameters...), dim3 blocks, int threads, cudaStream_t, const char*,
            const Arguments&... arguments) {
  ++tarpeg_launches;
  for (blockIdx.y = 0; blockIdx.y < blocks.y; ++blockIdx.y) {
    for (blockIdx.x = 0; blockIdx.x < blocks.x; ++blockIdx.x) {
      for (threadIdx.x = 0; threadIdx.x < static_cast<unsigned>(threads); ++threadIdx.x) kernel(arguments...);
    }
  }
}

inline void clear_async(void* data, size_t bytes, cudaStream_t) { std::memset(data, 0, bytes); }

inline void add_from_warp(unsigned long long* sum, uint32_t value) { *sum += value; }

}  // namespace tarpeg
