#!/usr/bin/env bash
# Builds the fuzz target under ASan and UBSan and lets it run: fuzz/run.sh PYTHON
# FUZZ_SECONDS=60; FUZZ_LIBJPEG=source builds libjpeg-turbo with the sanitisers too, from the distribution's
# source package; FUZZ_ARGS are libFuzzer's. The corpus stays in build/fuzz/corpus.
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
    { echo "Missing: $*. Install clang with its runtime libraries (libFuzzer, ASan), then run make fuzz again." >&2; exit 1; }
}

can_fuzz() {
  cxx=${CLANGXX:-$(newest 'clang\+\+' || true)}
  [ -n "$cxx" ] && printf 'extern "C" int LLVMFuzzerTestOneInput(const char*, unsigned long) { return 0; }' |
    "$cxx" -fsanitize=fuzzer,address -x c++ - -o /dev/null 2>/dev/null
}
can_fuzz || { install clang-14 libclang-rt-14-dev llvm-14 && can_fuzz; } ||
  { echo "$cxx cannot link libFuzzer: install libclang-rt-dev" >&2; exit 1; }

mkdir -p $out/{seeds,corpus,crashes,objects}
jpeg=(-ljpeg) include=()
if [ "${FUZZ_LIBJPEG:-}" = source ]; then
  for tool in cmake nasm patch; do command -v $tool >/dev/null || install $tool; done
  if CLANG=${cxx/++/} fuzz/build_libjpeg.sh $out/libjpeg; then
    jpeg=($out/libjpeg/libjpeg.a) include=(-I$out/libjpeg/include)
  else
    echo "libjpeg-turbo's source package could not be built: fuzzing with the system's library" >&2
  fi
fi

flags="-std=c++17 -O2 -g -fno-omit-frame-pointer -fsanitize=fuzzer-no-link,address,undefined -fno-sanitize-recover=undefined"
sources=(fuzz/decode.cpp)
for file in native/*/*.cpp; do # the torch-free core
  case $file in native/ops/*) ;; *) grep -q '<torch/' "$file" || sources+=("$file") ;; esac
done
rm -f $out/objects/*.o
printf '%s\n' "${sources[@]}" | xargs -P "$(nproc)" -I{} sh -c \
  "$cxx $flags ${include[*]-} -Inative -c {} -o $out/objects/\$(echo {} | tr / - ).o"
"$cxx" -fsanitize=fuzzer,address,undefined $out/objects/*.o "${jpeg[@]}" -o $out/decode

"$python" fuzz/seeds.py $out/seeds
export ASAN_OPTIONS=detect_leaks=1:allocator_may_return_null=1
exec $out/decode -max_len=8192 -timeout=20 -rss_limit_mb=3000 -dict=fuzz/jpeg.dict -artifact_prefix=$out/crashes/ \
  -max_total_time="${FUZZ_SECONDS:-60}" -print_final_stats=1 ${FUZZ_ARGS:-} $out/corpus $out/seeds
