#include "gather/decode.h"

#include "base/pages.h"
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
    if (!codes[i].build(table)) return false;
    for (int k = 0; k < 1 << Code::kLookahead; ++k) codes[i].fill_quick(k);
  }
  for (int i = 0; i < plan.components; ++i) {
    if (!codes[plan.image.dc_table[i]].is_known(true) || !codes[plan.image.ac_table[i]].is_known(false))
      return false;
  }
  for (int i = 0; i < static_cast<int>(plan.pieces); ++i) {
    if (!decode_segment(all, plan, i, codes, kZigzag, memory)) return false;
  }
  return true;
}

bool unpack(const Gathered& all, const Plan& plan, int index, TileState* state, uint8_t* memory) {
  const Tile tile = tile_of(all, plan, index);
  if (tile.bytes.size < tile.head) return false;
  for (int i = 0; i < tile.blocks; ++i) find_length(tile, i, state);
  find_masks(tile, state);
  for (int i = 0; i < tile.blocks; ++i) read_mask(tile, i, state);
  find_values(tile, state);
  for (int i = 0; i < tile.blocks; ++i) count_escapes(tile, i, state);
  find_bytes(tile, state);
  for (int i = 0; i < tile.blocks; ++i) count_wides(tile, i, state);
  if (!find_wides(plan, tile, state)) return false;
  for (int i = 0; i < tile.blocks; ++i) place_values(plan, tile, i, kZigzag, state, memory);
  for (int i = 0; i < plan.wanted; ++i) sum_differences(plan, tile, i, state);
  for (int i = 0; i < tile.blocks; ++i) place_dc(plan, tile, i, *state, memory);
  return true;
}

bool decode_pieces(const Gathered& all, const Plan& plan, uint8_t* memory) {
  if (plan.image.kind == static_cast<uint8_t>(Kind::kSegments)) return decode_segments(all, plan, memory);
  TileState state;
  for (int i = 0; i < static_cast<int>(plan.pieces); ++i) {
    if (!unpack(all, plan, i, &state, memory)) return false;
  }
  return true;
}

void find_weights(const AxisPlan& axis, const double* lanczos, uint8_t* memory) {
  const AxisView view(axis, memory);
  double peak = view.fill(axis, 0, lanczos);
  for (int i = 1; i < axis.out; ++i) peak = largest(peak, view.fill(axis, i, lanczos));
  view.start[axis.out] = precision_of(axis, peak);
  for (int i = 0; i < axis.out; ++i) view.round(i);
}

// Of an image that was not gathered.
Status given_status(const Image& image) {
  const bool is_known = image.status > 0 && image.status <= static_cast<int32_t>(Status::kNotGathered);
  return is_known ? static_cast<Status>(image.status) : Status::kCorrupt;
}

}  // namespace

Status decode(const Gathered& all, uint32_t index, Memory* memory, uint8_t* out) {
  const Image image = all.image(index);
  if (image.status != 0) return given_status(image);
  Plan plan;
  if (!plan_image(all, image, &plan) || !have_pieces_blocks(all, plan)) return Status::kCorrupt;
  if (memory->size() < plan.work / 8) memory->resize(plan.work / 8);
  uint8_t* const work = reinterpret_cast<uint8_t*>(memory->data());
  if (!decode_pieces(all, plan, work)) return Status::kCorrupt;
  for (int i = 0; i < plan.wanted; ++i) {
    for (int k = 0; k < plan.planes[i].block_count(); ++k) transform_block(plan, i, k, work);
  }
  if (plan.way != Way::kPlanes) {
    const int64_t pixels = static_cast<int64_t>(plan.box.height) * plan.box.width;
    for (int64_t i = 0; i < pixels; ++i) convert_pixel(plan, i, work);
  }
  if (plan.way != Way::kCopy) {
    for (int i = 0; i < plan.axis_count; ++i) find_weights(plan.axes[i], all.lanczos(), work);
    const int channels = plan.way == Way::kPlanes ? plan.wanted : plan.channels;
    for (int c = 0; c < channels; ++c) {
      const int64_t count = between_count(plan, c);
      for (int64_t i = 0; i < count; ++i) first_pass(plan, c, i, work);
    }
  }
  for (int y = 0; y < plan.out_rows; ++y) {
    for (int x = 0; x < plan.out_columns; ++x) put_pixel(plan, y, x, work, out);
  }
  if (held_bytes(*memory) > kMostKept) Memory().swap(*memory);
  return Status::kOk;
}

}  // namespace tarpeg::gather
