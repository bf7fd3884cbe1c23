#include "base/pool.h"

#include <pthread.h>
#include <signal.h>

#include <condition_variable>
#include <deque>
#include <mutex>
#include <new>
#include <system_error>
#include <thread>

namespace tarpeg {
namespace {

struct Call {
  void (*work)(void*) noexcept;
  void* context;
  int running = 0;  // threads of the pool that are in work()
};

class Pool {
 public:
  void run(int threads, Call* call) {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      grow(threads - 1);
      tickets_.insert(tickets_.end(), threads - 1, call);
    }
    wake_.notify_all();
    call->work(call->context);
    std::unique_lock<std::mutex> lock(mutex_);
    // The work is done: threads that have not begun are not needed.
    for (auto ticket = tickets_.begin(); ticket != tickets_.end();) {
      ticket = *ticket == call ? tickets_.erase(ticket) : ticket + 1;
    }
    done_.wait(lock, [call] { return call->running == 0; });
  }

 private:
  void grow(int threads) {
    // Signals belong to Python's own threads; but one that a thread itself causes, while it is blocked, ends
    // the process without its handler, such as the one for mapped files that are cut.
    sigset_t all, before;
    sigfillset(&all);
    for (const int own : {SIGBUS, SIGSEGV, SIGFPE, SIGILL}) sigdelset(&all, own);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    try {
      for (; size_ < threads; ++size_) std::thread([this] { serve(); }).detach();
    } catch (const std::system_error&) {  // no more threads: the existing ones do the work
    } catch (const std::bad_alloc&) {
    }
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
  }

  void serve() {
#if defined(__APPLE__)
    pthread_setname_np("tarpeg");
#else
    pthread_setname_np(pthread_self(), "tarpeg");
#endif
    std::unique_lock<std::mutex> lock(mutex_);
    for (;;) {
      wake_.wait(lock, [this] { return !tickets_.empty(); });
      Call* call = tickets_.front();
      tickets_.pop_front();
      ++call->running;
      lock.unlock();
      call->work(call->context);
      lock.lock();
      if (--call->running == 0) done_.notify_all();
    }
  }

  std::mutex mutex_;
  std::condition_variable wake_, done_;
  std::deque<Call*> tickets_;
  int size_ = 0;
};

Pool* pool = nullptr;
std::mutex making;

// A forked child has none of its parent's threads, and perhaps a mutex that one of them held.
void forget() {
  pool = nullptr;
  new (&making) std::mutex;
}

// When the library is loaded: a fork within the first call would find it half done.
[[maybe_unused]] const int registered = pthread_atfork(nullptr, nullptr, forget);

Pool& the_pool() {
  const std::lock_guard<std::mutex> lock(making);
  if (pool == nullptr) pool = new Pool;  // never deleted: its threads may outlive every destructor
  return *pool;
}

}  // namespace

void run_on_threads(int threads, void (*work)(void*) noexcept, void* context) {
  if (threads <= 1) return work(context);
  Call call{work, context};
  the_pool().run(threads, &call);
}

}  // namespace tarpeg
