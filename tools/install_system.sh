#!/usr/bin/env bash
# What pip cannot install: a C++ compiler, libjpeg-turbo's header, Python's venv. Installs what is missing by
# apt-get, where that is there and we may; otherwise names it in one line.
set -euo pipefail

compiler=${CXX:-$(command -v c++ || command -v g++ || command -v clang++ || true)}
python=${PYTHON:-python3}
wanted=()

# CXX and the flags may hold several words.
has_jpeg() {
  printf '#include <cstdio>\n#include <jpeglib.h>\n' |
    ${compiler:-c++} ${CPPFLAGS:-} ${CONDA_PREFIX:+-I"$CONDA_PREFIX/include"} -E -x c++ - >/dev/null 2>&1
}
has_venv() { "$python" -c 'import ensurepip, venv' >/dev/null 2>&1; }

[ -n "$compiler" ] || wanted+=(g++)
# Without a compiler we cannot ask it: libjpeg's header is then looked for where Debian has it.
if [ -n "$compiler" ]; then has_jpeg || wanted+=(libjpeg62-turbo-dev); else
  [ -e /usr/include/jpeglib.h ] || wanted+=(libjpeg62-turbo-dev)
fi
has_venv || wanted+=(python3-venv)
[ ${#wanted[@]} -gt 0 ] || exit 0

give_up() {
  echo "Missing: ${wanted[*]}." \
    "Debian: apt-get install g++ libjpeg62-turbo-dev python3-venv (Ubuntu: libjpeg-turbo8-dev);" \
    "Fedora: dnf install gcc-c++ libjpeg-turbo-devel;" \
    "conda: conda install -c conda-forge cxx-compiler libjpeg-turbo;" \
    "macOS: xcode-select --install, brew install jpeg-turbo. Then run make again.${1:+ ($1)}" >&2
  exit 1
}

as_root=()
if [ "$(id -u)" != 0 ]; then
  sudo -n true 2>/dev/null || give_up "no root and no passwordless sudo here"
  as_root=(sudo -n)
fi
command -v apt-get >/dev/null || give_up "no apt-get here"

install() {
  ${as_root[@]+"${as_root[@]}"} env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@"
}
# Ubuntu's name for the same files; libjpeg-dev is there on both.
alternatives() { install "${wanted[@]}" || install "${wanted[@]/libjpeg62-turbo-dev/libjpeg-dev}"; }

echo "installing ${wanted[*]} by apt-get" >&2
log=$(mktemp)
trap 'rm -f "$log"' EXIT
if ! alternatives >"$log" 2>&1; then # package lists may be missing or old
  { ${as_root[@]+"${as_root[@]}"} apt-get update -qq && alternatives; } >>"$log" 2>&1 || { cat "$log" >&2; give_up "apt-get failed"; }
fi
compiler=${CXX:-$(command -v c++ || command -v g++ || true)}
has_jpeg && has_venv || give_up "still missing after apt-get"
