#!/usr/bin/env bash
# The Python tests of the operators, with the native library under ASan and UBSan: fuzz/asan.sh PYTHON [ARGUMENTS]
# The library goes to build/asan. Python itself leaks by design, so leaks are left to make fuzz.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
compiler=${CXX:-c++}
preload=$(for name in asan ubsan; do $compiler -print-file-name=lib$name.so; done | tr '\n' ' ')
mkdir -p build/asan

# Before the sanitisers are loaded: the compiler need not run under them.
export TARPEG_SANITIZE=address,undefined TARPEG_LIB_DIR=$PWD/build/asan PYTHONPATH=$PWD/datamodules
"$1" -c "from tarpeg.ops import compiler; compiler.build()"
env LD_PRELOAD="$preload" TARPEG_NO_BUILD=1 \
  ASAN_OPTIONS=detect_leaks=0:allocator_may_return_null=1:detect_odr_violation=0:malloc_context_size=4:quarantine_size_mb=16 UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1 \
  "$1" -m pytest -q -p no:cacheprovider --timeout=900 \
  tests/ops/test_{decode_crop,decode_batch,tile_jpeg,pack_jpeg,regular_streams,warp_affine,augment_batch,read_masks,fill_outlines,scan_objects,gather}.py "${@:2}"
