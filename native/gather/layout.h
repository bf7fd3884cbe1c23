#pragma once

#include <cstddef>
#include <cstdint>

// Note [gathered images]
// What a device needs to decode a batch of crops, in one tensor of bytes: a header, a record for each image,
// a table of pieces, and the pieces: the packed tiles, or the data between restart markers without their
// stuffing, that lie under the crops. Made by one version of this library and read by the same: the layout is
// private, and other versions refuse it. A tensor may be damaged, or crafted: plan_image() derives all sizes
// from a copy of a record, and nothing is read or written that these and the bounds of the tensor do not
// allow. All integers are little-endian.
//
// A GPU decodes the images chunk by chunk in the same memory, which is that of the largest chunk: a batch of
// photographs at their full size would take gigabytes at once. The host launches a chunk without looking into
// the tensor, so gather_tiles returns these numbers beside it. In a chunk the memory of each image ends
// before that of the next begins. That is checked: what one image writes must not become an index of another.
namespace tarpeg::gather {

constexpr uint64_t kMagic = 0x5245485441474A54;  // "TJGATHER"
constexpr uint32_t kVersion = 3;
// Pieces begin at multiples of it; offsets count it.
constexpr uint64_t kUnit = 16;
// Bytes behind the last piece of each image.
constexpr uint64_t kGuard = 64;

struct Header {
  uint64_t magic;
  uint32_t version, count;  // of images
  uint32_t height, width;   // of the results
  uint8_t channels, filter, exact, spare[5];
  uint64_t bytes, pieces;  // of the whole tensor
  uint64_t work;           // bytes of memory for the largest chunk
  uint64_t lanczos;        // where lanczos_table() begins, of that filter: devices compute other sines
};
static_assert(sizeof(Header) == 64);

enum class Kind : uint8_t { kPacked, kSegments };

// An image. All but `status` and `work` are zeros unless the status is 0.
struct Image {
  int32_t status;
  uint8_t kind, components, orientation, mirror;
  uint16_t height, width;  // as stored
  uint16_t tile;           // MCUs of a piece; the last of a row of packed tiles may have fewer
  uint8_t unit;            // packed: log2 of the bytes that tiles are filled up to
  uint8_t tables;          // segments: how many Huffman tables there are
  uint8_t sampling[3];     // 16 * across + down
  uint8_t dc_bytes[3];     // packed
  uint8_t dc_table[3], ac_table[3];
  int32_t top, left, box_height, box_width;  // upright pixels
  uint32_t tables_at;                        // in units of kUnit
  uint32_t first_piece, pieces;
  uint64_t work;               // where its memory begins in that of its chunk
  uint16_t quantisers[3][64];  // in zigzag order
};
static_assert(sizeof(Image) == 448);

// Of all rows of MCUs under a crop, one after the other, those of each from left to right.
struct Piece {
  uint32_t at, size;  // in units of kUnit; in bytes
};

// A Huffman code as in a DHT segment.
struct Table {
  uint8_t counts[16], symbols[256];
};
static_assert(sizeof(Table) % kUnit == 0);
constexpr int kMostTables = 6;

}  // namespace tarpeg::gather
