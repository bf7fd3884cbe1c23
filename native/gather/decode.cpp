#include "gather/decode.h"

#include "base/pages.h"
#include "gather/idct.h"
#include "gather/resample.h"
#include "gather/unpack.h"

namespace tarpeg::gather {
namespace {

bool have_pieces_blocks(const Gathered& all, const Plan& plan) {
  for (uint32_t i = 0; i < plan.pieces; ++i) {
    const int number = plan.first_tile + static_cast<int>(i % static_cast<uint32_t>(plan.tiles));
    if (!has_blocks(plan, number, all.piece(uint64_t{plan.image.first_piece} + i))) return false;
  }
  return true;
}

bool decode_segments(const Gathered& all, const Plan& plan, uint8_t* memory) {
  Code codes[kMostTables];
  const uint8_t* const tables = all.data + kUnit * plan.image.tables_at;
  for (int i = 0; i < plan.image.tables; ++i) {
    Table table;
    __builtin_memcpy(&table, tables + sizeof(Table) * static_cast<size_t>(i), sizeof table);
    __builtin_memcpy(codes[i].symbols, table.symbols, sizeof table.symbols);
    if (!codes[i].build(table.counts)) return false;
    for (int k = 0; k < 1 << Code::kLookahead; ++k) codes[i].fill_quick(k);
  }
  for (int i = 0; i < plan.components; ++i) {
    if (!codes[plan.image.dc_table[i]].is_known(true) || !codes[plan.image.ac_table[i]].is_known(false))
      return false;
  }
  for (int i = 0; i < static_cast<int>(plan.pieces); ++i) {
    if (!decode_segment(all, plan, i, codes, memory)) return false;
  }
  return true;
}

bool decode_tiles(const Gathered& all, const Plan& plan, uint8_t* memory) {
  BlockValues blocks[kMostTileBlocks];
  for (int i = 0; i < static_cast<int>(plan.pieces); ++i) {
    const Tile tile = tile_of(all, plan, i);
    if (!find_blocks(plan, tile, blocks)) return false;
    for (int k = 0; k < wanted_blocks(plan, tile); ++k) place_values(plan, tile, k, blocks[k], memory);
  }
  return true;
}

void transform_block(const Plan& plan, int component, int row, int column, uint8_t* memory) {
  const Plane& plane = plan.planes[component];
  const int16_t* const coefficients = block_at(plan, plane, row, column, memory);
  const bool is_halved = plane.side == 4;
  BlockState state;
  for (int i = 0; i < 8; ++i)
    load_eight(coefficients, plan.image.quantisers[component], kZigzag + 8 * i, is_halved, i, &state);
  for (int x = 0; x < 8; ++x) transform_column(is_halved, x, &state);
  for (int y = 0; y < 8; ++y) transform_row(is_halved, y, &state);
  for (int y = 0; y < 8; ++y) put_row(plane, row, column, y, state, memory);
}

void transform_blocks(const Plan& plan, uint8_t* memory) {
  for (int i = 0; i < plan.wanted; ++i) {
    const Plane& plane = plan.planes[i];
    for (int row = plane.first_row; row <= plane.last_row; ++row) {
      for (int column = plane.first_column; column <= plane.last_column; ++column)
        transform_block(plan, i, row, column, memory);
    }
  }
}

void find_weights(const AxisPlan& axis, const double* lanczos, uint8_t* memory) {
  const AxisView view(axis, memory);
  double peak = view.fill(axis, 0, lanczos);
  for (int i = 1; i < axis.out; ++i) peak = largest(peak, view.fill(axis, i, lanczos));
  view.start[axis.out] = precision_of(axis, peak);
  for (int i = 0; i < axis.out; ++i) view.round(i);
}

}  // namespace

Status decode(const Gathered& all, uint32_t index, Memory* memory, uint8_t* out) {
  const Image image = all.image(index);
  if (image.status != 0) return given_status(image);
  Plan plan{};
  plan.image = image;
  if (!plan_image(all, &plan) || !have_pieces_blocks(all, plan)) return Status::kCorrupt;
  if (memory->size() < plan.work / 8) memory->resize(plan.work / 8);
  uint8_t* const work = reinterpret_cast<uint8_t*>(memory->data());
  const bool are_tiles = image.kind == static_cast<uint8_t>(Kind::kPacked);
  if (!(are_tiles ? decode_tiles(all, plan, work) : decode_segments(all, plan, work)))
    return Status::kCorrupt;
  transform_blocks(plan, work);
  if (plan.way != Way::kPlanes) {
    for (int y = 0; y < plan.box.height; ++y) convert_line(plan, y, 0, 1, work);
  }
  if (plan.way != Way::kCopy) {
    for (int i = 0; i < plan.axis_count; ++i) find_weights(plan.axes[i], all.lanczos(), work);
    const int channels = plan.way == Way::kPlanes ? plan.wanted : plan.channels;
    for (int c = 0; c < channels; ++c) {
      for (int y = 0; y < line_count(plan); ++y) first_pass(plan, c, y, 0, 1, work);
    }
  }
  for (int y = 0; y < plan.out_rows; y += kRowsAtOnce) put_pixels(plan, y, 0, 1, work, out);
  if (held_bytes(*memory) > kMostKept) Memory().swap(*memory);
  return Status::kOk;
}

}  // namespace tarpeg::gather
