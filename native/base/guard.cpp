#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <new>

#include "base/export.h"

// Maps of files that others may cut or that a disk may fail to read; for tarpeg.ops.decode.map_file.
//
// Note [cut maps]. Reading a mapped page that its file no longer has is the signal SIGBUS, which ends the
// process; a check of the file's size before each access leaves a gap. Guarded maps are therefore repaired in
// the handler: *torn becomes 1, and the rest of the map, from that page on, zeros. The reader continues, with
// wrong bytes, and must check *torn afterwards. Any other SIGBUS goes to the handler that was there before.
// Nothing here takes a lock: a fork may happen in any thread. These are no operators: a map may be released
// by the garbage collector, within any of torch's modes.
//
// Note [maps that take no memory]. Maps are private and read-only, and so are the zeros that replace a part
// of one. Linux counts private writable memory as committed when it is mapped, although only pages that are
// written to ever take memory: with overcommit_memory=2 (strict accounting), with its default where the map
// is larger than memory and swap together, and with RLIMIT_DATA, a shard larger than what is left could not
// be opened. Read-only private maps are in none of these sums (in the kernel's mm/vma.c, accountable_mapping
// and is_data_mapping ask for VM_WRITE): they are page cache, which is dropped when memory is short. Only
// RLIMIT_AS, the address space, counts them. A write to a map is a bug, and SIGSEGV.
namespace tarpeg {
namespace {

// One guarded map; never freed, but used again.
struct Guard {
  std::atomic<bool> taken{true};
  std::atomic<unsigned> version{0};  // odd while it guards: the rest changes only while it is even
  std::atomic<uintptr_t> begin{0}, end{0};
  std::atomic<uint8_t*> torn{nullptr};
  Guard* next = nullptr;
};

std::atomic<Guard*> guards{nullptr};
std::atomic<bool> is_passing{false};
struct sigaction previous;
uintptr_t page_bytes = 4096;

// Replaces what is left of the guarded map around the address by zeros; false if there is none.
bool repair(uintptr_t address) noexcept {
  for (Guard* guard = guards; guard != nullptr; guard = guard->next) {
    const unsigned version = guard->version;
    uint8_t* torn = guard->torn;
    const uintptr_t begin = guard->begin, end = guard->end;
    // The map of the reader that waits here does not change meanwhile.
    if (version % 2 == 0 || guard->version != version || address < begin || address >= end) continue;
    void* page = reinterpret_cast<void*>(address - address % page_bytes);
    const size_t size = end - reinterpret_cast<uintptr_t>(page);
    *torn = 1;  // before another thread can read zeros
    const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED;
    return mmap(page, size, PROT_READ, flags, -1, 0) != MAP_FAILED;  // see Note [maps that take no memory]
  }
  return false;
}

void on_bus_error(int signal, siginfo_t* info, void* context) {
  const int error = errno;
  const bool is_fault = info->si_code > 0;  // and not sent by a process
  if (!is_fault || !repair(reinterpret_cast<uintptr_t>(info->si_addr))) {
    // faulthandler, for one, restores what it found, perhaps this handler, and raises the signal again.
    const bool is_ignored = previous.sa_handler == SIG_IGN;
    if (is_passing.exchange(true) || previous.sa_handler == SIG_DFL || (is_ignored && is_fault)) {
      ::signal(signal, SIG_DFL);
      if (!is_fault) raise(signal);  // an access that failed runs again when this returns
    } else if (previous.sa_flags & SA_SIGINFO) {
      previous.sa_sigaction(signal, info, context);
    } else if (!is_ignored) {
      previous.sa_handler(signal);
    }
    is_passing = false;
  }
  errno = error;
}

}  // namespace
}  // namespace tarpeg

// Installs the handler; to be called before every batch, because faulthandler or others may have replaced it.
TARPEG_EXPORT void tarpeg_guard() noexcept {
  using namespace tarpeg;
  struct sigaction current = {}, own = {};
  if (sigaction(SIGBUS, nullptr, &current) != 0 || current.sa_sigaction == &on_bus_error) return;
  page_bytes = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  previous = current;
  own.sa_sigaction = &on_bus_error;
  own.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;  // a handler that is called may raise the signal again
  sigemptyset(&own.sa_mask);
  sigaction(SIGBUS, &own, nullptr);
}

// Maps the first `size` bytes of a file read-only and guards the map, until tarpeg_unmap, which must come
// before the memory of torn is freed. Returns its address, or a negative errno.
TARPEG_EXPORT int64_t tarpeg_map(int descriptor, size_t size, uint8_t* torn) noexcept {
  using namespace tarpeg;
  tarpeg_guard();
  struct stat found = {};
  if (fstat(descriptor, &found) != 0) return -errno;
  if (found.st_size < 0 || static_cast<uint64_t>(found.st_size) < size) return -EOVERFLOW;
  void* map = mmap(nullptr, size, PROT_READ, MAP_PRIVATE, descriptor, 0);
  if (map == MAP_FAILED) return -errno;
  Guard* guard = guards;
  bool taken = false;
  while (guard != nullptr && !guard->taken.compare_exchange_strong(taken, true)) {
    taken = false;
    guard = guard->next;
  }
  if (guard == nullptr) {
    guard = new (std::nothrow) Guard;
    if (guard == nullptr) {
      munmap(map, size);
      return -ENOMEM;
    }
    guard->next = guards;
    while (!guards.compare_exchange_weak(guard->next, guard)) {
    }
  }
  guard->begin = reinterpret_cast<uintptr_t>(map);
  guard->end = guard->begin + size;
  guard->torn = torn;
  ++guard->version;
  return static_cast<int64_t>(guard->begin);
}

TARPEG_EXPORT void tarpeg_unmap(int64_t map, size_t size, const uint8_t* torn) noexcept {
  for (tarpeg::Guard* guard = tarpeg::guards; guard != nullptr; guard = guard->next) {
    if (guard->version % 2 == 0 || guard->torn != torn) continue;
    ++guard->version;
    guard->taken = false;
    break;
  }
  munmap(reinterpret_cast<void*>(static_cast<uintptr_t>(map)), size);
}
