#pragma once

// A function that Python finds by ctypes; the library exports no other symbol (tarpeg/ops/library.py).
#define TARPEG_EXPORT extern "C" __attribute__((visibility("default")))
