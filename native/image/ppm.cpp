#include "image/ppm.h"

#include <cstring>

#include "base/simd.h"
#include "jpeg/color.h"

namespace tarpeg {
namespace {

// Reads one decimal number of a PPM header, after white space and comments; -1 if there is none.
int ppm_number(const uint8_t* data, size_t size, size_t* at) noexcept {
  while (*at < size) {
    const uint8_t c = data[*at];
    if (c == '#') {
      while (*at < size && data[*at] != '\n') ++*at;
    } else if (c == ' ' || (c >= '\t' && c <= '\r')) {
      ++*at;
    } else {
      break;
    }
  }
  int value = -1;
  for (; *at < size && data[*at] >= '0' && data[*at] <= '9'; ++*at) {
    value = (value < 0 ? 0 : value) * 10 + (data[*at] - '0');
    if (value > 10000000) return -1;
  }
  return value;
}

void widen(const uint8_t* rgb, int begin, int pixels, uint8_t* rgbx) noexcept {
  for (int x = begin; x < pixels; ++x) {
    std::memcpy(rgbx + 4 * static_cast<size_t>(x), rgb + 3 * static_cast<size_t>(x), 3);
    rgbx[4 * static_cast<size_t>(x) + 3] = 0;
  }
}

#if defined(TARPEG_AVX2)

// Eight pixels at a time, never reading past the row, which may end where the file does; returns how many.
TARPEG_AVX2 int widen_avx2(const uint8_t* rgb, int pixels, uint8_t* rgbx) noexcept {
  const __m256i spread = _mm256_setr_epi8(0, 1, 2, -1, 3, 4, 5, -1, 6, 7, 8, -1, 9, 10, 11, -1, 0, 1, 2, -1,
                                          3, 4, 5, -1, 6, 7, 8, -1, 9, 10, 11, -1);
  int x = 0;
  for (; x + 10 <= pixels; x += 8) {
    const uint8_t* at = rgb + 3 * static_cast<size_t>(x);
    const __m128i low = _mm_loadu_si128(reinterpret_cast<const __m128i*>(at));
    const __m128i high = _mm_loadu_si128(reinterpret_cast<const __m128i*>(at + 12));
    const __m256i both = _mm256_inserti128_si256(_mm256_castsi128_si256(low), high, 1);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(rgbx + 4 * static_cast<size_t>(x)),
                        _mm256_shuffle_epi8(both, spread));
  }
  return x;
}

#endif

// In rows. Measured: 1, 3 and 6 took 0.30, 0.22 and 0.25 of the resampling's time, no prefetching 0.70.
constexpr int kAhead = 3;

// Bytes after a row that resampling reads, and does not use.
constexpr size_t kReadable = 32;

}  // namespace

Header read_ppm_header(const uint8_t* data, size_t size) noexcept {
  Header header;
  header.format = Format::kPpm;
  size_t at = 2;
  header.width = ppm_number(data, size, &at);
  header.height = ppm_number(data, size, &at);
  const int peak = ppm_number(data, size, &at);
  header.body = at + 1;  // exactly one white-space byte ends the header
  const bool is_ended = at < size && (data[at] == ' ' || (data[at] >= '\t' && data[at] <= '\r'));
  if (header.width < 1 || header.height < 1 || peak < 1 || !is_ended)
    header.status = Status::kCorrupt;
  else if (peak != 255)
    header.status = Status::kUnsupported;
  else if (header.body + 3ull * header.width * header.height > size)
    header.status = Status::kTruncated;
  else
    header.status = Status::kOk;
  return header;
}

PpmReader::PpmReader(const uint8_t* pixels, const uint8_t* end, int image_width, const Box& box,
                     PixelFormat format)
    : first_(pixels + 3 * (static_cast<size_t>(box.top) * image_width + box.left)),
      step_(3 * static_cast<size_t>(image_width)),
      height_(box.height),
      width_(box.width),
      format_(format) {
#if defined(TARPEG_AVX2)
  if (format != PixelFormat::kRgbx || !has_avx2()) return;
  const size_t bytes = 3 * static_cast<size_t>(width_), left = static_cast<size_t>(end - first_);
  for (whole_ = height_; whole_ > 0 && (whole_ - 1) * step_ + bytes + kReadable > left;) --whole_;
  tail_.resize((bytes + kReadable) * static_cast<size_t>(height_ - whole_));
  for (int y = whole_; y < height_; ++y) {
    std::memcpy(tail_.data() + (bytes + kReadable) * static_cast<size_t>(y - whole_), first_ + y * step_,
                bytes);
  }
#else
  (void)end;
#endif
}

const uint8_t* PpmReader::kept(int y) noexcept {
  if (whole_ == 0 && tail_.empty()) return nullptr;
  const size_t bytes = 3 * static_cast<size_t>(width_);
  return y < whole_ ? first_ + y * step_
                    : tail_.data() + (bytes + kReadable) * static_cast<size_t>(y - whole_);
}

Status PpmReader::next(uint8_t* row) noexcept {
  const uint8_t* const in = first_ + y_ * step_;
  // Rows are not adjacent: the processor's own prefetcher restarts with each.
  const size_t ahead = y_ + kAhead < height_ ? 3 * static_cast<size_t>(width_) : 0;
  for (size_t at = 0; at < ahead; at += 64) __builtin_prefetch(in + kAhead * step_ + at);
  ++y_;
  if (format_ == PixelFormat::kGray) {
    rgb_to_gray(in, width_, row);
  } else if (format_ == PixelFormat::kRgb) {
    std::memcpy(row, in, 3 * static_cast<size_t>(width_));
  } else {
    int done = 0;
#if defined(TARPEG_AVX2)
    if (has_avx2()) done = widen_avx2(in, width_, row);
#endif
    widen(in, done, width_, row);
  }
  return Status::kOk;
}

size_t PpmReader::stride() const noexcept { return static_cast<size_t>(format_) * width_; }

}  // namespace tarpeg
