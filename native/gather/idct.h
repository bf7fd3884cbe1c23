#pragma once

#include "gather/entropy.h"
#include "jpeg/idct_plain.h"

// Blocks of coefficients to samples of a plane: the arithmetic of jpeg/idct.cpp and jpeg/means.cpp, one block
// at a time.
namespace tarpeg::gather {

TARPEG_HD uint8_t level_of(int16_t number) {
  return static_cast<uint8_t>(within(static_cast<int16_t>(number + 128), 0, 255));
}

TARPEG_HD bool is_zero(const int16_t* numbers, int count) {
  int all = 0;
  for (int i = 0; i < count; ++i) all |= numbers[i];
  return all == 0;
}

// Samples of a block, 8 in a row: 8 x 8, or the first 4 of 4 rows. `numbers`: 64 of scratch.
TARPEG_HD void inverse_dct(const int16_t* coefficients, const uint16_t* quantisers, bool is_halved,
                           int16_t* numbers, uint8_t* samples) {
  const bool is_flat = is_halved ? is_zero(coefficients + 8, 24) && is_zero(coefficients + 40, 24)
                                 : is_zero(coefficients + 8, 56);
  for (int i = 0; i < 64; ++i) numbers[i] = static_cast<int16_t>(coefficients[i] * quantisers[i]);
  const int side = is_halved ? 4 : 8;
  for (int x = 0; x < 8; ++x) {
    if (is_flat) {  // Note [flat columns] in jpeg/idct.cpp
      const int16_t shifted = static_cast<int16_t>(numbers[x] * (1 << kPassBits));
      for (int y = 0; y < 8; ++y) numbers[8 * y + x] = shifted;
    } else if (is_halved) {
      halve<kHalvedShift>(numbers + x, numbers + x, 8);
    } else {
      transform<kFirstShift>(numbers + x, numbers + x, 8);
    }
  }
  for (int y = 0; y < side; ++y) {
    int16_t* const row = numbers + 8 * y;
    if (is_halved) {
      halve<kHalvedShift + 2 * kPassBits + 3>(row, row, 1);
    } else {
      transform<kSecondShift>(row, row, 1);
    }
    for (int x = 0; x < side; ++x) samples[8 * y + x] = level_of(row[x]);
  }
}

TARPEG_HD int log2_of(int power) {
  int log = 0;
  while (1 << log < power) ++log;
  return log;
}

// Block `number` of those of a plane that are decoded. If the image ends in it, its last samples are repeated
// where means are made: the rest is not part of the picture.
TARPEG_HD void transform_block(const Plan& plan, int component, int number, uint8_t* memory) {
  const Plane& plane = plan.planes[component];
  const int across = plane.last_column - plane.first_column + 1;
  const int row = plane.first_row + number / across, column = plane.first_column + number % across;
  int16_t numbers[64];
  uint8_t block[64];
  const bool is_halved = plane.side == 4;
  inverse_dct(block_at(plane, row, column, memory), plan.image.quantisers[component], is_halved, numbers,
              block);
  uint8_t* const out = memory + plane.samples +
                       static_cast<int64_t>(row * plane.block_rows - plane.top) * plane.columns +
                       column * plane.block_columns - plane.left;
  const int halved = 8 / plane.side;
  const int down_by = plane.down_by / halved, across_by = plane.across_by / halved,
            count = down_by * across_by;
  if (count == 1) {
    for (int y = 0; y < plane.side; ++y) {
      for (int x = 0; x < plane.side; ++x)
        out[static_cast<int64_t>(y) * plane.columns + x] = block[8 * y + x];
    }
    return;
  }
  const int shift = log2_of(count);
  const int last_y = most(0, ceil_div(plane.whole_height, halved) - row * plane.side - 1);
  const int last_x = most(0, ceil_div(plane.whole_width, halved) - column * plane.side - 1);
  for (int y = 0; y < plane.block_rows; ++y) {
    for (int x = 0; x < plane.block_columns; ++x) {
      int sum = count / 2 - x % 2;  // means of means do not drift upwards
      for (int i = 0; i < count; ++i) {
        const int from_y = least(y * down_by + i / across_by, last_y);
        const int from_x = least(x * across_by + i % across_by, last_x);
        sum += block[8 * from_y + from_x];
      }
      out[static_cast<int64_t>(y) * plane.columns + x] = static_cast<uint8_t>(sum >> shift);
    }
  }
}

}  // namespace tarpeg::gather
