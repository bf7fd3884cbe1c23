#include "jpeg/libjpeg.h"

#include <algorithm>
#include <csetjmp>
#include <cstring>
#include <vector>

#include "jpeg/color.h"
#include "jpeg/libjpeg_errors.h"

namespace tarpeg {
namespace {

uint8_t multiply_255(int a, int b) noexcept {
  const int product = a * b + 128;
  return static_cast<uint8_t>(((product >> 8) + product) >> 8);
}

// CMYK as Adobe stores it (inverted), to RGB as Pillow's convert("RGB") makes it; in place.
void cmyk_to_rgb(uint8_t* row, size_t pixels) noexcept {
  for (size_t i = 0; i < pixels; ++i) {
    const uint8_t* in = row + 4 * i;
    const int white = in[3];
    const uint8_t rgb[3] = {static_cast<uint8_t>(white - multiply_255(255 - in[0], white)),
                            static_cast<uint8_t>(white - multiply_255(255 - in[1], white)),
                            static_cast<uint8_t>(white - multiply_255(255 - in[2], white))};
    std::memcpy(row + 3 * i, rgb, 3);
  }
}

}  // namespace

struct JpegReader::State : Decompressor {
  bool is_gray = false;  // else RGB
  int skip = 0, bottom = 0;

  Status open(const uint8_t* data, size_t size, int height, int width, const Box& box) noexcept;
  Status next(uint8_t* row) noexcept;
  Status finish() noexcept;
};

Status JpegReader::State::open(const uint8_t* data, size_t size, int height, int width,
                               const Box& box) noexcept {
  if (setjmp(errors.jump)) return errors.status;
  begin(data, size);
  jpeg_read_header(&info, TRUE);
  // The caller allocated for the size in its header.
  if (static_cast<int>(info.image_height) != height || static_cast<int>(info.image_width) != width) {
    return Status::kCorrupt;
  }
  const bool four = info.num_components == 4;
  const bool has_luma = info.jpeg_color_space == JCS_YCbCr || info.jpeg_color_space == JCS_GRAYSCALE;
  const bool is_luma = is_gray && has_luma;
  info.out_color_space = four ? JCS_CMYK : is_luma ? JCS_GRAYSCALE : JCS_RGB;
  jpeg_start_decompress(&info);
  if (!is_complete()) return Status::kTruncated;
  bottom = box.top + box.height;

  // Note [exact crops]
  // jpeg_crop_scanline() snaps left to an iMCU and makes libjpeg treat the crop's edges as the image's: fancy
  // upsampling then mixes no chroma from outside, and drops to plain replication where chroma is 2 wide or
  // less. One chroma sample of margin on either side, and never less than 8 of them, keep every pixel of the
  // box exact. Rows need none if they are skipped once, from row 0 (libjpeg-turbo issue 915). In files of
  // several scans all coefficients are read anyway, and cropping had memory bugs together with smoothing
  // (issue 456): those are read at full width, row by row.
  if (jpeg_has_multiple_scans(&info)) {
    skip = box.left;
    uint8_t* const scratch = static_cast<uint8_t*>(
        (*info.mem->alloc_large)(reinterpret_cast<j_common_ptr>(&info), JPOOL_IMAGE,
                                 static_cast<size_t>(info.output_width) * info.output_components));
    for (int row = 0; row < box.top; ++row) {
      JSAMPROW rows[1] = {scratch};
      jpeg_read_scanlines(&info, rows, 1);
    }
    return Status::kOk;
  }
  const int sample = info.max_h_samp_factor;
  int left = box.left > 0 ? box.left - 1 : 0;
  int right = box.left + box.width + sample;
  if (right - left < 8 * sample) right = left + 8 * sample;
  if (right > width) right = width;
  if (right - left < 8 * sample) left = right > 8 * sample ? right - 8 * sample : 0;
  JDIMENSION first = static_cast<JDIMENSION>(left), count = static_cast<JDIMENSION>(right - left);
  if (left > 0 || right < width) jpeg_crop_scanline(&info, &first, &count);
  skip = box.left - static_cast<int>(first);
  if (box.top > 0) jpeg_skip_scanlines(&info, static_cast<JDIMENSION>(box.top));
  return Status::kOk;
}

Status JpegReader::State::next(uint8_t* row) noexcept {
  if (setjmp(errors.jump)) return errors.status;
  JSAMPROW rows[1] = {row};
  if (jpeg_read_scanlines(&info, rows, 1) != 1) return Status::kTruncated;
  if (info.out_color_space == JCS_CMYK) cmyk_to_rgb(row, info.output_width);
  if (is_gray && info.out_color_space != JCS_GRAYSCALE)
    rgb_to_gray(row, static_cast<int>(info.output_width), row);
  return Status::kOk;
}

// With several scans, open() has read the whole file.
Status JpegReader::State::finish() noexcept {
  const int height = static_cast<int>(info.image_height), mcu_height = info.max_v_samp_factor * DCTSIZE;
  if (jpeg_has_multiple_scans(&info) || std::min(bottom, height - 1) / mcu_height < (height - 1) / mcu_height)
    return Status::kOk;
  if (setjmp(errors.jump)) return errors.status;
  uint8_t* const scratch = static_cast<uint8_t*>(
      (*info.mem->alloc_large)(reinterpret_cast<j_common_ptr>(&info), JPOOL_IMAGE,
                               static_cast<size_t>(info.output_width) * info.output_components));
  JSAMPROW rows[1] = {scratch};
  while (info.output_scanline < info.output_height) jpeg_read_scanlines(&info, rows, 1);
  jpeg_finish_decompress(&info);
  return Status::kOk;
}

JpegReader::JpegReader() : state_(new State) {}

JpegReader::~JpegReader() = default;

Status JpegReader::open(const uint8_t* data, size_t size, int height, int width, const Box& box, bool is_gray,
                        bool is_checked) noexcept {
  state_->is_gray = is_gray;
  state_->errors.is_checked = is_checked;
  return state_->open(data, size, height, width, box);
}

Status JpegReader::next(uint8_t* row) noexcept { return state_->next(row); }

Status JpegReader::finish() noexcept { return state_->finish(); }

// CMYK rows, and RGB rows that become gray, arrive with more bytes per pixel before they are converted in
// place.
size_t JpegReader::stride() const noexcept {
  return static_cast<size_t>(state_->info.output_components) * state_->info.output_width;
}

int JpegReader::skip() const noexcept { return state_->skip; }

struct RawReader::State : Decompressor {
  std::vector<uint8_t> samples[3];
  std::vector<JSAMPROW> rows[3];
  JSAMPARRAY planes[3] = {};
  int sides[3] = {};  // samples of a block, in each direction
  bool has_halves = false;

  Status open(const uint8_t* data, size_t size) noexcept;
  Status start() noexcept;
  Status next() noexcept;
  Status finish() noexcept;
};

// See Note [libjpeg error handling].
Status RawReader::State::open(const uint8_t* data, size_t size) noexcept {
  if (setjmp(errors.jump)) return errors.status;
  begin(data, size);
  jpeg_read_header(&info, TRUE);
  return Status::kOk;
}

Status RawReader::State::start() noexcept {
  if (setjmp(errors.jump)) return errors.status;
  info.raw_data_out = TRUE;
  info.out_color_space = info.jpeg_color_space;
  info.scale_num = 1;
  info.scale_denom = has_halves ? 2 : 1;
  jpeg_start_decompress(&info);
  return is_complete() ? Status::kOk : Status::kTruncated;
}

Status RawReader::State::next() noexcept {
  if (setjmp(errors.jump)) return errors.status;
  const JDIMENSION count = static_cast<JDIMENSION>(info.max_v_samp_factor * DCTSIZE / (has_halves ? 2 : 1));
  return jpeg_read_raw_data(&info, planes, count) == count ? Status::kOk : Status::kTruncated;
}

Status RawReader::State::finish() noexcept {
  if (setjmp(errors.jump)) return errors.status;
  jpeg_finish_decompress(&info);
  return Status::kOk;
}

RawReader::RawReader() : state_(new State) {}

RawReader::~RawReader() = default;

Status RawReader::open(const uint8_t* data, size_t size, int height, int width, int reduction, bool luma_only,
                       bool is_checked, Frame* frame) {
  State& state = *state_;
  state.errors.is_checked = is_checked;
  Status status = state.open(data, size);
  if (status != Status::kOk) return status;
  const jpeg_decompress_struct& info = state.info;
  if (static_cast<int>(info.image_height) != height || static_cast<int>(info.image_width) != width) {
    return Status::kCorrupt;
  }
  const int decoded = luma_only ? 1 : info.num_components;
  for (int i = decoded; i < info.num_components; ++i) info.comp_info[i].component_needed = FALSE;
  if (info.jpeg_color_space != JCS_GRAYSCALE && info.jpeg_color_space != JCS_YCbCr)
    return Status::kUnsupported;
  frame->height = height;
  frame->width = width;
  frame->component_count = info.num_components;
  for (int i = 0; i < info.num_components; ++i) {
    frame->components[i].across = info.comp_info[i].h_samp_factor;
    frame->components[i].down = info.comp_info[i].v_samp_factor;
  }
  if (!frame->derive()) return Status::kUnsupported;
  state.has_halves = frame->has_halves(reduction, decoded);
  status = state.start();
  if (status != Status::kOk) return status;
  for (int i = 0; i < decoded; ++i) {
    const jpeg_component_info& component = info.comp_info[i];
    // libjpeg fills whole MCUs, whose blocks may reach beyond width_in_blocks.
    const size_t blocks = component.width_in_blocks + static_cast<size_t>(component.h_samp_factor);
    const size_t length = blocks * DCTSIZE, count = static_cast<size_t>(component.v_samp_factor) * DCTSIZE;
    state.samples[i].resize(length * count);
    state.rows[i].resize(count);
    for (size_t row = 0; row < count; ++row) state.rows[i][row] = state.samples[i].data() + row * length;
    state.planes[i] = state.rows[i].data();
    state.sides[i] = frame->is_halved(i, reduction, decoded) ? DCTSIZE / 2 : DCTSIZE;
  }
  return Status::kOk;
}

Status RawReader::next() noexcept { return state_->next(); }

Status RawReader::finish() noexcept { return state_->finish(); }

const uint8_t* RawReader::block(int component, int y, int x) const noexcept {
  const ptrdiff_t side = state_->sides[component];
  return state_->rows[component][static_cast<size_t>(y * side)] + x * side;
}

int RawReader::blocks_down() const noexcept {
  return state_->info.num_components == 1 ? state_->info.comp_info[0].v_samp_factor : 1;
}

ptrdiff_t RawReader::stride(int component) const noexcept {
  return state_->rows[component][1] - state_->rows[component][0];
}

}  // namespace tarpeg
