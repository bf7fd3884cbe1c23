#pragma once

// The threads that decode.
namespace tarpeg {

// Note [threads of our own]. Torch's parallel_for has three disadvantages. OpenMP's threads spin for a
// while after every batch, on cores that the training needs. Each thread that calls it gets its own
// team, whose size cannot be set for that thread alone. And in a forked child it hangs.
//
// Runs work(context) on `threads` threads at once, including the caller, and returns when all are done;
// with fewer if no more threads can be created. `work` must not throw. Several threads may call it at once.
// The threads sleep between calls and are never joined: they hold nothing when the process ends.
void run_on_threads(int threads, void (*work)(void*) noexcept, void* context);

}  // namespace tarpeg
