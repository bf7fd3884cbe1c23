#pragma once

#include <cmath>
#include <cstdint>

#include "base/device.h"
#include "batch/warp.h"
#include "image/normalise.h"

// The final pass: what moves, erases and normalises a batch, in levels of 0 to 255. See Note [one arithmetic]
// in base/device.h; the order and the formulas are those of tarpeg.augment_batch's docstring.
namespace tarpeg {

// Bits for the parts that are given. The same in tarpeg/ops/augment.py.
enum Part : int { kMatrix = 1, kFlip = 2, kColour = 4 };

// Columns of an image's row of the table. The same in tarpeg/ops/augment.py.
enum Column : int {
  kMatrixAt = 0,  // 6 numbers
  kFlipAt = 6,
  kColourAt = 7,  // 12 numbers
  kColumns = 19
};

// The final pass of a batch as plain pointers, checked. Each image has its numbers; boxes and cells that are
// erased, a colour for these, and the scale and shift of each channel.
struct FinalPass {
  const double* numbers;  // [B, kColumns], or null: there is no final pass
  int parts;
  const int32_t* boxes;  // [B, box_count, box_columns] (top, left, height, width, key), or null
  int64_t box_count;
  int64_t box_columns;  // 6 with keys, low and high half: boxes of random pixels; 4 without
  const uint8_t* mask;  // [B, mask_height, mask_width], or null
  int64_t mask_height, mask_width;
  float fill[3];
  Normalisation how;

  // The level that becomes a normal random number, of pixel `at` and channel c in a box with a key.
  TARPEG_HD float random_level(const int32_t* box, int64_t at, int c) const;
};

// The numbers of one image, ready for use.
struct ImagePass {
  Affine map;
  bool is_direct;  // the map takes whole pixels to whole pixels along rows: nothing is interpolated
  bool recolours;
  float colour[12];
};

TARPEG_HD bool is_whole(double value) { return value > -kNear && value < kNear && floor(value) == value; }

TARPEG_HD ImagePass image_pass(const FinalPass& pass, int64_t image, int64_t source_width) {
  const double* numbers = pass.numbers + image * kColumns;
  const int parts = pass.parts;
  ImagePass own;
  own.map = {1, 0, 0, 0, 1, 0};
  if (parts & kMatrix) own.map = affine_of(numbers + kMatrixAt, false);
  if ((parts & kFlip) && numbers[kFlipAt] != 0) {  // mirrored first, so last on the way back
    own.map.xx = -own.map.xx;
    own.map.xy = -own.map.xy;
    own.map.x0 = static_cast<double>(source_width - 1) - own.map.x0;
  }
  const Affine& map = own.map;
  own.is_direct = map.xy == 0 && map.yx == 0 && (map.xx == 1 || map.xx == -1) &&
                  (map.yy == 1 || map.yy == -1) && is_whole(map.x0) && is_whole(map.y0);
  own.recolours = parts & kColour;
  for (int i = 0; i < 12; ++i) own.colour[i] = static_cast<float>(numbers[kColourAt + i]);
  return own;
}

TARPEG_HD void recolour(const float* m, float* r, float* g, float* b) {
  const float x = *r, y = *g, z = *b;
  *r = m[0] * x + m[1] * y + m[2] * z + m[3];
  *g = m[4] * x + m[5] * y + m[6] * z + m[7];
  *b = m[8] * x + m[9] * y + m[10] * z + m[11];
}

// A draw of the standard normal distribution: the sum of the 8 bytes of a hash (SplitMix64, as in
// sampling/rng.py), bent so that the distribution function is exact to 0.0001.
TARPEG_HD float normal_of(uint64_t key, uint64_t index) {
  uint64_t hash = key + 0x9E3779B97F4A7C15u * (index + 1);
  hash = (hash ^ (hash >> 30)) * 0xBF58476D1CE4E5B9u;
  hash = (hash ^ (hash >> 27)) * 0x94D049BB133111EBu;
  hash ^= hash >> 31;
  const uint64_t pairs = (hash & 0x00FF00FF00FF00FFu) + ((hash >> 8) & 0x00FF00FF00FF00FFu);
  const int32_t sum = static_cast<int32_t>((pairs * 0x0001000100010001u) >> 48);
  const float x = static_cast<float>(sum - 1020) * 0.0047841973f, square = x * x;
  return x * (0.98166437f + square * (5.2188194e-3f + square * 2.5875132e-4f));
}

TARPEG_HD float FinalPass::random_level(const int32_t* box, int64_t at, int c) const {
  const uint64_t low = static_cast<uint32_t>(box[4]), high = static_cast<uint32_t>(box[5]);
  return (normal_of(low | (high << 32), static_cast<uint64_t>(3 * at + c)) - how.shift[c]) / how.scale[c];
}

}  // namespace tarpeg
