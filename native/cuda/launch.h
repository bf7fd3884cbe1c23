// tests/helpers/emulated_cuda/ replaces CUDA's runtime in tests without a GPU.
#ifndef TARPEG_CUDA_LAUNCH_H
#define TARPEG_CUDA_LAUNCH_H

#include <cuda_runtime.h>
#include <dlfcn.h>
#include <torch/csrc/stable/accelerator.h>
#include <torch/headeronly/util/Exception.h>

#include <cstdint>
#include <type_traits>

#define TARPEG_DEVICE __device__ __forceinline__
#define TARPEG_UNROLL _Pragma("unroll")
#if !defined(TARPEG_EMULATED)
#define TARPEG_DISPATCH CUDA
#define TARPEG_SHARED(type, name) __shared__ type name
#endif

namespace tarpeg {

inline void check_cuda(cudaError_t error, const char* what) {
  STD_TORCH_CHECK(error == cudaSuccess, what, ": ", cudaGetErrorString(error));
}

struct Stream {
  int32_t device;
  cudaStream_t handle;
};

// torch's current stream, looked up by name: torch 2.11 has no stable call for it, and libtorch_cuda, which
// contains the function, may be missing on the machine that compiles this library.
inline Stream current_stream(int32_t device) {
  using Ask = int32_t (*)(int32_t, void**);
  static const Ask ask = [] {
    void* torch = dlopen("libtorch_cuda.so", RTLD_LAZY | RTLD_NOLOAD);
    return reinterpret_cast<Ask>(dlsym(torch ? torch : RTLD_DEFAULT, "aoti_torch_get_current_cuda_stream"));
  }();
  STD_TORCH_CHECK(ask != nullptr, "this torch has no CUDA: aoti_torch_get_current_cuda_stream is missing");
  void* stream = nullptr;
  STD_TORCH_CHECK(ask(device, &stream) == 0, "torch has no current stream on device ", device);
  return {device, static_cast<cudaStream_t>(stream)};
}

// This library contains a CUDA runtime of its own, with its own current device: 0 in every new thread,
// whatever torch's DeviceGuard selects in torch's runtime. So each use of a stream sets the device first.
inline void use_device_of(const Stream& stream) { check_cuda(cudaSetDevice(stream.device), "cudaSetDevice"); }

template <class... Parameters>
void launch(void (*kernel)(Parameters...), dim3 blocks, unsigned threads, const Stream& stream,
            const char* name, std::decay_t<Parameters>... arguments) {
  use_device_of(stream);
  void* pointers[] = {&arguments...};
  check_cuda(cudaLaunchKernel(kernel, blocks, dim3(threads), pointers, 0, stream.handle), name);
}

inline void clear_async(void* data, size_t bytes, const Stream& stream) {
  use_device_of(stream);
  check_cuda(cudaMemsetAsync(data, 0, bytes, stream.handle), "cudaMemsetAsync");
}

// Adds every thread's value to *sum. All threads of the warp call it, for the same sum.
TARPEG_DEVICE void add_from_warp(unsigned long long* sum, uint32_t value) {
  const uint32_t total = __reduce_add_sync(0xFFFFFFFFu, value);
  if (threadIdx.x % 32 == 0) atomicAdd(sum, static_cast<unsigned long long>(total));
}

}  // namespace tarpeg

#endif
