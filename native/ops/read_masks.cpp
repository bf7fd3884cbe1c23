#include <memory>

#include "base/picks.h"
#include "base/simd.h"
#include "ops/checks.h"
#include "ops/places.h"
#include "ops/share.h"
#include "png/inflate.h"
#include "png/png.h"

namespace tarpeg {
namespace {

// Whether the table has a class for each value.
bool has_all(const int32_t* table, const uint8_t* values, int count) noexcept {
  int x = 0;
  uint64_t known = 0;
  bool is_known = false;
  for (; x + 8 <= count; x += 8) {  // most values are equal to those before
    uint64_t word;
    std::memcpy(&word, values + x, sizeof word);
    if (is_known && word == known) continue;
    for (int i = 0; i < 8; ++i) {
      if (table[values[x + i]] < 0) return false;
    }
    known = word;
    is_known = true;
  }
  for (; x < count; ++x) {
    if (table[values[x]] < 0) return false;
  }
  return true;
}

struct Scratch {
  std::vector<uint8_t> memory;
  std::vector<int> rows, columns, firsts;
  Picks picks;
  Runs runs;
};

constexpr size_t kStep = 64;  // bytes that are written at a time
constexpr int kMoved = 32;    // the same, of a run that moved

// A row of a result, as far as it shows a box.
struct Line {
  const int* firsts;  // how many of its places are before each place in the box
  const int32_t* table;
  bool is_flipped;
  int across;
  // The end of each run in the row, before it is flipped, and in the row that was written before.
  int ends[Runs::kMost + 1], before[Runs::kMost + 1];

  uint8_t shown(uint8_t value) const noexcept {
    return table == nullptr ? value : static_cast<uint8_t>(table[value]);
  }
  // The first place of a part.
  int place(int begin, int end) const noexcept { return is_flipped ? across - end : begin; }
};

inline __attribute__((always_inline)) void set_ends_of(const Runs& runs, const Box& box,
                                                       Line* line) noexcept {
  const int* firsts = line->firsts;
  const int left = box.left, width = box.width;
  for (int r = 0; r < runs.count; ++r) {
    line->before[r] = line->ends[r];
    line->ends[r] = firsts[std::min(std::max(runs.ends[r] - left, 0), width)];
  }
}

// Writes a row from its left, and up to kStep - 1 bytes behind it.
inline __attribute__((always_inline)) void write_runs_of(const Runs& runs, const Line& line,
                                                         uint8_t* to) noexcept {
  for (int k = 0; k < runs.count; ++k) {
    const int r = line.is_flipped ? runs.count - 1 - k : k;
    const int begin = r > 0 ? line.ends[r - 1] : 0, end = line.ends[r];
    uint8_t* next = to + line.place(begin, end);
    for (const uint8_t* last = next + (end - begin); next < last; next += kStep) {
      std::memset(next, line.shown(runs.values[r]), kStep);
    }
  }
}

// Writes what is other in a row, whose runs have the values of those in the row before; writes again up to
// kMoved - 1 bytes behind it.
inline __attribute__((always_inline)) void move_runs_of(const Runs& runs, const Line& line,
                                                        uint8_t* to) noexcept {
  for (int r = 0, low = 0; r + 1 < runs.count; low = line.ends[r++]) {
    const int now = line.ends[r], old = line.before[r];
    const bool is_back = now < old;
    const int begin = is_back ? now : std::max(old, low),
              end = is_back ? std::min(old, line.ends[r + 1]) : now;
    const uint8_t value = line.shown(runs.values[r + is_back]);
    uint8_t* next = to + line.place(begin, end);
    int left = end - begin;
    do {
      for (int i = 0; i < kMoved; ++i) next[i] = i < left ? value : next[i];
      next += kMoved, left -= kMoved;
    } while (left > 0);
  }
}

TARPEG_VECTORISED(void, set_ends, (const Runs& runs, const Box& box, Line* line) noexcept, (runs, box, line))
TARPEG_VECTORISED(void, write_runs, (const Runs& runs, const Line& line, uint8_t* to) noexcept,
                  (runs, line, to))
TARPEG_VECTORISED(void, move_runs, (const Runs& runs, const Line& line, uint8_t* to) noexcept,
                  (runs, line, to))

static_assert(kPicksMargin <= static_cast<int>(kInflateMargin), "rows are followed by that margin");

struct Masks {
  const uint8_t* files;
  const int64_t* ends;
  const int32_t* boxes;
  const bool* flip;
  const int32_t* places;
  const int32_t* table;
  bool centres;
  int64_t max_pixels;
  uint8_t fill;
  uint8_t* out;
  int height, width;
  int32_t* found;

  void read(int64_t i) const {
    static thread_local std::unique_ptr<Scratch> kept;  // a pointer is read once, a variable at each use
    if (kept == nullptr) kept = std::make_unique<Scratch>();
    Scratch* scratch = kept.get();
    const int64_t begin = i > 0 ? ends[i - 1] : 0;
    BytePng png;
    Status status = png.parse(files + begin, static_cast<size_t>(ends[i] - begin), max_pixels);
    const Box box = {boxes[4 * i], boxes[4 * i + 1], boxes[4 * i + 2], boxes[4 * i + 3]};
    if (status == Status::kOk && !png.has(box)) status = Status::kCorrupt;
    if (status == Status::kOk) {
      status = Status::kCorrupt;
      if (png.open(&scratch->runs)) status = paint(i, box, scratch);
      if (status == Status::kCorrupt) status = decode(i, png, box, scratch);
    }
    found[3 * i] = static_cast<int32_t>(status);
    found[3 * i + 1] = png.height;
    found[3 * i + 2] = png.width;
    if (held_bytes(scratch->memory) > kMostKept) std::vector<uint8_t>().swap(scratch->memory);
  }

 private:
  Status decode(int64_t i, const BytePng& png, const Box& box, Scratch* scratch) const {
    BytePng::Rows rows = {};
    const Status status = png.decode(box, &scratch->memory, &rows);
    return status == Status::kOk ? sample(i, png, box, rows, scratch) : status;
  }

  Status sample(int64_t i, const BytePng& png, const Box& box, const BytePng::Rows& rows,
                Scratch* scratch) const {
    const size_t step = static_cast<size_t>(png.width) + 1;
    const auto row = [&](int y) { return rows.first_row + step * static_cast<size_t>(y - rows.first); };
    for (int y = box.top; table != nullptr && y < box.top + box.height; ++y) {
      if (!has_all(table, row(y) + box.left, box.width)) return Status::kUnsupported;
    }
    const size_t across = static_cast<size_t>(width);
    uint8_t* to = result(i);
    const Box place = place_of(i);
    fill_around(place, to);
    to += static_cast<size_t>(place.top) * across + static_cast<size_t>(place.left);
    fill_places({box.top, box.height, place.height, false}, centres, &scratch->rows);
    fill_places({box.left, box.width, place.width, flip != nullptr && flip[i]}, centres, &scratch->columns);
    scratch->picks.begin(scratch->columns);
    for (int y = 0; y < place.height; ++y, to += across) {
      const int line = scratch->rows[static_cast<size_t>(y)];
      if (y > 0 && line == scratch->rows[static_cast<size_t>(y) - 1]) {
        std::memcpy(to, to - across, static_cast<size_t>(place.width));
        continue;
      }
      scratch->picks.run(row(line), to);
      for (int x = 0; table != nullptr && x < place.width; ++x) to[x] = static_cast<uint8_t>(table[to[x]]);
    }
    return Status::kOk;
  }

  // The same from runs: kCorrupt if they are damaged.
  Status paint(int64_t i, const Box& box, Scratch* scratch) const {
    const size_t across = static_cast<size_t>(width);
    uint8_t* to = result(i);
    const Box place = place_of(i);
    fill_places({box.top, box.height, place.height, false}, centres, &scratch->rows);
    fill_firsts({0, box.width, place.width, false}, centres, &scratch->columns, &scratch->firsts);
    scratch->memory.resize(across + kStep);
    Line of_row = {scratch->firsts.data(), table, flip != nullptr && flip[i], place.width, {}, {}};
    Runs& runs = scratch->runs;
    if (!runs.go(box.top)) return Status::kCorrupt;
    if (table != nullptr && !has_classes(runs, box)) return Status::kUnsupported;
    std::memset(to, fill, static_cast<size_t>(place.top) * across);
    to += static_cast<size_t>(place.top) * across;
    for (int y = 0, line = box.top; y < place.height; ++y, to += across) {
      Runs::Change change = y == 0 ? Runs::kOther : Runs::kSame;
      const int last = scratch->rows[static_cast<size_t>(y)];
      if (table == nullptr && line < last) {
        if (!runs.go(last)) return Status::kCorrupt;
        change = std::max(change, runs.change);
        line = last;
      }
      for (; line < last; ++line) {  // classes of all rows are looked up
        if (!runs.next()) return Status::kCorrupt;
        change = std::max(change, runs.change);
        if (!has_classes(runs, box)) return Status::kUnsupported;
      }
      if (change == Runs::kSame) {
        std::memcpy(to, to - across, across);
        continue;
      }
      set_ends(runs, box, &of_row);
      // More bytes than those of the row are written, which behind the mask are another's.
      const bool is_last = static_cast<size_t>(place.height - 1 - y) * across < kStep;
      uint8_t* row = is_last ? scratch->memory.data() : to;
      if (change == Runs::kMoved) {
        std::memcpy(row, to - across, across);
        move_runs(runs, of_row, row + place.left);
      } else {
        std::memset(row, fill, static_cast<size_t>(place.left));
        write_runs(runs, of_row, row + place.left);
        const size_t end = static_cast<size_t>(place.left + place.width);
        std::memset(row + end, fill, across - end);
      }
      if (is_last) std::memcpy(to, row, across);
    }
    std::memset(to, fill, static_cast<size_t>(height - place.top - place.height) * across);
    for (int line = scratch->rows.back() + 1; table != nullptr && line < box.top + box.height; ++line) {
      if (!runs.next()) return Status::kCorrupt;
      if (!has_classes(runs, box)) return Status::kUnsupported;
    }
    return Status::kOk;
  }

  // Whether the table has a class for each value of a row of a box.
  bool has_classes(const Runs& runs, const Box& box) const noexcept {
    for (int r = 0, begin = 0; r < runs.count; begin = runs.ends[r++]) {
      const bool is_inside = runs.ends[r] > box.left && begin < box.left + box.width;
      if (is_inside && table[runs.values[r]] < 0) return false;
    }
    return true;
  }

  uint8_t* result(int64_t i) const noexcept {
    return out + static_cast<size_t>(i) * static_cast<size_t>(height) * static_cast<size_t>(width);
  }

  Box place_of(int64_t i) const noexcept {
    if (places == nullptr) return {0, 0, height, width};
    return {places[4 * i], places[4 * i + 1], places[4 * i + 2], places[4 * i + 3]};
  }

  void fill_around(const Box& place, uint8_t* to) const {
    const size_t across = static_cast<size_t>(width), left = static_cast<size_t>(place.left);
    const size_t end = left + static_cast<size_t>(place.width),
                 last = static_cast<size_t>(place.top) + static_cast<size_t>(place.height);
    std::memset(to, fill, static_cast<size_t>(place.top) * across);
    for (size_t y = static_cast<size_t>(place.top); y < last && end - left < across; ++y) {
      std::memset(to + y * across, fill, left);
      std::memset(to + y * across + end, fill, across - end);
    }
    std::memset(to + last * across, fill, (static_cast<size_t>(height) - last) * across);
  }
};

Tensor read_masks(Tensor files, Tensor ends, Tensor boxes, std::optional<Tensor> flip,
                  std::optional<Tensor> places, std::optional<Tensor> table, bool centres, int64_t fill,
                  int64_t max_pixels, Tensor out, int64_t threads) {
  check_bytes(files, "files", 0);
  const int64_t count = ends.numel();
  STD_TORCH_CHECK(
      ends.is_cpu() && ends.scalar_type() == ScalarType::Long && ends.dim() == 1 && ends.is_contiguous(),
      "ends must be a contiguous int64 tensor [B] on the CPU");
  STD_TORCH_CHECK(boxes.is_cpu() && boxes.scalar_type() == ScalarType::Int && boxes.dim() == 2 &&
                      boxes.size(0) == count && boxes.size(1) == 4 && boxes.is_contiguous(),
                  "boxes must be a contiguous int32 tensor [", count, ", 4] on the CPU");
  STD_TORCH_CHECK(!flip || (flip->is_cpu() && flip->scalar_type() == ScalarType::Bool &&
                            flip->numel() == count && flip->is_contiguous()),
                  "flip must be a contiguous bool tensor [", count, "] on the CPU");
  STD_TORCH_CHECK(!table || (table->is_cpu() && table->scalar_type() == ScalarType::Int &&
                             table->numel() == 256 && table->is_contiguous()),
                  "table must be a contiguous int32 tensor [256] on the CPU");
  STD_TORCH_CHECK(out.is_cpu() && out.scalar_type() == ScalarType::Byte && out.dim() == 3 &&
                      out.size(0) == count && out.is_contiguous(),
                  "out must be a contiguous uint8 tensor [", count, ", height, width] on the CPU");
  STD_TORCH_CHECK(fill >= 0 && fill <= 255, "fill must be from 0 to 255, got ", fill);
  const int height = check_size(out.size(1), "height"), width = check_size(out.size(2), "width");
  STD_TORCH_CHECK(
      !places || (places->is_cpu() && places->scalar_type() == ScalarType::Int && places->dim() == 2 &&
                  places->size(0) == count && places->size(1) == 4 && places->is_contiguous()),
      "places must be a contiguous int32 tensor [", count, ", 4] on the CPU");
  for (int64_t i = 0; places && i < count; ++i) {
    const int32_t* place = places->const_data_ptr<int32_t>() + 4 * i;
    STD_TORCH_CHECK(place[0] >= 0 && place[1] >= 0 && place[2] > 0 && place[3] > 0 &&
                        place[2] <= height - place[0] && place[3] <= width - place[1],
                    "places[", i, "] must be (top, left, height, width) within ", height, " x ", width);
  }
  const int64_t* last = ends.const_data_ptr<int64_t>();
  for (int64_t i = 0; i < count; ++i) {
    STD_TORCH_CHECK(last[i] >= (i > 0 ? last[i - 1] : 0) && last[i] <= files.numel(), "ends[", i,
                    "] must be from the end before to ", files.numel(), ", got ", last[i]);
  }
  Tensor found = new_images({count, 3}, {3, 1}, ScalarType::Int);
  const Masks masks = {files.const_data_ptr<uint8_t>(),
                       last,
                       boxes.const_data_ptr<int32_t>(),
                       flip ? flip->const_data_ptr<bool>() : nullptr,
                       places ? places->const_data_ptr<int32_t>() : nullptr,
                       table ? table->const_data_ptr<int32_t>() : nullptr,
                       centres,
                       max_pixels,
                       static_cast<uint8_t>(fill),
                       out.mutable_data_ptr<uint8_t>(),
                       height,
                       width,
                       found.mutable_data_ptr<int32_t>()};
  share_pieces(count, count, threads, [&](int64_t i) { masks.read(i); });
  return found;
}

}  // namespace
}  // namespace tarpeg

STABLE_TORCH_LIBRARY_IMPL(tarpeg, CPU, m) { m.impl("read_masks", TORCH_BOX(&tarpeg::read_masks)); }
