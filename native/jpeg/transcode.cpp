#include "jpeg/transcode.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "jpeg/header.h"
#include "jpeg/libjpeg_errors.h"
#include "jpeg/pack.h"
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

// The index of a file's rows of tiles (Note [row index]), a whole segment. Empty where it does not pay: small
// and strongly compressed images are scanned as quickly; and for colours that only libjpeg decodes.
std::vector<uint8_t> index_of(const BaselineStream& stream) {
  constexpr size_t kLeastBytes = 128;  // of the scan, per byte of its index
  std::vector<uint8_t> segment;
  const auto put = [&segment](size_t value, int bytes) {
    while (bytes-- > 0) segment.push_back(static_cast<uint8_t>(value >> 8 * bytes));
  };
  const size_t rows = static_cast<size_t>(stream.mcu_rows);
  const size_t length = static_cast<size_t>(stream.ends[stream.end_segment - 1] - stream.starts[0]);
  const size_t bytes = 4 + sizeof kIndexHead + 4 * rows;
  if (!stream.is_decodable || rows < 2 || kLeastBytes * bytes > length || length > UINT32_MAX) return segment;
  put(0xFF00 | kIndexMarker, 2);
  put(bytes - 2, 2);
  segment.insert(segment.end(), kIndexHead, kIndexHead + sizeof kIndexHead);
  put(length, 4);
  const size_t per_row = static_cast<size_t>(stream.mcu_columns / stream.interval);
  for (size_t row = 1; row < rows; ++row) {
    put(static_cast<size_t>(stream.starts[row * per_row] - stream.starts[0]), 4);
  }
  return segment;
}

constexpr int kExif = JPEG_APP0 + 1, kIcc = JPEG_APP0 + 2;

// A libjpeg writer to memory, destroyed with its holder, however far it came.
struct Compressor {
  jpeg_compress_struct target{};
  unsigned char* buffer = nullptr;
  unsigned long length = 0;
  bool writing = false;

  Compressor() = default;
  Compressor(const Compressor&) = delete;
  Compressor& operator=(const Compressor&) = delete;
  ~Compressor() {
    // libjpeg moves the bytes as they grow and reports their place only at the end, also after a jump.
    if (buffer != nullptr && target.dest != nullptr) target.dest->term_destination(&target);
    if (writing) jpeg_destroy_compress(&target);
    std::free(buffer);
  }

  // Jumps on errors, as everything that follows.
  void create() {
    jpeg_create_compress(&target);
    writing = true;
    jpeg_mem_dest(&target, &buffer, &length);
#if defined(JPEG_C_PARAM_SUPPORTED)
    jpeg_c_set_int_param(&target, JINT_COMPRESS_PROFILE, JCP_FASTEST);  // mozjpeg's default is progressive
#endif
  }
  // One scan with Huffman tables of its own.
  void choose_coding() noexcept {
    target.scan_info = nullptr;
    target.num_scans = 0;
    target.optimize_coding = TRUE;
    target.arith_code = FALSE;
  }
};

// Both halves of a transcoding and the memory they own. libjpeg jumps out of read(), write() and next_row(),
// so nothing there has a destructor.
struct Transcoder : Compressor {
  Decompressor reader;
  jpeg_decompress_struct& source = reader.info;
  jvirt_barray_ptr* coefficients = nullptr;
  bool untouched = false;
  JBLOCKROW rows[3][4];  // blocks of a row of MCUs

  Status read(const uint8_t* data, size_t size, const Header& header) noexcept;
  Status write(size_t size, int tile) noexcept;
  Status next_row(int row) noexcept;
  bool is_tileable() const noexcept;
  void copy_metadata() noexcept;
  bool describe(const Header& header, PackedSource* packed) const;
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
bool is_kept(const jpeg_marker_struct& marker) noexcept {
  return marker.marker == kExif || (marker.marker == kIcc && marker.data_length >= 12 &&
                                    std::memcmp(marker.data, "ICC_PROFILE", 12) == 0);
}

void Transcoder::copy_metadata() noexcept {
  for (jpeg_saved_marker_ptr marker = source.marker_list; marker != nullptr; marker = marker->next) {
    if (is_kept(*marker)) jpeg_write_marker(&target, marker->marker, marker->data, marker->data_length);
  }
}

Status Transcoder::read(const uint8_t* data, size_t size, const Header& header) noexcept {
  if (setjmp(reader.errors.jump)) return reader.errors.status;
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
  coefficients = jpeg_read_coefficients(&source);
  if (!reader.is_complete()) return Status::kTruncated;
  untouched = !is_tileable();
  return Status::kOk;
}

// The source has been read without a fault: if its coefficients cannot be written, it stays as it is.
Status Transcoder::write(size_t size, int tile) noexcept {
  target.err = source.err;
  if (setjmp(reader.errors.jump)) {
    untouched = reader.errors.status >= Status::kOk;
    return untouched ? Status::kOk : reader.errors.status;
  }
  const int across = source.num_components == 1 ? DCTSIZE : DCTSIZE * source.max_h_samp_factor;
  const int down = source.num_components == 1 ? DCTSIZE : DCTSIZE * source.max_v_samp_factor;
  const int columns = (static_cast<int>(source.image_width) + across - 1) / across;
  const int rows = (static_cast<int>(source.image_height) + down - 1) / down;
  create();
  jpeg_copy_critical_parameters(&source, &target);
  choose_coding();
  target.restart_interval = static_cast<unsigned>(tile_interval(
      columns, rows, (tile + across - 1) / across, size, static_cast<int>(source.restart_interval)));
  jpeg_write_coefficients(&target, coefficients);
  copy_metadata();
  jpeg_finish_compress(&target);
  jpeg_finish_decompress(&source);
  return Status::kOk;
}

Status Transcoder::next_row(int row) noexcept {
  if (setjmp(reader.errors.jump)) return reader.errors.status;
  for (int i = 0; i < source.num_components; ++i) {
    const jpeg_component_info& component = source.comp_info[i];
    const int down = source.num_components == 1 ? 1 : component.v_samp_factor;
    for (int y = 0; y < down; ++y) {
      const JDIMENSION at = static_cast<JDIMENSION>(row * down + y);
      rows[i][y] = nullptr;
      if (at >= component.height_in_blocks) continue;
      rows[i][y] = *source.mem->access_virt_barray(reinterpret_cast<j_common_ptr>(&source), coefficients[i],
                                                   at, 1, FALSE);
    }
  }
  return Status::kOk;
}

void append_segment(int marker, const uint8_t* body, size_t size, std::vector<uint8_t>* out) {
  const size_t length = size + 2;
  out->insert(out->end(), {0xFF, static_cast<uint8_t>(marker), static_cast<uint8_t>(length >> 8),
                           static_cast<uint8_t>(length)});
  out->insert(out->end(), body, body + size);
}

// False if PlaneReader could not decode the tiled file, or its colours are neither gray nor YCbCr.
bool Transcoder::describe(const Header& header, PackedSource* packed) const {
  const J_COLOR_SPACE colors = source.num_components == 1 ? JCS_GRAYSCALE : JCS_YCbCr;
  if (source.num_components > 3 || source.jpeg_color_space != colors) return false;
  Frame& frame = packed->frame;
  frame.height = header.height;
  frame.width = header.width;
  frame.component_count = source.num_components;
  for (int i = 0; i < source.num_components; ++i) {
    const jpeg_component_info& info = source.comp_info[i];
    frame.components[i].across = info.h_samp_factor;
    frame.components[i].down = info.v_samp_factor;
    std::copy(info.quant_table->quantval, info.quant_table->quantval + 64, frame.components[i].quantisers);
    packed->ids[i] = static_cast<uint8_t>(info.component_id);
  }
  packed->orientation = header.orientation;
  // As libjpeg writes it into a tiled file.
  const bool has_version = source.saw_JFIF_marker && source.JFIF_major_version == 1;
  const bool has_density = source.saw_JFIF_marker != FALSE;
  const int x = has_density ? source.X_density : 1, y = has_density ? source.Y_density : 1;
  const int fields[] = {1,
                        has_version ? source.JFIF_minor_version : 1,
                        has_density ? source.density_unit : 0,
                        x >> 8,
                        x,
                        y >> 8,
                        y,
                        0,
                        0};
  uint8_t jfif[14] = {'J', 'F', 'I', 'F', 0};
  for (size_t i = 0; i < 9; ++i) jfif[5 + i] = static_cast<uint8_t>(fields[i]);
  append_segment(JPEG_APP0, jfif, sizeof jfif, &packed->metadata);
  for (jpeg_saved_marker_ptr marker = source.marker_list; marker != nullptr; marker = marker->next) {
    if (is_kept(*marker))
      append_segment(marker->marker, marker->data, marker->data_length, &packed->metadata);
  }
  return frame.derive();
}

// Packs the coefficients that `transcoder` has read; `out` stays empty if they cannot be packed.
Status pack(Transcoder* transcoder, const Header& header, int tile, std::vector<uint8_t>* out) {
  PackedSource packed;
  if (!transcoder->describe(header, &packed)) return Status::kOk;
  const Frame& frame = packed.frame;
  PackedWriter writer(packed, tile);
  for (int row = 0; row < frame.mcu_rows; ++row) {
    const Status status = transcoder->next_row(row);
    if (status != Status::kOk) return status;
    for (int column = 0; column < frame.mcu_columns; ++column) {
      Block* block = writer.next();
      for (int i = 0; i < frame.component_count; ++i) {
        const Component& component = frame.components[i];
        const int columns = static_cast<int>(transcoder->source.comp_info[i].width_in_blocks);
        for (int k = 0; k < component.down * component.across; ++k, ++block) {
          const JBLOCKROW blocks = transcoder->rows[i][k / component.across];
          const int x = column * component.across + k % component.across;
          if (blocks != nullptr && x < columns) {
            std::memcpy(*block, blocks[x], sizeof blocks[x]);
          } else {  // outside the image: as libjpeg writes it
            std::memset(*block, 0, sizeof *block);
            (*block)[0] = block[-1][0];
          }
        }
      }
      writer.add();
    }
  }
  writer.finish(out);
  return Status::kOk;
}

// Reads the coefficients of a JPEG; kOk only if libjpeg and PlaneReader find no damage.
Status read_coefficients(const uint8_t* data, size_t size, const Header& header, int64_t max_pixels,
                         Transcoder* transcoder) {
  if (header.status != Status::kOk) return header.status;
  if (header.format != Format::kJpeg) return Status::kNotAnImage;
  if (static_cast<int64_t>(header.height) * header.width > max_pixels) return Status::kTooLarge;
  if (!has_end_marker(data, size, header.body)) return Status::kTruncated;
  Errors& errors = transcoder->reader.errors;
  Status status = Status::kUnsupported;
  {
    BaselineStream stream;
    PlaneReader planes;
    if (stream.parse(data, size, header)) status = planes.check(stream, header.height);
    if (status == Status::kCorrupt) return status;
    errors.has_padding = planes.has_padding();
    errors.is_checked = status == Status::kOk;
  }
  return transcoder->read(data, size, header);
}

// The tiled file, or the source if it cannot be tiled.
Status write_tiled(const uint8_t* data, size_t size, int tile, Transcoder* transcoder,
                   std::vector<uint8_t>* out) {
  const Status status = transcoder->untouched ? Status::kOk : transcoder->write(size, tile);
  if (status != Status::kOk) return status;
  if (transcoder->untouched) {
    out->assign(data, data + size);
  } else {
    const uint8_t* const made = transcoder->buffer;
    const Header head = read_jpeg_header(made, transcoder->length);
    out->assign(made, made + transcoder->length);
    BaselineStream stream;
    if (!stream.parse(made, transcoder->length, head)) return Status::kOk;
    const std::vector<uint8_t> index = index_of(stream);
    out->insert(out->begin() + static_cast<ptrdiff_t>(head.body), index.begin(), index.end());
  }
  return Status::kOk;
}

// Writes a JPEG of given coefficients. libjpeg jumps out of its functions.
struct CoefficientWriter : Compressor {
  Errors errors{};
  jvirt_barray_ptr coefficients[3] = {};
  JBLOCKROW rows[3][4];

  Status open(const PackedImage& image) noexcept;
  Status next_row(const PackedImage& image, int row) noexcept;
  Status finish(const uint8_t* metadata, size_t size) noexcept;
};

Status CoefficientWriter::open(const PackedImage& image) noexcept {
  set_errors(&errors);
  target.err = &errors.base;
  if (setjmp(errors.jump)) return errors.status;
  create();
  target.image_height = static_cast<JDIMENSION>(image.height);
  target.image_width = static_cast<JDIMENSION>(image.width);
  target.input_components = image.component_count;
  target.in_color_space = image.component_count == 1 ? JCS_GRAYSCALE : JCS_YCbCr;
  jpeg_set_defaults(&target);
  choose_coding();
  target.write_JFIF_header = target.write_Adobe_marker = FALSE;  // they are in the metadata
  for (int i = 0; i < image.component_count; ++i) {
    const Component& component = image.components[i];
    jpeg_component_info& info = target.comp_info[i];
    info.component_id = image.ids[i];
    info.h_samp_factor = component.across;
    info.v_samp_factor = component.down;
    info.quant_tbl_no = image.tables[i];
    JQUANT_TBL*& table = target.quant_tbl_ptrs[info.quant_tbl_no];
    if (table == nullptr) table = jpeg_alloc_quant_table(reinterpret_cast<j_common_ptr>(&target));
    std::copy(component.quantisers, component.quantisers + 64, table->quantval);
    coefficients[i] = target.mem->request_virt_barray(
        reinterpret_cast<j_common_ptr>(&target), JPOOL_IMAGE, FALSE,
        static_cast<JDIMENSION>(image.mcu_columns * component.across),
        static_cast<JDIMENSION>(image.mcu_rows * component.down), static_cast<JDIMENSION>(component.down));
  }
  jpeg_write_coefficients(&target, coefficients);
  return Status::kOk;
}

Status CoefficientWriter::next_row(const PackedImage& image, int row) noexcept {
  if (setjmp(errors.jump)) return errors.status;
  for (int i = 0; i < image.component_count; ++i) {
    for (int y = 0; y < image.components[i].down; ++y) {
      const JDIMENSION at = static_cast<JDIMENSION>(row * image.components[i].down + y);
      rows[i][y] = *target.mem->access_virt_barray(reinterpret_cast<j_common_ptr>(&target), coefficients[i],
                                                   at, 1, TRUE);
    }
  }
  return Status::kOk;
}

// `metadata`: marker segments of applications. The file may be mapped and have changed since it was checked.
Status CoefficientWriter::finish(const uint8_t* metadata, size_t size) noexcept {
  if (setjmp(errors.jump)) return errors.status;
  for (size_t at = 0; at < size;) {
    if (size - at < 4) return Status::kCorrupt;
    const uint8_t* const segment = metadata + at;
    const int marker = segment[1];
    const size_t length = static_cast<size_t>(segment[2] << 8 | segment[3]);
    const bool is_application = marker >= JPEG_APP0 && marker <= JPEG_APP0 + 15;
    if (segment[0] != 0xFF || !is_application || length < 2 || length + 2 > size - at)
      return Status::kCorrupt;
    jpeg_write_marker(&target, marker, segment + 4, static_cast<unsigned>(length - 2));
    at += length + 2;
  }
  jpeg_finish_compress(&target);
  return Status::kOk;
}

}  // namespace

Status tile_jpeg(const uint8_t* data, size_t size, const Header& header, int tile, int64_t max_pixels,
                 std::vector<uint8_t>* out) {
  Transcoder transcoder;
  const Status status = read_coefficients(data, size, header, max_pixels, &transcoder);
  return status == Status::kOk ? write_tiled(data, size, tile, &transcoder, out) : status;
}

Status pack_jpeg(const uint8_t* data, size_t size, const Header& header, int tile, int64_t max_pixels,
                 std::vector<uint8_t>* out) {
  out->clear();
  if (header.status == Status::kOk && header.format == Format::kPacked) {
    if (!is_packed_sum_correct(data, size)) return Status::kCorrupt;
    out->assign(data, data + size);
    return Status::kOk;
  }
  Transcoder transcoder;
  Status status = read_coefficients(data, size, header, max_pixels, &transcoder);
  if (status == Status::kOk && !transcoder.untouched) status = pack(&transcoder, header, tile, out);
  if (status != Status::kOk || !out->empty()) return status;
  return write_tiled(data, size, tile, &transcoder, out);
}

Status unpack_jpeg(const uint8_t* data, size_t size, const Header& header, int64_t max_pixels,
                   std::vector<uint8_t>* out) {
  if (header.status != Status::kOk) return header.status;
  if (header.format == Format::kPpm) return Status::kNotAnImage;
  if (header.format == Format::kJpeg) {
    out->assign(data, data + size);
    return Status::kOk;
  }
  if (static_cast<int64_t>(header.height) * header.width > max_pixels) return Status::kTooLarge;
  PackedImage image;
  Status status = image.parse(data, size, header);
  if (status == Status::kOk && !is_packed_sum_correct(data, size)) status = Status::kCorrupt;
  if (status != Status::kOk) return status;
  CoefficientWriter writer;
  status = writer.open(image);
  struct Tile {
    TileScratch scratch;
    Block blocks[kMostTileBlocks];
  };
  const std::unique_ptr<Tile> memory(new Tile);
  for (int row = 0; row < image.mcu_rows && status == Status::kOk; ++row) {
    status = writer.next_row(image, row);
    for (int tile = 0; tile < image.tiles && status == Status::kOk; ++tile) {
      if (!image.unpack(row, tile, image.component_count, &memory->scratch, memory->blocks))
        return Status::kCorrupt;
      const Block* block = memory->blocks;
      for (int mcu = 0; mcu < image.shape(tile).mcus; ++mcu) {
        for (int i = 0; i < image.component_count; ++i) {
          const int across = image.components[i].across, first = (tile * image.tile_mcus + mcu) * across;
          for (int k = 0; k < across * image.components[i].down; ++k, ++block)
            std::memcpy(writer.rows[i][k / across][first + k % across], *block, sizeof(JBLOCK));
        }
      }
    }
  }
  if (status == Status::kOk) status = writer.finish(image.metadata, image.metadata_size);
  if (status != Status::kOk) return status;
  // The JPEG has the orientation of the metadata, the packed image one of its own, by which it is decoded.
  if (read_jpeg_header(writer.buffer, writer.length).orientation != header.orientation)
    return Status::kCorrupt;
  out->assign(writer.buffer, writer.buffer + writer.length);
  return status;
}

}  // namespace tarpeg
