#include <sys/stat.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "base/export.h"

// Members of mapped tars, and the files of the maps; for tarpeg.ops.decode. Offsets and sizes come from an
// index that was checked to stay within the tars. Each function handles the usual case, and returns the first
// number that Python has to look at.
namespace tarpeg {
namespace {

constexpr int64_t kHeader = 512;         // bytes before a member's data
constexpr int kSize = 124, kType = 135;  // the size: 11 octal digits, then a zero or a space
constexpr int64_t kAhead = 8;            // members whose headers are fetched from memory in advance
constexpr int64_t kLongest = 64;         // LONGEST in tarpeg/shards/labels.py
constexpr int kDigits = 18;              // an int64_t holds any number of so many

bool is_usual(const uint8_t* header, int64_t size, const uint8_t* key, int64_t key_bytes, const uint8_t* end,
              int64_t end_bytes) noexcept {
  int64_t found = 0;
  for (int i = kSize; i < kType; ++i) {
    const unsigned digit = header[i] - unsigned{'0'};
    if (digit > 7) return false;
    found = found * 8 + digit;
  }
  return found == size && (header[kType] == 0 || header[kType] == ' ') && key_bytes >= 0 &&
         key_bytes <= kHeader && end_bytes >= 0 && key_bytes + end_bytes <= kHeader &&
         std::memcmp(header, key, static_cast<size_t>(key_bytes)) == 0 &&
         std::memcmp(header + key_bytes, end, static_cast<size_t>(end_bytes)) == 0;
}

bool is_space(uint8_t byte) noexcept { return byte == ' ' || (byte >= '\t' && byte <= '\r'); }

bool read_integer(const uint8_t* text, int64_t size, int64_t* out) noexcept {
  if (size > kLongest) return false;
  const uint8_t* end = text + size;
  while (text < end && is_space(*text)) ++text;
  while (text < end && is_space(end[-1])) --end;
  const bool is_negative = text < end && *text == '-';
  if (is_negative || (text < end && *text == '+')) ++text;
  if (text == end || end - text > kDigits) return false;
  int64_t number = 0;
  for (; text < end; ++text) {
    const unsigned digit = *text - unsigned{'0'};
    if (digit > 9) return false;
    number = number * 10 + digit;
  }
  *out = is_negative ? -number : number;
  return true;
}

}  // namespace
}  // namespace tarpeg

// The first member, from `first` on, that has not the usual header of KEY.EXTENSION and its size. columns,
// [7] [count]: address of the data, its offset in the tar and its size; begin and end of the key in keys;
// begin and end of ".EXTENSION\0" in ends.
TARPEG_EXPORT int64_t tarpeg_first_unusual(const int64_t* columns, int64_t count, int64_t first,
                                           const uint8_t* keys, const uint8_t* ends) noexcept {
  using namespace tarpeg;
  const int64_t *address = columns, *offset = address + count, *size = offset + count, *key = size + count,
                *key_end = key + count, *end = key_end + count, *end_end = end + count;
  const auto header = [&](int64_t i) {
    return reinterpret_cast<const uint8_t*>(static_cast<uintptr_t>(address[i] - kHeader));
  };
  for (int64_t i = first; i < count; ++i) {
    if (i + kAhead < count && offset[i + kAhead] >= kHeader) {
      for (int byte = 0; byte <= kType; byte += 64) __builtin_prefetch(header(i + kAhead) + byte);
    }
    if (offset[i] < kHeader || !is_usual(header(i), size[i], keys + key[i], key_end[i] - key[i],
                                         ends + end[i], end_end[i] - end[i])) {
      return i;
    }
  }
  return count;
}

// Reads the integers of at most 18 decimal digits, with white space around them, at these addresses. Returns
// the first text that is something else.
TARPEG_EXPORT int64_t tarpeg_read_integers(const int64_t* addresses, const int64_t* sizes, int64_t count,
                                           int64_t* out) noexcept {
  for (int64_t i = 0; i < count; ++i) {
    const auto* text = reinterpret_cast<const uint8_t*>(static_cast<uintptr_t>(addresses[i]));
    if (!tarpeg::read_integer(text, sizes[i], out + i)) return i;
  }
  return count;
}

// The first of these files whose size (bytes) or time of modification (ns), two numbers in stats, has
// changed, or that cannot be read. numbers: which of paths and stats.
TARPEG_EXPORT int64_t tarpeg_first_changed(const char* const* paths, const int64_t* stats,
                                           const int64_t* numbers, int64_t count) noexcept {
  for (int64_t i = 0; i < count; ++i) {
    struct stat found = {};
    if (stat(paths[numbers[i]], &found) != 0) return i;
#if defined(__APPLE__)
    const timespec time = found.st_mtimespec;
#else
    const timespec time = found.st_mtim;
#endif
    const int64_t* expected = stats + 2 * numbers[i];
    const int64_t nanoseconds = static_cast<int64_t>(time.tv_sec) * 1000000000 + time.tv_nsec;
    if (static_cast<int64_t>(found.st_size) != expected[0] || nanoseconds != expected[1]) return i;
  }
  return count;
}
