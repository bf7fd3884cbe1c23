#include "jpeg/raw.h"

#include <vector>

#include "jpeg/libjpeg_errors.h"

namespace tarpeg {

struct RawReader::State : Decompressor {
  std::vector<uint8_t> samples[3];
  std::vector<JSAMPROW> rows[3];
  JSAMPARRAY planes[3] = {};
  int sides[3] = {};  // samples of a block, in each direction
  bool has_halves = false;

  Status open(const uint8_t* data, size_t size) noexcept;
  Status start() noexcept;
  Status next() noexcept;
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
  return Status::kOk;
}

Status RawReader::State::next() noexcept {
  if (setjmp(errors.jump)) return errors.status;
  const JDIMENSION count = static_cast<JDIMENSION>(info.max_v_samp_factor * DCTSIZE / (has_halves ? 2 : 1));
  return jpeg_read_raw_data(&info, planes, count) == count ? Status::kOk : Status::kTruncated;
}

RawReader::RawReader() : state_(new State) {}

RawReader::~RawReader() = default;

Status RawReader::open(const uint8_t* data, size_t size, int height, int width, int reduction, Frame* frame) {
  State& state = *state_;
  Status status = state.open(data, size);
  if (status != Status::kOk) return status;
  const jpeg_decompress_struct& info = state.info;
  if (static_cast<int>(info.image_height) != height || static_cast<int>(info.image_width) != width) {
    return Status::kCorrupt;
  }
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
  state.has_halves = frame->has_halves(reduction);
  status = state.start();
  if (status != Status::kOk) return status;
  for (int i = 0; i < info.num_components; ++i) {
    const jpeg_component_info& component = info.comp_info[i];
    // libjpeg fills whole MCUs, whose blocks may reach beyond width_in_blocks.
    const size_t blocks = component.width_in_blocks + static_cast<size_t>(component.h_samp_factor);
    const size_t length = blocks * DCTSIZE, count = static_cast<size_t>(component.v_samp_factor) * DCTSIZE;
    state.samples[i].resize(length * count);
    state.rows[i].resize(count);
    for (size_t row = 0; row < count; ++row) state.rows[i][row] = state.samples[i].data() + row * length;
    state.planes[i] = state.rows[i].data();
    state.sides[i] = frame->is_halved(i, reduction) ? DCTSIZE / 2 : DCTSIZE;
  }
  return Status::kOk;
}

Status RawReader::next() noexcept { return state_->next(); }

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
