#!/usr/bin/env bash
# Builds the fuzz target under ASan and UBSan and lets it run: fuzz/run.sh PYTHON
# FUZZ_SECONDS=60; FUZZ_LIBJPEG=source builds libjpeg-turbo with the sanitisers too, from the distribution's
# source package; FUZZ_ARGS are libFuzzer's. The corpus stays in build/fuzz/corpus.
# Exit status 77: clang is missing and could not be installed.
# At the end it prints the line coverage of each decoder file; less than 90% of one is a failure.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
python=$1
out=build/fuzz

newest() { compgen -c | grep -xE "$1(-[0-9]+)?" | sort -uV | tail -1; }
install() {
  local as_root=()
  [ "$(id -u)" = 0 ] || as_root=(sudo -n)
  echo "installing $* by apt-get" >&2
  command -v apt-get >/dev/null &&
    ${as_root[@]+"${as_root[@]}"} env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@" >/dev/null ||
    { echo "Missing: $*. Install clang with its runtime libraries (libFuzzer, ASan), then run make fuzz again." >&2; exit 77; }
}

can_fuzz() {
  cxx=${CLANGXX:-$(newest 'clang\+\+' || true)}
  [ -n "$cxx" ] && printf 'extern "C" int LLVMFuzzerTestOneInput(const char*, unsigned long) { return 0; }' |
    "$cxx" -fsanitize=fuzzer,address -x c++ - -o /dev/null 2>/dev/null
}
can_fuzz || { install clang-14 libclang-rt-14-dev llvm-14 && can_fuzz; } ||
  { echo "$cxx cannot link libFuzzer: install libclang-rt-dev" >&2; exit 77; }

mkdir -p $out/{seeds,corpus,crashes,objects,covered}
tools=$(dirname "$(readlink -f "$(command -v "$cxx")")")/
jpeg=(-ljpeg) include=()
if [ "${FUZZ_LIBJPEG:-}" = source ]; then
  for tool in cmake nasm patch; do command -v $tool >/dev/null || install $tool; done
  if CLANG=${cxx/++/} fuzz/build_libjpeg.sh $out/libjpeg; then
    jpeg=($out/libjpeg/libjpeg.a) include=(-I$out/libjpeg/include)
  else
    echo "libjpeg-turbo's source package could not be built: fuzzing with the system's library" >&2
  fi
fi

# base/simd.cpp is left out: the target itself chooses between vector code and portable code.
sources=(fuzz/decode.cpp native/base/status.cpp native/jpeg/*.cpp native/image/*.cpp)
common="-std=c++17 -g -ffp-contract=off -Inative ${include[*]-}"
sanitised="$common -O2 -fno-omit-frame-pointer -fsanitize=fuzzer-no-link,address,undefined -fno-sanitize-recover=undefined"
# Comparisons are traced in parsers alone: in the loops over pixels that takes a third of the time.
compile() { # SOURCE
  local object untraced=()
  object=$(echo "$1" | tr / -).o
  case $1 in fuzz/* | */header.cpp | */baseline.cpp | */ppm.cpp) ;; *) untraced=(-fno-sanitize-coverage=trace-cmp) ;; esac
  "$cxx" $sanitised "${untraced[@]}" -c "$1" -o "$out/objects/$object"
  "$cxx" $common -O1 -fprofile-instr-generate -fcoverage-mapping -c "$1" -o "$out/covered/$object"
}
export -f compile
export cxx common sanitised out
rm -f $out/{objects,covered}/*.o
printf '%s\n' "${sources[@]}" | xargs -P "$(nproc)" -I{} bash -c 'compile {}'
"$cxx" -fsanitize=fuzzer,address,undefined $out/objects/*.o "${jpeg[@]}" -o $out/decode
# A sanitised libjpeg needs their runtime libraries.
"$cxx" -fsanitize=fuzzer${FUZZ_LIBJPEG:+,address,undefined} -fprofile-instr-generate $out/covered/*.o "${jpeg[@]}" -o $out/coverage

"$python" fuzz/seeds.py $out/seeds
# Short stacks and a short quarantine of freed memory: half the time of an allocation.
export ASAN_OPTIONS=detect_leaks=1:allocator_may_return_null=1:malloc_context_size=4:quarantine_size_mb=16
$out/decode -max_len=4096 -timeout=20 -rss_limit_mb=3000 -dict=fuzz/jpeg.dict -artifact_prefix=$out/crashes/ \
  -max_total_time="${FUZZ_SECONDS:-60}" -print_final_stats=1 ${FUZZ_ARGS:-} $out/corpus $out/seeds

LLVM_PROFILE_FILE=$out/coverage.raw $out/coverage -runs=0 $out/corpus $out/seeds 2>$out/coverage.log
"${tools}llvm-profdata" merge -o $out/coverage.data $out/coverage.raw
"${tools}llvm-cov" export -summary-only $out/coverage -instr-profile=$out/coverage.data | "$python" fuzz/coverage.py
