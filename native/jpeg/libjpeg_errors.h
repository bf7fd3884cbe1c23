#pragma once

#include <csetjmp>
#include <cstdio>

// jpeglib.h needs size_t and FILE declared before it.
// clang-format off
#include <jpeglib.h>
#include <jerror.h>
// clang-format on

#if !defined(LIBJPEG_TURBO_VERSION)
#error "jpeglib.h is not libjpeg-turbo's"  // tarpeg/ops/library.py knows this sentence
#endif

#include "base/status.h"

namespace tarpeg {

// Note [libjpeg error handling]
// libjpeg reports an error by calling back, and the callback must not return: it jumps. A jump over a C++
// frame runs no destructor, so the functions that call setjmp are noexcept, own nothing, and return a status.
// What owns memory (Decompressor, Transcoder) lives in the caller's frame. Every
// setjmp's return value is checked.
struct Errors {
  jpeg_error_mgr base;
  jmp_buf jump;
  Status status;
  bool is_checked;         // PlaneReader has judged the scan: surplus bytes in it are padding
  bool has_padding;        // there were such bytes
  size_t earlier_padding;  // bytes before restart markers that the next report of surplus bytes may include
};

// Installs the callbacks; `errors->base` is then libjpeg's `err`.
void set_errors(Errors* errors) noexcept;

// A libjpeg reader: created by begin(), destroyed with its holder, however far it came.
struct Decompressor {
  jpeg_decompress_struct info{};
  Errors errors{};

  Decompressor() noexcept;
  ~Decompressor();
  Decompressor(const Decompressor&) = delete;
  Decompressor& operator=(const Decompressor&) = delete;

  // Begins to read from memory. Jumps to `errors.jump` on an error, as whatever is done with `info` from here
  // on does on errors and on warnings that mean made-up pixels, with `errors.status` set. Limits the number
  // of scans: a progressive file may repeat them without end, each costing time for the whole picture.
  void begin(const uint8_t* data, size_t size);
  // Whether the scans up to EOI hold every bit of every coefficient of every component. Without one of them
  // libjpeg decodes to gray, or smooths, and does not warn: the file was cut, and closed again.
  bool is_complete() const noexcept;

 private:
  jpeg_progress_mgr progress_{};
  bool is_created_ = false;
};

}  // namespace tarpeg
