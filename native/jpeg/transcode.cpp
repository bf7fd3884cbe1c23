#include "jpeg/transcode.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "jpeg/header.h"
#include "jpeg/libjpeg_errors.h"
#include "jpeg/planes.h"

namespace tarpeg {
namespace {

// Bytes that a tile costs: its marker, padding, and DC values that are not predicted.
constexpr size_t kTileBytes = 4;

// The restart interval, in MCUs, for tiles of about `target` MCUs in `rows` rows of `columns` MCUs: the
// smallest divisor of `columns` from target to 4 * target with which the tiles cost at most 1/30 of the
// source's bytes (optimised Huffman tables save about as much), or the largest of these; if there is none,
// the largest below the target, but never one MCU unless the target is one (it costs 3 to 5% in size);
// otherwise a whole row. A source that already has tiles of such a width, `current`, keeps them: tiling
// twice equals tiling once, though the source of the second time is smaller.
int tile_interval(int columns, int rows, int target, size_t source_bytes, int current) noexcept {
  int chosen = 0;
  if (current >= target && current <= 4 * target && columns % current == 0) return current;
  for (int interval = target; interval <= 4 * target && interval <= columns; ++interval) {
    if (columns % interval != 0) continue;
    chosen = interval;
    if (static_cast<size_t>(rows) * (columns / interval) * kTileBytes * 30 <= source_bytes) break;
  }
  if (chosen > 0) return chosen;
  for (int interval = std::min(target - 1, columns); interval > 1; --interval) {
    if (columns % interval == 0) return interval;
  }
  return columns;
}

constexpr int kExif = JPEG_APP0 + 1, kIcc = JPEG_APP0 + 2;

// Both halves of a transcoding and the memory they own. libjpeg jumps out of run(), so nothing there has a
// destructor.
struct Transcoder {
  Decompressor reader;
  jpeg_decompress_struct& source = reader.info;
  jpeg_compress_struct target{};
  unsigned char* buffer = nullptr;
  unsigned long length = 0;
  bool writing = false, untouched = false;

  Transcoder() = default;
  Transcoder(const Transcoder&) = delete;
  Transcoder& operator=(const Transcoder&) = delete;
  ~Transcoder() {
    // libjpeg moves the bytes as they grow and reports their place only at the end, also after a jump.
    if (buffer != nullptr && target.dest != nullptr) target.dest->term_destination(&target);
    if (writing) jpeg_destroy_compress(&target);
    std::free(buffer);
  }

  Status run(const uint8_t* data, size_t size, const Header& header, int tile) noexcept;
  bool is_tileable() const noexcept;
  void copy_metadata() noexcept;
};

// Note [laundering]
// Rewriting would turn a damaged file into a valid one. Every warning that concerns pixels
// is an error (on_message()), and so are a missing EOI, missing scans, and data that are left over in one
// (Note [padding]). A source with padding in a scan is returned unchanged, and an arithmetic one: damage in
// it goes unnoticed. So is one whose MCU would hold more blocks than one scan may interleave, whose
// components were quantised by tables since overwritten, or whose coefficients are too large for a baseline
// file.
bool Transcoder::is_tileable() const noexcept {
  if (source.arith_code || reader.errors.has_padding) return false;
  int blocks = 0;
  for (int i = 0; i < source.num_components; ++i) {
    const jpeg_component_info& component = source.comp_info[i];
    blocks += component.h_samp_factor * component.v_samp_factor;
    if (source.max_h_samp_factor % component.h_samp_factor != 0) return false;
    if (source.max_v_samp_factor % component.v_samp_factor != 0) return false;
    const JQUANT_TBL* used = component.quant_table;
    const JQUANT_TBL* last = source.quant_tbl_ptrs[component.quant_tbl_no];
    if (std::memcmp(used->quantval, last->quantval, sizeof used->quantval) != 0) return false;
  }
  return source.num_components == 1 || blocks <= D_MAX_BLOCKS_IN_MCU;
}

// EXIF and XMP (orientation), and the ICC profile. Not MPF, whose offsets would be wrong, nor thumbnails in
// APP0.
void Transcoder::copy_metadata() noexcept {
  for (jpeg_saved_marker_ptr marker = source.marker_list; marker != nullptr; marker = marker->next) {
    const bool is_icc = marker->marker == kIcc && marker->data_length >= 12 &&
                        std::memcmp(marker->data, "ICC_PROFILE", 12) == 0;
    if (marker->marker == kExif || is_icc) {
      jpeg_write_marker(&target, marker->marker, marker->data, marker->data_length);
    }
  }
}

Status Transcoder::run(const uint8_t* data, size_t size, const Header& header, int tile) noexcept {
  target.err = source.err;
  if (setjmp(reader.errors.jump)) {
    // Reading ends before writing begins: the source is not damaged.
    untouched = writing && reader.errors.status >= Status::kOk;
    return untouched ? Status::kOk : reader.errors.status;
  }
  reader.begin(data, size);
  jpeg_save_markers(&source, kExif, 0xFFFF);
  jpeg_save_markers(&source, kIcc, 0xFFFF);
  jpeg_read_header(&source, TRUE);
  // The limit of pixels holds for the size in `header`; a mapped file may have changed since it was read.
  if (static_cast<int>(source.image_height) != header.height ||
      static_cast<int>(source.image_width) != header.width) {
    return Status::kCorrupt;
  }
  // read_header() does not see what stands between scans.
  jpeg_save_markers(&source, kExif, 0);
  jpeg_save_markers(&source, kIcc, 0);
  jvirt_barray_ptr* coefficients = jpeg_read_coefficients(&source);
  if (!reader.is_complete()) return Status::kTruncated;
  if (!is_tileable()) {
    untouched = true;
    return Status::kOk;
  }
  const int across = source.num_components == 1 ? DCTSIZE : DCTSIZE * source.max_h_samp_factor;
  const int down = source.num_components == 1 ? DCTSIZE : DCTSIZE * source.max_v_samp_factor;
  const int columns = (static_cast<int>(source.image_width) + across - 1) / across;
  const int rows = (static_cast<int>(source.image_height) + down - 1) / down;

  jpeg_create_compress(&target);
  writing = true;
  jpeg_mem_dest(&target, &buffer, &length);
#if defined(JPEG_C_PARAM_SUPPORTED)
  jpeg_c_set_int_param(&target, JINT_COMPRESS_PROFILE, JCP_FASTEST);  // mozjpeg's default is progressive
#endif
  jpeg_copy_critical_parameters(&source, &target);
  target.scan_info = nullptr;
  target.num_scans = 0;
  target.optimize_coding = TRUE;
  target.arith_code = FALSE;
  target.restart_interval = static_cast<unsigned>(tile_interval(
      columns, rows, (tile + across - 1) / across, size, static_cast<int>(source.restart_interval)));
  jpeg_write_coefficients(&target, coefficients);
  copy_metadata();
  jpeg_finish_compress(&target);
  jpeg_finish_decompress(&source);
  return Status::kOk;
}

}  // namespace

Status tile_jpeg(const uint8_t* data, size_t size, const Header& header, int tile, int64_t max_pixels,
                 std::vector<uint8_t>* out) {
  if (header.status != Status::kOk) return header.status;
  if (header.format != Format::kJpeg) return Status::kNotAnImage;
  if (static_cast<int64_t>(header.height) * header.width > max_pixels) return Status::kTooLarge;
  if (!has_end_marker(data, size, header.body)) return Status::kTruncated;
  Transcoder transcoder;
  Errors& errors = transcoder.reader.errors;
  Status status = Status::kUnsupported;
  {
    BaselineStream stream;
    PlaneReader planes;
    if (stream.parse(data, size, header)) status = planes.check(stream, header.height);
    if (status == Status::kCorrupt) return status;
    errors.has_padding = planes.has_padding();
    errors.is_checked = status == Status::kOk;
  }
  status = transcoder.run(data, size, header, tile);
  if (status != Status::kOk) return status;
  if (transcoder.untouched) {
    out->assign(data, data + size);
  } else {
    out->assign(transcoder.buffer, transcoder.buffer + transcoder.length);
  }
  return Status::kOk;
}

}  // namespace tarpeg
