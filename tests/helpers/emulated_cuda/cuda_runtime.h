// Stands in for CUDA's runtime, so that a machine without a GPU can run native/cuda: its operators take CPU
// tensors, and its kernels run here. What would be undefined or an error on a GPU is found:
// - The threads of a block run one after the other, each up to the next barrier, in an order that is drawn
// for
//   every phase. A result that depends on the order is not the CPU's in some of the blocks.
// - Shared memory holds no zeros when a block begins, and nothing of the block before it.
// - A barrier or a warp's sum that some threads do not reach ends the program.
// - A stream is usable only if its device is the thread's current one. Tensors are on "device -1", and a new
//   thread's device is 0, as in a copy of the runtime that torch does not know.
#pragma once

#include <dlfcn.h>
#include <ucontext.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <numeric>
#include <random>
#include <tuple>
#include <vector>

#if __has_include(<torch/csrc/stable/accelerator.h>)
#include <torch/csrc/stable/accelerator.h>

namespace torch::stable::accelerator {
struct NoGuard {
  explicit NoGuard(int) {}
};
}  // namespace torch::stable::accelerator
#define DeviceGuard NoGuard
#endif

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#endif

#define TARPEG_EMULATED
#define TARPEG_DISPATCH CPU
#define TARPEG_SHARED(type, name) type& name = emulated::shared_memory<type, __COUNTER__>()
#define __global__
#define __device__
#define __forceinline__ inline
#define __launch_bounds__(threads)
#define __syncthreads() emulated::wait(emulated::State::kAtBarrier)
#define dlsym emulated::symbol

struct dim3 {
  unsigned x, y, z;
  dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
};
inline dim3 blockIdx, threadIdx;

enum cudaError_t {
  cudaSuccess = 0,
  cudaErrorInvalidValue = 1,
  cudaErrorInvalidConfiguration = 9,
  cudaErrorInsufficientDriver = 35,
  cudaErrorInvalidDevice = 101,
  cudaErrorInvalidResourceHandle = 400
};
enum cudaMemcpyKind { cudaMemcpyDeviceToHost = 2 };
enum cudaStreamCaptureMode { cudaStreamCaptureModeRelaxed = 2 };
constexpr unsigned cudaStreamNonBlocking = 1;

struct CUstream_st {
  int device;
};
using cudaStream_t = CUstream_st*;

extern "C" {
// How many kernels ran: proof that these were called.
__attribute__((visibility("default"))) inline int64_t tarpeg_launches = 0;
// The error of the next launches.
__attribute__((visibility("default"))) inline int32_t tarpeg_launch_error = 0;
}

namespace emulated {

[[noreturn]] inline void fail(const char* what) {
  std::fprintf(stderr, "emulated CUDA: %s\n", what);
  std::abort();
}

enum class State { kAtBarrier, kInWarpSum, kDone };

constexpr size_t kStack = 1 << 16;

struct Stack {
  const void* begin;
  size_t size;
};

struct Place {
  void* words[5];
};

struct Thread {
  Place place;  // where it waits
  std::unique_ptr<char[]> memory;
  State state;
  uint32_t value;  // given to a warp's sum, and its result
};

// Shared memory of a kernel.
struct Shared {
  void* memory;
  size_t size;
  bool is_used;  // by the block that runs, or the last one
};

inline std::vector<Thread> threads;
inline Thread* running = nullptr;
inline std::vector<Shared*> shared;  // of all kernels
inline Place scheduler;
inline Stack scheduler_stack;
inline std::function<void()> body;
inline std::mt19937 random_numbers;
inline thread_local int current_device = 0;

// Leaves one stack for another, and returns when this one is resumed. ASan must know which one is in use, and
// has no marks in a frame that is never returned to. The compiler's own jumps take no system call, as
// swapcontext() does, and longjmp() under ASan. GCC must not find out that jumps do not return: before such a
// call ASan takes one to forget all marks of the stack, which are needed when it is resumed.
#define JUMPS __attribute__((noinline, noipa, no_sanitize_address))

JUMPS inline void jump(Place* to) { __builtin_longjmp(to->words, 1); }

template <class Jump>
JUMPS void change(Place* from, const Jump& leave, const Stack& to, Stack* left) {
#if defined(__SANITIZE_ADDRESS__)
  void* fake;
  __sanitizer_start_switch_fiber(&fake, to.begin, to.size);
  if (__builtin_setjmp(from->words) == 0) leave();
  __sanitizer_finish_switch_fiber(fake, &left->begin, &left->size);
#else
  (void)to, (void)left;
  if (__builtin_setjmp(from->words) == 0) leave();
#endif
}

inline void wait(State state) {
  Thread* self = running;
  self->state = state;
  change(&self->place, [] { jump(&scheduler); }, scheduler_stack, &scheduler_stack);
}

inline void run_threads() {
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(nullptr, &scheduler_stack.begin, &scheduler_stack.size);
#endif
  for (;;) {
    body();
    wait(State::kDone);
  }
}

JUMPS inline void start(Thread* thread) {
  ucontext_t first;
  getcontext(&first);
  first.uc_stack.ss_sp = thread->memory.get();
  first.uc_stack.ss_size = kStack;
  makecontext(&first, run_threads, 0);
  setcontext(&first);
  fail("setcontext");
}

inline void resume(unsigned number) {
  Thread& thread = threads[number];
  running = &thread;
  threadIdx = dim3(number, 0, 0);
  const bool is_new = !thread.memory;
  if (is_new) thread.memory.reset(new char[kStack]);
  Stack left;
  change(
      &scheduler, [&] { is_new ? start(&thread) : jump(&thread.place); }, {thread.memory.get(), kStack},
      &left);
}

inline Shared* add_shared(void* memory, size_t size) {
  std::memset(memory, 0xFF, size);
  shared.push_back(new Shared{memory, size, true});
  return shared.back();
}

template <class T, int kNumber>
T& shared_memory() {
  alignas(T) static char memory[sizeof(T)];
  static Shared* const added = add_shared(memory, sizeof memory);
  added->is_used = true;
  return *static_cast<T*>(added->memory);
}

// Forwards and backwards are drawn more often than chance has it: each puts a reader before its writer, or
// after it.
inline const std::vector<unsigned>& drawn_order(unsigned count, std::vector<unsigned>& order) {
  order.resize(count);
  std::iota(order.begin(), order.end(), 0);
  const auto way = random_numbers() % 4;
  if (way == 1) std::reverse(order.begin(), order.end());
  if (way > 1) std::shuffle(order.begin(), order.end(), random_numbers);
  return order;
}

inline unsigned how_many(State state, unsigned begin, unsigned end) {
  return static_cast<unsigned>(std::count_if(threads.begin() + begin, threads.begin() + end,
                                             [&](const Thread& thread) { return thread.state == state; }));
}

// Runs a warp up to a barrier, or to its end: a warp's sum does not wait for other warps.
inline void run_warp(unsigned begin, unsigned end) {
  static std::vector<unsigned> order;
  for (;;) {
    for (const unsigned lane : drawn_order(end - begin, order)) resume(begin + lane);
    const unsigned lanes = how_many(State::kInWarpSum, begin, end);
    if (lanes == 0) return;
    if (lanes < 32) fail("a warp's sum is not reached by all threads of the warp");
    uint32_t sum = 0;
    for (unsigned i = begin; i < end; ++i) sum += threads[i].value;
    for (unsigned i = begin; i < end; ++i) threads[i].value = sum;
  }
}

inline void run_block(unsigned count) {
  for (Shared* each : shared) {
    if (each->is_used) std::memset(each->memory, 0xFF, each->size);
    each->is_used = false;
  }
  static std::vector<unsigned> order;
  for (;;) {
    for (const unsigned warp : drawn_order((count + 31) / 32, order))
      run_warp(32 * warp, std::min(32 * warp + 32, count));
    const unsigned waiting = how_many(State::kAtBarrier, 0, count);
    if (waiting == 0) return;
    if (waiting < count) fail("a barrier is not reached by all threads of the block");
  }
}

inline void run_grid(dim3 blocks, unsigned count) {
  if (threads.size() < count) threads.resize(count);
  for (unsigned y = 0; y < blocks.y; ++y) {
    for (unsigned x = 0; x < blocks.x; ++x) {
      blockIdx = dim3(x, y, 0);
      run_block(count);
    }
  }
}

inline int32_t current_stream(int32_t device, void** stream) {
  static CUstream_st streams[] = {{-1}, {0}, {1}};
  if (device < -1 || device > 1) return 1;
  *stream = &streams[device + 1];
  return 0;
}

inline void* symbol(void*, const char* name) {
  const bool is_known = std::strcmp(name, "aoti_torch_get_current_cuda_stream") == 0;
  return is_known ? reinterpret_cast<void*>(&current_stream) : nullptr;
}

template <class... Parameters, size_t... I>
std::tuple<Parameters...> values_of(void** arguments, std::index_sequence<I...>) {
  return {*static_cast<Parameters*>(arguments[I])...};
}

inline cudaError_t check(cudaStream_t stream) {
  return stream->device == current_device ? cudaSuccess : cudaErrorInvalidResourceHandle;
}

}  // namespace emulated

inline uint32_t __reduce_add_sync(uint32_t mask, uint32_t value) {
  if (mask != 0xFFFFFFFF) emulated::fail("the sum of a part of a warp is not emulated");
  emulated::running->value = value;
  emulated::wait(emulated::State::kInWarpSum);
  return emulated::running->value;
}

template <class T>
T atomicAdd(T* sum, T value) {
  const T before = *sum;
  *sum += value;
  return before;
}

inline cudaError_t cudaSetDevice(int device) {
  if (device < -1 || device > 1) return cudaErrorInvalidDevice;
  emulated::current_device = device;
  return cudaSuccess;
}

template <class... Parameters>
cudaError_t cudaLaunchKernel(void (*kernel)(Parameters...), dim3 blocks, dim3 threads, void** arguments,
                             size_t, cudaStream_t stream) {
  if (tarpeg_launch_error) return static_cast<cudaError_t>(tarpeg_launch_error);
  if (emulated::check(stream) != cudaSuccess) return cudaErrorInvalidResourceHandle;
  if (blocks.x < 1 || blocks.x > 0x7FFFFFFF || blocks.y < 1 || blocks.y > 65535 || blocks.z != 1 ||
      threads.x < 1 || threads.x > 1024 || threads.y != 1 || threads.z != 1) {
    return cudaErrorInvalidConfiguration;
  }
  const auto values = emulated::values_of<Parameters...>(arguments, std::index_sequence_for<Parameters...>());
  emulated::body = [&] { std::apply(kernel, values); };
  ++tarpeg_launches;
  emulated::run_grid(blocks, threads.x);
  return cudaSuccess;
}

inline cudaError_t cudaMemsetAsync(void* data, int value, size_t bytes, cudaStream_t stream) {
  std::memset(data, value, bytes);
  return emulated::check(stream);
}

inline cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind,
                                   cudaStream_t stream) {
  std::memcpy(to, from, bytes);
  return emulated::check(stream);
}

inline cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
  *stream = new CUstream_st{emulated::current_device};
  return cudaSuccess;
}

inline cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  delete stream;
  return cudaSuccess;
}

inline cudaError_t cudaStreamSynchronize(cudaStream_t) { return cudaSuccess; }
inline cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode*) { return cudaSuccess; }

template <class T>
cudaError_t cudaMalloc(T** data, size_t bytes) {
  *data = static_cast<T*>(std::malloc(bytes));
  return cudaSuccess;
}

inline cudaError_t cudaFree(void* data) {
  std::free(data);
  return cudaSuccess;
}

inline const char* cudaGetErrorString(cudaError_t error) {
  switch (error) {
    case cudaErrorInsufficientDriver:
      return "CUDA driver version is insufficient for CUDA runtime version";
    case cudaErrorInvalidConfiguration:
      return "invalid configuration argument";
    case cudaErrorInvalidResourceHandle:
      return "invalid resource handle";
    default:
      return "another error";
  }
}
