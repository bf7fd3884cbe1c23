#pragma once

#include <csetjmp>
#include <cstdio>

// jpeglib.h needs size_t and FILE declared before it.
// clang-format off
#include <jpeglib.h>
#include <jerror.h>
// clang-format on

#include "status.h"

namespace tarpeg {

// Note [libjpeg error handling]
// libjpeg reports an error by calling back, and the callback must not return: it jumps. A jump over a C++
// frame runs no destructor, so the functions that call setjmp are noexcept, own nothing, and return a status.
// What owns memory (JpegReader::State, RawReader::State, Transcoder) lives in the caller's frame. Every
// setjmp's return value is looked at.
struct Errors {
  jpeg_error_mgr base;
  jmp_buf jump;
  Status status;
};

// Makes errors, and warnings that mean made-up pixels, jump to `errors->jump` with `errors->status` set.
jpeg_error_mgr* install(Errors* errors) noexcept;

// Creates `info`, whose error manager is installed, to read from memory; sets `created` as soon as it must be
// destroyed. Jumps on an error. Limits the number of scans: a progressive file may repeat them without end,
// each costing time for the whole picture.
void begin_reading(jpeg_decompress_struct* info, jpeg_progress_mgr* progress, bool* created,
                   const uint8_t* data, size_t size);

}  // namespace tarpeg
