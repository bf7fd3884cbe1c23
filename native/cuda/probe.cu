#include <exception>
#include <memory>
#include <string>

#include "base/export.h"
#include "cuda/launch.h"

// For tarpeg.ops.library: whether the kernels of this library run on a GPU. A library loads even if the
// driver is too old for it, or the GPU has neither machine code in it nor PTX that the driver compiles.
namespace tarpeg {
namespace {

__global__ void probe_kernel(int32_t* out, int32_t value) { *out = value; }

void probe(int32_t device) {
  current_stream(device);  // the operators use torch's; a capture may be in progress on that
  check_cuda(cudaSetDevice(device), "cudaSetDevice");
  cudaStream_t handle = nullptr;
  check_cuda(cudaStreamCreateWithFlags(&handle, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
  const std::unique_ptr<CUstream_st, cudaError_t (*)(cudaStream_t)> owner(handle, cudaStreamDestroy);
  int32_t* data = nullptr;
  check_cuda(cudaMalloc(&data, sizeof *data), "cudaMalloc");
  const std::unique_ptr<int32_t, cudaError_t (*)(void*)> memory(data, cudaFree);
  constexpr int32_t kValue = 0x7A97E6;
  launch(probe_kernel, dim3(1), 1, {device, handle}, "a kernel of one element", data, kValue);
  int32_t result = 0;
  check_cuda(cudaMemcpyAsync(&result, data, sizeof result, cudaMemcpyDeviceToHost, handle),
             "cudaMemcpyAsync");
  check_cuda(cudaStreamSynchronize(handle), "a kernel of one element");
  STD_TORCH_CHECK(result == kValue, "a kernel of one element wrote ", result, " instead of ", kValue);
}

}  // namespace
}  // namespace tarpeg

// Runs a kernel on that GPU and waits for its result. Returns null, or the reason why it failed, which is
// valid until the thread's next call.
TARPEG_EXPORT const char* tarpeg_cuda_probe(int32_t device) noexcept {
  static thread_local std::string reason;
  // Allocation and waiting would break a capture that another part of the program has begun.
  cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
  cudaThreadExchangeStreamCaptureMode(&mode);
  const char* found = nullptr;
  try {
    tarpeg::probe(device);
  } catch (const std::exception& error) {
    reason = error.what();
    found = reason.c_str();
  }
  cudaThreadExchangeStreamCaptureMode(&mode);
  return found;
}
