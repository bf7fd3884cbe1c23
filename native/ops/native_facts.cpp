#include <dlfcn.h>

#include <cstdlib>
#include <string>

#include "base/export.h"
#include "base/simd.h"
#include "jpeg/libjpeg_errors.h"
#include "ops/checks.h"

// Facts about the library for tarpeg.ops.decode.native_facts: lines of NAME=VALUE.
namespace tarpeg {
namespace {

#define TARPEG_QUOTED(text) #text
#define TARPEG_TEXT_OF(macro) TARPEG_QUOTED(macro)

std::string libjpeg_file() {
  Dl_info found;
  return dladdr(reinterpret_cast<void*>(&jpeg_std_error), &found) != 0 ? found.dli_fname : "";
}

bool is_other_library(Decompressor* reader) noexcept {
  if (setjmp(reader->errors.jump)) return reader->errors.status == Status::kOtherLibrary;
  reader->begin(reinterpret_cast<const uint8_t*>(""), 1);
  return false;
}

std::string native_facts() {
  // The version in the header is that of the compilation; the file may have been replaced since.
  std::string facts = "libjpeg_turbo=" TARPEG_TEXT_OF(LIBJPEG_TURBO_VERSION) "\nlibjpeg_file=";
  facts += libjpeg_file();
  return facts + "\nsimd=" + vectors_name();
}

}  // namespace
}  // namespace tarpeg

// Returns null, or the reason why this library cannot work; for tarpeg.ops.library, after loading it.
TARPEG_EXPORT const char* tarpeg_failure() {
  if (!tarpeg::is_vectors_variable_valid()) {
    static const std::string wrong = "TARPEG_VECTORS=" + std::string(std::getenv("TARPEG_VECTORS")) +
                                     " in the environment must be avx512, avx2 or none";
    return wrong.c_str();
  }
  tarpeg::Decompressor reader;
  if (!tarpeg::is_other_library(&reader)) return nullptr;
  static const std::string reason =
      tarpeg::libjpeg_file() + ": " + tarpeg::describe(tarpeg::Status::kOtherLibrary);
  return reason.c_str();
}

// Without a tensor there is nothing to dispatch on, and nothing for a fake kernel to leave out.
STABLE_TORCH_LIBRARY_IMPL(tarpeg, CompositeExplicitAutograd, m) {
  m.impl("native_facts", TORCH_BOX(&tarpeg::native_facts));
}
