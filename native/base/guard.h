#pragma once

#include <cstddef>
#include <cstdint>

// Maps of files that others may cut or that a disk may fail to read.
namespace tarpeg {

// Note [cut maps]. Reading a mapped page that its file no longer has is the signal SIGBUS, which ends the
// process; a check of the file's size before each access leaves a gap. Guarded maps are therefore repaired in
// the handler: the rest of the map, from that page on, becomes zeros, and *torn becomes 1. The reader
// continues, with wrong bytes, and must check *torn afterwards. Any other SIGBUS goes to the handler
// that was there before. Both functions take no lock: a fork may happen in any thread.
void guard_map(const void* map, size_t size, uint8_t* torn);

// Ends the guard with that torn; call it before the memory of either is freed.
void release_map(const uint8_t* torn);

}  // namespace tarpeg
