// wheels/make.py includes this file in every C++ file, so that the wheel runs with glibc 2.28 and the
// libstdc++ of GCC 8, as torch does. It replaces what newer headers would take from newer libraries.
#if !defined(TARPEG_MANYLINUX_H) && !defined(__CUDA_ARCH__)
#define TARPEG_MANYLINUX_H

#include <sys/single_threaded.h>
#include <sys/stat.h>

#include <new>

// glibc 2.32: shared_ptr counts without atomic operations while there is one thread; here it never does.
inline constexpr char tarpeg_single_threaded = 0;
#define __libc_single_threaded tarpeg_single_threaded

// glibc 2.33: stat() and fstat(), which were inline functions of these before. Their version of struct stat:
// _STAT_VER.
extern "C" int __xstat(int version, const char* path, struct stat* found) noexcept;
extern "C" int __fxstat(int version, int descriptor, struct stat* found) noexcept;
#if defined(__x86_64__)
inline constexpr int tarpeg_stat_version = 1;
#else
inline constexpr int tarpeg_stat_version = 0;
#endif
#define stat(path, found) __xstat(tarpeg_stat_version, path, found)
#define fstat(descriptor, found) __fxstat(tarpeg_stat_version, descriptor, found)

// GCC 11: what allocators throw.
namespace std {
__attribute__((visibility("hidden"), noreturn)) inline void __throw_bad_array_new_length() {
  throw bad_array_new_length();
}
}  // namespace std

// GCC 12: the same function as before, declared noexcept.
__asm__(
    ".symver _ZNSt18condition_variable4waitERSt11unique_lockISt5mutexE,"
    "_ZNSt18condition_variable4waitERSt11unique_lockISt5mutexE@GLIBCXX_3.4.11");

// GCC 9: the constructors without arguments.
#include <sstream>
template std::basic_ostringstream<char>::basic_ostringstream();
template std::basic_stringstream<char>::basic_stringstream();

#endif
