#include "base/guard.h"

#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>

namespace tarpeg {
namespace {

// One guarded map; never freed, but used again.
struct Guard {
  std::atomic<bool> taken{true};
  std::atomic<uintptr_t> begin{0}, end{0};
  std::atomic<uint8_t*> torn{nullptr};
  Guard* next = nullptr;
};

std::atomic<Guard*> guards{nullptr};
struct sigaction previous;
uintptr_t page_bytes = 4096;

// Replaces what is left of the guarded map around the address by zeros; false if there is none.
bool repair(uintptr_t address) noexcept {
  for (Guard* guard = guards; guard != nullptr; guard = guard->next) {
    uint8_t* torn = guard->torn;
    const uintptr_t end = guard->end;
    if (torn == nullptr || address < guard->begin || address >= end) continue;
    void* page = reinterpret_cast<void*>(address - address % page_bytes);
    const size_t size = end - reinterpret_cast<uintptr_t>(page);
    const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED;
    if (mmap(page, size, PROT_READ | PROT_WRITE, flags, -1, 0) == MAP_FAILED) return false;
    *torn = 1;
    return true;
  }
  return false;
}

void on_bus_error(int, siginfo_t* info, void*) {
  const int error = errno;
  const bool is_fault = info->si_code > 0;  // and not sent by a process
  if (!is_fault || !repair(reinterpret_cast<uintptr_t>(info->si_addr))) {
    // The access that failed runs again when this returns, and the previous handler gets its signal.
    sigaction(SIGBUS, &previous, nullptr);
    if (!is_fault) raise(SIGBUS);
  }
  errno = error;
}

// Again for every map: faulthandler, for one, may have been enabled meanwhile.
void install() noexcept {
  struct sigaction current = {}, own = {};
  if (sigaction(SIGBUS, nullptr, &current) != 0 || current.sa_sigaction == &on_bus_error) return;
  page_bytes = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  previous = current;
  own.sa_sigaction = &on_bus_error;
  own.sa_flags = SA_SIGINFO | SA_ONSTACK;
  sigemptyset(&own.sa_mask);
  sigaction(SIGBUS, &own, nullptr);
}

}  // namespace

void guard_map(const void* map, size_t size, uint8_t* torn) {
  install();
  Guard* guard = guards;
  bool taken = false;
  while (guard != nullptr && !guard->taken.compare_exchange_strong(taken, true)) {
    taken = false;
    guard = guard->next;
  }
  if (guard == nullptr) {
    guard = new Guard;
    guard->next = guards;
    while (!guards.compare_exchange_weak(guard->next, guard)) {
    }
  }
  guard->begin = reinterpret_cast<uintptr_t>(map);
  guard->end = guard->begin + size;
  guard->torn = torn;
}

void release_map(const uint8_t* torn) {
  for (Guard* guard = guards; guard != nullptr; guard = guard->next) {
    if (guard->torn != torn) continue;
    guard->torn = nullptr;
    guard->taken = false;
    return;
  }
}

}  // namespace tarpeg
