#pragma once

#include "gather/entropy.h"
#include "jpeg/idct_plain.h"

// Blocks of coefficients to samples of a plane: the arithmetic of jpeg/idct.cpp and jpeg/means.cpp, one row
// or column at a time.
namespace tarpeg::gather {

TARPEG_HD uint8_t level_of(int16_t number) {
  return static_cast<uint8_t>(within(static_cast<int16_t>(number + 128), 0, 255));
}

// A block in steps whose rows and columns do not depend on each other.
struct BlockState {
  alignas(16) int16_t numbers[64];
  int16_t gap[8];  // neighbours begin in other banks of a device's memory
  alignas(8) uint8_t samples[64];
  bool is_sloped[8];  // whether eight coefficients make columns differ from flat ones
};

// Step 1, of eight coefficients in zigzag order: these times their quantisers. `natural`: where each of the
// eight belongs.
TARPEG_HD void load_eight(const int16_t* coefficients, const uint16_t* quantisers, const uint8_t* natural,
                          bool is_halved, int eight, BlockState* state) {
  alignas(16) int16_t numbers[8];
  read_aligned<16>(coefficients + 8 * eight, &numbers);
  int sloped = 0;
  for (int i = 0; i < 8; ++i) {
    const int row = natural[i] / 8;
    sloped |= row == 0 || (is_halved && row == 4) ? 0 : numbers[i];
    state->numbers[natural[i]] = static_cast<int16_t>(numbers[i] * quantisers[8 * eight + i]);
  }
  state->is_sloped[eight] = sloped != 0;
}

// Step 2, of a column.
TARPEG_HD void transform_column(bool is_halved, int x, BlockState* state) {
  int16_t* const column = state->numbers + x;
  bool is_flat = true;
  for (int i = 0; i < 8; ++i) is_flat = is_flat && !state->is_sloped[i];
  if (is_flat) {  // Note [flat columns] in jpeg/idct.cpp
    const int16_t shifted = static_cast<int16_t>(column[0] * (1 << kPassBits));
    for (int y = 0; y < 8; ++y) column[8 * y] = shifted;
  } else if (is_halved) {
    halve<kHalvedShift>(column, column, 8);
  } else {
    transform<kFirstShift>(column, column, 8);
  }
}

// Step 3, of a row: its samples, the first four of four rows if `is_halved`.
TARPEG_HD void transform_row(bool is_halved, int y, BlockState* state) {
  if (is_halved && y >= 4) return;
  alignas(16) int16_t numbers[8];
  alignas(8) uint8_t levels[8];
  read_aligned<16>(state->numbers + 8 * y, &numbers);
  if (is_halved) {
    halve<kHalvedShift + 2 * kPassBits + 3>(numbers, numbers, 1);
  } else {
    transform<kSecondShift>(numbers, numbers, 1);
  }
  for (int x = 0; x < 8; ++x) levels[x] = level_of(numbers[x]);
  write_aligned<8>(levels, state->samples + 8 * y);
}

TARPEG_HD int log2_of(int power) {
  int log = 0;
  while (1 << log < power) ++log;
  return log;
}

// The coefficients of block (row, column) of a component.
TARPEG_HD const int16_t* block_at(const Plan& plan, const Plane& plane, int row, int column,
                                  const uint8_t* memory) {
  const int y = row % plane.down, x = column % plane.across, of_mcu = plane.down * plane.across;
  const int mcu_row = row / plane.down, mcu = column / plane.across;
  int begin = mcu, number = plane.first_unit + y * plane.across + x;
  if (plan.image.kind == static_cast<uint8_t>(Kind::kPacked)) {
    const int tile = mcu / plan.image.tile;
    begin = tile * plan.image.tile;
    number += (plan.tile_mcus(tile) - 1) * plane.first_unit + (mcu - begin) * of_mcu;
  }
  const int64_t before = int64_t{mcu_row - plan.first_row} * plan.row_mcus + begin - plan.first_mcu;
  return reinterpret_cast<const int16_t*>(memory + plan.coefficients) +
         64 * (before * plan.mcu_blocks + number);
}

// Step 4, of row y of block (row, column). If the image ends in it, its last samples are repeated where means
// are made: the rest is not part of the picture.
TARPEG_HD void put_row(const Plane& plane, int row, int column, int y, const BlockState& state,
                       uint8_t* memory) {
  if (y >= plane.block_rows) return;
  uint8_t* const out = memory + plane.samples +
                       static_cast<int64_t>(row * plane.block_rows + y - plane.top) * plane.columns +
                       column * plane.block_columns - plane.left;
  const int halved = 8 / plane.side;
  const int down_by = plane.down_by / halved, across_by = plane.across_by / halved,
            count = down_by * across_by;
  if (count == 1) {
    alignas(8) uint8_t samples[8];
    read_aligned<8>(state.samples + 8 * y, &samples);
    if (plane.side == 8) {
      write_aligned<8>(samples, out);
    } else {
      for (int x = 0; x < 4; ++x) out[x] = samples[x];
    }
    return;
  }
  const int shift = log2_of(count);
  const int last_y = most(0, ceil_div(plane.whole_height, halved) - row * plane.side - 1);
  const int last_x = most(0, ceil_div(plane.whole_width, halved) - column * plane.side - 1);
  for (int x = 0; x < plane.block_columns; ++x) {
    int sum = count / 2 - x % 2;  // means of means do not drift upwards
    for (int i = 0; i < count; ++i) {
      const int from_y = least(y * down_by + i / across_by, last_y);
      const int from_x = least(x * across_by + i % across_by, last_x);
      sum += state.samples[8 * from_y + from_x];
    }
    out[x] = static_cast<uint8_t>(sum >> shift);
  }
}

}  // namespace tarpeg::gather
