#include "jpeg/libjpeg_errors.h"

#include <algorithm>

#include "jpeg/entropy.h"

namespace tarpeg {
namespace {

// Bounds of a progressive file: a scan of a few bytes may pass over all of its blocks. Encoders write 10 to
// 20 scans; scans times blocks of 8x8 pixels are about a second at most.
constexpr int kMostScans = 500, kAllowedScans = 32;
constexpr int64_t kMostBlocks = 1 << 26;

[[noreturn]] void fail(j_common_ptr info, Status status) {
  Errors* errors = reinterpret_cast<Errors*>(info->err);
  errors->status = status;
  std::longjmp(errors->jump, 1);
}

[[noreturn]] void on_error(j_common_ptr info) {
  // Another version numbers its messages otherwise: whatever fails before the object exists is its refusal.
  if (info->global_state == 0 && info->err->msg_code != JERR_OUT_OF_MEMORY) fail(info, Status::kOtherLibrary);
  switch (info->err->msg_code) {
    // Not the file's fault. JPEGMEM in the environment limits libjpeg's memory: no backing store.
    case JERR_OUT_OF_MEMORY:
    case JERR_NO_BACKING_STORE:
      fail(info, Status::kOutOfMemory);
    case JERR_BAD_LIB_VERSION:
    case JERR_BAD_STRUCT_SIZE:
      fail(info, Status::kOtherLibrary);
    case JERR_INPUT_EOF:
    case JERR_INPUT_EMPTY:
      fail(info, Status::kTruncated);
    case JERR_BAD_PRECISION:
    case JERR_CONVERSION_NOTIMPL:
    case JERR_FRACT_SAMPLE_NOTIMPL:
    case JERR_CCIR601_NOTIMPL:
#if JPEG_LIB_VERSION < 70
    case JERR_ARITH_NOTIMPL:
#endif
    case JERR_NOT_COMPILED:
    case JERR_SOF_UNSUPPORTED:
      fail(info, Status::kUnsupported);
    default:
      fail(info, Status::kCorrupt);
  }
}

// libjpeg counts bytes that it has read ahead, up to 7, for a marker, but reports them before a later one. At
// most so many of those before the restart marker that it has just passed are padding.
void on_restart(j_common_ptr info) {
  const jpeg_decompress_struct& source = *reinterpret_cast<j_decompress_ptr>(info);
  const uint8_t* end = source.src->next_input_byte - 2;
  size_t count = 0;
  while (count < 7 && is_padding(end - count - 1, 1)) ++count;
  reinterpret_cast<Errors*>(info->err)->earlier_padding += count;
}

// Bytes before a marker. Before the first scan they do not matter; in a scan, see Note [padding].
void on_surplus(j_common_ptr info) {
  const jpeg_decompress_struct& source = *reinterpret_cast<j_decompress_ptr>(info);
  Errors* errors = reinterpret_cast<Errors*>(info->err);
  if (source.input_scan_number == 0) return;
  errors->has_padding = true;
  if (errors->is_checked) return;
  // libjpeg has not moved on to the marker yet.
  size_t count = static_cast<size_t>(info->err->msg_parm.i[0]);
  count -= std::min(count, errors->earlier_padding);
  errors->earlier_padding = 0;
  if (count > kMostPadding || !is_padding(source.src->next_input_byte - count, count))
    fail(info, Status::kCorrupt);
}

// Warnings about the header do not change pixels; every other warning means invented pixels.
void on_message(j_common_ptr info, int level) {
  if (level >= 0) return info->err->msg_code == JTRC_RST ? on_restart(info) : void();
  switch (info->err->msg_code) {
    case JWRN_EXTRANEOUS_DATA:
      return on_surplus(info);
    case JWRN_JFIF_MAJOR:
    case JWRN_ADOBE_XFORM:
      return;
    case JWRN_JPEG_EOF:
      fail(info, Status::kTruncated);
    default:
      fail(info, Status::kCorrupt);
  }
}

void on_output(j_common_ptr) {}

void limit_scans(j_common_ptr info) {
  const jpeg_decompress_struct& source = *reinterpret_cast<j_decompress_ptr>(info);
  const int64_t blocks = (source.image_height / 8 + 1) * static_cast<int64_t>(source.image_width / 8 + 1);
  const int64_t most = std::clamp<int64_t>(kMostBlocks / blocks, kAllowedScans, kMostScans);
  if (source.input_scan_number > most) fail(info, Status::kCorrupt);
}

}  // namespace

void set_errors(Errors* errors) noexcept {
  jpeg_std_error(&errors->base);
  errors->base.error_exit = on_error;
  errors->base.emit_message = on_message;
  errors->base.output_message = on_output;
}

Decompressor::Decompressor() noexcept {
  set_errors(&errors);
  info.err = &errors.base;
}

Decompressor::~Decompressor() {
  if (is_created_) jpeg_destroy_decompress(&info);
}

bool Decompressor::is_complete() const noexcept {
  for (int i = 0; i < info.num_components; ++i) {
    if (info.comp_info[i].quant_table == nullptr) return false;  // no scan contained the component
    for (int k = 0; k < DCTSIZE2 && info.coef_bits != nullptr; ++k) {
      if (info.coef_bits[i][k] != 0) return false;
    }
  }
  return true;
}

void Decompressor::begin(const uint8_t* data, size_t size) {
  jpeg_create_decompress(&info);
  is_created_ = true;
  progress_.progress_monitor = limit_scans;
  info.progress = &progress_;
  jpeg_mem_src(&info, data, static_cast<unsigned long>(size));
}

}  // namespace tarpeg
