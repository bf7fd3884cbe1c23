// libjpeg-turbo's own crop, as in the article: jpeg_crop_scanline for the columns, jpeg_skip_scanlines for
// the rows. tools/bench.py suite=article compiles and measures it; the library does not use it.

#include <csetjmp>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>

// jpeglib.h needs size_t and FILE declared before it.
#include <jpeglib.h>

namespace {

// See Note [libjpeg error handling]: frames that longjmp leaves must own nothing.
struct Errors {
  jpeg_error_mgr base;
  jmp_buf jump;
};

[[noreturn]] void fail(j_common_ptr info) { longjmp(reinterpret_cast<Errors*>(info->err)->jump, 1); }

void keep_silent(j_common_ptr, int) {}

struct Crop {
  JDIMENSION height, width;
  double down, across;  // place from the top and from the left, as fractions in [0, 1)
};

bool decode(jpeg_decompress_struct* info, Errors* errors, const uint8_t* data, size_t size, const Crop& crop,
            uint8_t* out) noexcept {
  if (setjmp(errors->jump)) return false;
  jpeg_create_decompress(info);
  jpeg_mem_src(info, data, static_cast<unsigned long>(size));
  jpeg_read_header(info, TRUE);
  if (crop.height > info->image_height || crop.width > info->image_width) return false;
  const JDIMENSION top = static_cast<JDIMENSION>(crop.down * (info->image_height - crop.height + 1));
  const JDIMENSION left = static_cast<JDIMENSION>(crop.across * (info->image_width - crop.width + 1));
  info->out_color_space = JCS_RGB;
  jpeg_start_decompress(info);
  JDIMENSION first = left, count = crop.width;
  jpeg_crop_scanline(info, &first, &count);  // moves `first` to the left, to where an MCU begins
  if (top > 0 && jpeg_skip_scanlines(info, top) != top) return false;
  uint8_t* const row = static_cast<uint8_t*>((*info->mem->alloc_large)(
      reinterpret_cast<j_common_ptr>(info), JPOOL_IMAGE, 3 * static_cast<size_t>(info->output_width)));
  JSAMPROW rows[1] = {row};
  const size_t bytes = 3 * static_cast<size_t>(crop.width);
  for (JDIMENSION y = 0; y < crop.height; ++y, out += bytes) {
    if (jpeg_read_scanlines(info, rows, 1) != 1) return false;
    std::memcpy(out, row + 3 * static_cast<size_t>(left - first), bytes);
  }
  return true;
}

}  // namespace

// Decodes a crop of a JPEG into out[height][width][3], RGB; `down` and `across`: its place from the top and
// from the left, as fractions in [0, 1). Returns 0, or -1 if the JPEG is damaged or smaller than the crop.
extern "C" __attribute__((visibility("default"))) int crop_skip(const uint8_t* data, size_t size, int height,
                                                                int width, double down, double across,
                                                                uint8_t* out) {
  jpeg_decompress_struct info{};
  Errors errors{};
  info.err = jpeg_std_error(&errors.base);
  errors.base.error_exit = fail;
  errors.base.emit_message = keep_silent;
  const Crop crop{static_cast<JDIMENSION>(height), static_cast<JDIMENSION>(width), down, across};
  const bool is_done = decode(&info, &errors, data, size, crop, out);
  jpeg_destroy_decompress(&info);
  return is_done ? 0 : -1;
}
