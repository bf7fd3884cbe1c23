#include <dlfcn.h>

#include <string>

#include "base/simd.h"
#include "jpeg/libjpeg_errors.h"
#include "ops/checks.h"

// Facts about the library for tarpeg.ops.decode.native_facts: lines of NAME=VALUE.
namespace tarpeg {
namespace {

#define TARPEG_QUOTED(text) #text
#define TARPEG_TEXT_OF(macro) TARPEG_QUOTED(macro)

std::string native_facts() {
  // The version in the header is that of the compilation; the file may have been replaced since.
  std::string facts = "libjpeg_turbo=" TARPEG_TEXT_OF(LIBJPEG_TURBO_VERSION) "\nlibjpeg_file=";
  Dl_info found;
  if (dladdr(reinterpret_cast<void*>(&jpeg_std_error), &found) != 0) facts += found.dli_fname;
#if defined(TARPEG_X86)
  facts += has_avx2() ? "\nsimd=AVX2" : "\nsimd=none";
#else
  facts += "\nsimd=none";
#endif
  return facts;
}

}  // namespace
}  // namespace tarpeg

// Without a tensor there is nothing to dispatch on, and nothing for a fake kernel to leave out.
STABLE_TORCH_LIBRARY_IMPL(tarpeg, CompositeExplicitAutograd, m) {
  m.impl("native_facts", TORCH_BOX(&tarpeg::native_facts));
}
