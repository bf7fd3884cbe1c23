#!/usr/bin/env bash
# Builds the fuzz targets, decode.cpp, packed.cpp and png.cpp, under ASan and UBSan and lets each run: fuzz/run.sh PYTHON
# FUZZ_SECONDS=60 for each; FUZZ_TARGETS="decode packed png"; FUZZ_LAUNCHER=ccache goes before the compiler; FUZZ_LIBJPEG=source
# builds libjpeg-turbo with the sanitisers too, from the distribution's source package; FUZZ_ARGS are libFuzzer's. The corpora stay in build/fuzz/TARGET/corpus.
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

targets=(${FUZZ_TARGETS:-decode packed png})
mkdir -p $out/{decode,packed,png}/{seeds,corpus} $out/{crashes,objects,covered,bin}
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

# base/simd.cpp is left out: the targets themselves choose between vector code and portable code.
sources=(fuzz/{decode,packed,png}.cpp native/base/{crc,status}.cpp native/{jpeg,image,png}/*.cpp)
common="-std=c++17 -O1 -g1 -ffp-contract=off -Inative ${include[*]-}"
sanitised="$common -fno-omit-frame-pointer -fsanitize=fuzzer-no-link,address,undefined -fno-sanitize-recover=undefined"
# Comparisons are traced in parsers alone: in the loops over pixels that takes a third of the time.
compile() { # SOURCE
  local object untraced=()
  object=$(echo "$1" | tr / -).o
  case $1 in fuzz/* | */header.cpp | */baseline.cpp | */packed.cpp | */ppm.cpp | */png/*.cpp) ;; *) untraced=(-fno-sanitize-coverage=trace-cmp) ;; esac
  ${FUZZ_LAUNCHER:-} "$cxx" $sanitised "${untraced[@]}" -c "$1" -o "$out/objects/$object"
  ${FUZZ_LAUNCHER:-} "$cxx" $common -fprofile-instr-generate -fcoverage-mapping -c "$1" -o "$out/covered/$object"
}
export -f compile
export cxx common sanitised out
rm -f $out/{objects,covered}/*.o
printf '%s\n' "${sources[@]}" | xargs -P "$(nproc)" -I{} bash -c 'compile {}'
for target in "${targets[@]}"; do
  "$cxx" -fsanitize=fuzzer,address,undefined $out/objects/{fuzz-$target.cpp,native-*}.o "${jpeg[@]}" -o $out/bin/$target
  # A sanitised libjpeg needs their runtime libraries.
  "$cxx" -fsanitize=fuzzer${FUZZ_LIBJPEG:+,address,undefined} -fprofile-instr-generate \
    $out/covered/{fuzz-$target.cpp,native-*}.o "${jpeg[@]}" -o $out/bin/$target-coverage
done

"$python" fuzz/seeds.py $out/{decode,packed,png}/seeds
# Short stacks and a short quarantine of freed memory: half the time of an allocation.
export ASAN_OPTIONS=detect_leaks=1:allocator_may_return_null=1:malloc_context_size=4:quarantine_size_mb=16
for target in "${targets[@]}"; do
  $out/bin/$target -max_len=16384 -timeout=20 -rss_limit_mb=3000 -dict=fuzz/jpeg.dict -artifact_prefix=$out/crashes/ \
    -max_total_time="${FUZZ_SECONDS:-60}" -print_final_stats=1 ${FUZZ_ARGS:-} $out/$target/{corpus,seeds}
done

for target in "${targets[@]}"; do
  LLVM_PROFILE_FILE=$out/$target.raw $out/bin/$target-coverage -runs=0 $out/$target/{corpus,seeds} 2>$out/$target.log
done
"${tools}llvm-profdata" merge -o $out/coverage.data $(printf "$out/%s.raw " "${targets[@]}")
"${tools}llvm-cov" export $(printf -- "-object $out/bin/%s-coverage " "${targets[@]}") \
  -instr-profile=$out/coverage.data | "$python" fuzz/coverage.py
