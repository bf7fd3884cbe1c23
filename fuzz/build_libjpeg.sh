#!/usr/bin/env bash
# Builds the distribution's own libjpeg-turbo with the sanitisers: build_libjpeg.sh DIRECTORY
# Leaves DIRECTORY/libjpeg.a and DIRECTORY/include. Its vector code (nasm) is there too: PlaneReader equals that.
set -euo pipefail

mkdir -p "$1"
cd "$1"
[ -e libjpeg.a ] && exit 0
clang=${CLANG:-clang}

# apt-get source, with lists of its own: the machine's need no deb-src.
fetch() {
  mkdir -p apt/lists/partial
  mkdir -p apt/parts
  (cat /etc/apt/sources.list /etc/apt/sources.list.d/*.list 2>/dev/null || true) | sed -n 's/^deb /deb-src /p' >apt/parts/src.list
  (cat /etc/apt/sources.list.d/*.sources 2>/dev/null || true) | sed 's/^Types:.*/Types: deb-src/' >apt/parts/src.sources
  local options=(-qq -o Dir::Etc::sourcelist=/dev/null -o "Dir::Etc::sourceparts=$PWD/apt/parts" -o "Dir::State::lists=$PWD/apt/lists")
  apt-get "${options[@]}" update
  apt-get "${options[@]}" source --download-only libjpeg-turbo
}

ls libjpeg-turbo_*.orig.tar.* >/dev/null 2>&1 || fetch
mkdir -p source
tar -xf libjpeg-turbo_*.orig.tar.* -C source --strip-components=1
tar -xf libjpeg-turbo_*.debian.tar.* -C source
while read -r patch; do
  case $patch in '' | '#'*) ;; *) patch -s -d source -p1 <"source/debian/patches/${patch%% *}" ;; esac
done <source/debian/patches/series

cmake -S source -B objects -DCMAKE_BUILD_TYPE=RelWithDebInfo -DCMAKE_C_COMPILER="$clang" -DENABLE_SHARED=0 -DWITH_TURBOJPEG=0 \
  -DREQUIRE_SIMD=1 -DCMAKE_C_FLAGS="-fsanitize=fuzzer-no-link,address,undefined -fno-sanitize-recover=undefined" >cmake.log
cmake --build objects --target jpeg-static --parallel 2 >build.log
mkdir -p include
cp source/jpeglib.h source/jmorecfg.h source/jerror.h objects/jconfig.h include/
mv objects/libjpeg.a .
