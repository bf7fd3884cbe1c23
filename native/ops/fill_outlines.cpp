#include <cstdlib>
#include <utility>

#include "ops/checks.h"
#include "ops/places.h"
#include "ops/share.h"

namespace tarpeg {
namespace {

constexpr double kFar = 1e7;    // pixels
constexpr double kScale = 5.0;  // pycocotools traces polygons in fifths of pixels
constexpr int64_t kCentre = 2;  // the fifth that is the centre of pixel 0
constexpr int64_t kFifths = 5;

struct Point {
  int64_t x, y;
};

Point corner_of(const double* point) noexcept {
  return {static_cast<int64_t>(kScale * point[0] + 0.5), static_cast<int64_t>(kScale * point[1] + 0.5)};
}

// Rows of a plane, and bytes of these, that may have bits.
struct Bounds {
  int top = INT32_MAX, bottom = 0;
  size_t first = SIZE_MAX, last = 0;

  void add(const Bounds& other) noexcept {
    top = std::min(top, other.top), bottom = std::max(bottom, other.bottom);
    first = std::min(first, other.first), last = std::max(last, other.last);
  }
};

// Note [fill]. A toggle is a pixel at which a mask begins or ends, in the columns of the image one after
// another. Each sets a bit of the result, at the first row that shows that pixel or a later one; a mask is
// the exclusive or of all rows up to each, computed for all columns at once.
class Canvas {
 public:
  void begin(const int32_t* size, const Box& box, const Box& place, bool flip, bool centres, int height,
             int width) {
    image_height_ = size[0], image_width_ = size[1];
    box_ = box, place_ = place, flip_ = flip, height_ = height, width_ = width;
    stride_ = (static_cast<size_t>(width) + 7) / 8;
    fill_firsts({0, box.height, place.height, false}, centres, &places_, &first_row_);
    fill_firsts({0, box.width, place.width, false}, centres, &places_, &first_column_);
    starts_.assign(static_cast<size_t>(box.width) + 1, 0);
    plane_.assign(stride_ * static_cast<size_t>(place.height), 0);
    mask_.assign(plane_.size(), 0);
  }

  // Writes the mask of an object, a bit per pixel, and returns the number of its pixels.
  // each(part) adds the toggles of a part; the mask is the union of all.
  template <class Each>
  int64_t fill(int64_t parts, const Each& each, uint8_t* out) {
    std::memset(out, 0, (static_cast<size_t>(height_) * static_cast<size_t>(width_) + 7) / 8);
    int64_t found = 0;
    Bounds all;
    for (int64_t part = 0; part < parts; ++part) {
      bounds_ = {};
      each(part);
      spread();
      if (parts == 1) {
        found = write(plane_.data(), bounds_, out);
        clear(&plane_, bounds_);
      } else {
        for (int y = bounds_.top; y < bounds_.bottom; ++y) {
          for (size_t i = at(y, bounds_.first), end = at(y, bounds_.last); i < end; ++i)
            mask_[i] |= plane_[i];
        }
        clear(&plane_, bounds_);
        all.add(bounds_);
      }
    }
    if (parts > 1) {
      found = write(mask_.data(), all, out);
      clear(&mask_, all);
    }
    return found;
  }

  void add_runs(const int64_t* toggles, int64_t count) noexcept {
    int64_t column = 0, begin = 0;
    for (int64_t i = 0; i < count; ++i) {
      if (toggles[i] - begin >= image_height_) {
        column = toggles[i] / image_height_;
        begin = column * image_height_;
      }
      add(column, toggles[i] - begin);
    }
  }

  // In the arithmetic of pycocotools.
  void add_polygon(const double* points, int64_t count) noexcept {
    Point from = corner_of(points + 2 * (count - 1));
    for (int64_t i = 0; i < count; ++i) {
      const Point to = corner_of(points + 2 * i);
      add_edge(from, to);
      from = to;
    }
  }

 private:
  void add_edge(Point from, Point to) noexcept {
    const int64_t across = std::abs(to.x - from.x), down = std::abs(to.y - from.y);
    const bool is_wide = across >= down;
    if (is_wide ? from.x > to.x : from.y > to.y) std::swap(from, to);
    const int64_t steps = is_wide ? across : down;
    const int64_t low = std::min(from.x, to.x), high = std::max(from.x, to.x);
    // Columns whose centre is crossed.
    const int64_t first = low <= kCentre ? 0 : (low - kCentre + kFifths - 1) / kFifths;
    if (kFifths * first + kCentre >= high) return;
    const double slope =
        static_cast<double>(is_wide ? to.y - from.y : to.x - from.x) / static_cast<double>(steps);
    if (is_wide) {
      const auto y_at = [&](int64_t step) {
        return static_cast<int64_t>(static_cast<double>(from.y) + slope * static_cast<double>(step) + 0.5);
      };
      for (int64_t column = first, x = kFifths * first + kCentre; x < high; ++column, x += kFifths) {
        if (column >= image_width_) return;
        add_crossing(column, std::min(y_at(x - from.x), y_at(x + 1 - from.x)));
      }
      return;
    }
    // Whether a step is behind the crossing from x to x + 1, or back.
    const auto is_behind = [&](int64_t step, int64_t x) {
      const auto found =
          static_cast<int64_t>(static_cast<double>(from.x) + slope * static_cast<double>(step) + 0.5);
      return slope > 0 ? found > x : found <= x;
    };
    for (int64_t column = first, x = kFifths * first + kCentre; x < high; ++column, x += kFifths) {
      if (column >= image_width_) return;
      const double guess = (static_cast<double>(x - from.x) + 0.5) / slope;
      int64_t step = std::min(std::max<int64_t>(static_cast<int64_t>(guess), 1), steps);
      while (step > 1 && is_behind(step - 1, x)) --step;
      while (step < steps && !is_behind(step, x)) ++step;
      add_crossing(column, from.y + step - 1);
    }
  }

  // y: the fifth of a pixel above which an outline crosses the centre of a column.
  void add_crossing(int64_t column, int64_t y) noexcept {
    const int64_t row = y <= kCentre ? 0 : (y - kCentre + kFifths - 1) / kFifths;
    if (row >= image_height_) {
      add(column + 1, 0);
    } else {
      add(column, row);
    }
  }

  void add(int64_t column, int64_t row) noexcept {
    const int64_t x = column - box_.left, y = row - box_.top;
    if (x >= box_.width) return;
    has_starts_ = true;
    starts_[static_cast<size_t>(std::max<int64_t>(x + 1, 0))] ^= 1;
    if (x < 0) return;
    const int64_t first = std::min<int64_t>(std::max<int64_t>(y, 0), box_.height);
    flip_bits(first_row_[static_cast<size_t>(first)], static_cast<size_t>(x));
  }

  // In the columns that show column x of the box.
  void flip_bits(int row, size_t x) noexcept {
    bounds_.bottom = std::max(bounds_.bottom, std::min(row + 1, place_.height));
    int begin = first_column_[x], end = first_column_[x + 1];
    if (row >= place_.height || begin == end) return;
    if (flip_) {
      std::swap(begin, end);
      begin = place_.width - begin, end = place_.width - end;
    }
    begin += place_.left, end += place_.left;
    bounds_.top = std::min(bounds_.top, row);
    bounds_.first = std::min(bounds_.first, static_cast<size_t>(begin) / 8);
    bounds_.last = std::max(bounds_.last, (static_cast<size_t>(end) + 7) / 8);
    uint8_t* to = plane_.data() + stride_ * static_cast<size_t>(row);
    for (int i = begin; i < end; ++i) to[i >> 3] ^= static_cast<uint8_t>(0x80 >> (i & 7));
  }

  void spread() noexcept {
    if (has_starts_) {
      uint8_t state = 0;
      for (size_t x = 0; x <= static_cast<size_t>(box_.width); ++x) {
        state ^= starts_[x];
        if (state == 0) continue;
        if (x < static_cast<size_t>(box_.width)) flip_bits(0, x);
        bounds_.bottom = place_.height;  // the column before has no toggle at its end
      }
      std::fill(starts_.begin(), starts_.end(), uint8_t{0});
      has_starts_ = false;
    }
    const Bounds bounds = bounds_;  // a local one, as bytes that are written may be members
    for (int y = bounds.top; y < bounds.bottom - 1; ++y) {
      const uint8_t* above = plane_.data() + at(y, 0);
      uint8_t* row = plane_.data() + at(y + 1, 0);
      for (size_t x = bounds.first; x < bounds.last; ++x) row[x] ^= above[x];
    }
  }

  size_t at(int row, size_t byte) const noexcept { return stride_ * static_cast<size_t>(row) + byte; }

  void clear(std::vector<uint8_t>* plane, const Bounds& bounds) const noexcept {
    for (int y = bounds.top; y < bounds.bottom; ++y) {
      std::memset(plane->data() + at(y, bounds.first), 0, bounds.last - bounds.first);
    }
  }

  // Returns the number of bits.
  int64_t write(const uint8_t* plane, const Bounds& bounds, uint8_t* out) const noexcept {
    int64_t found = 0;
    for (int y = bounds.top; y < bounds.bottom; ++y) {
      const uint8_t *from = plane + at(y, bounds.first), *end = plane + at(y, bounds.last);
      const size_t bit = static_cast<size_t>(place_.top + y) * static_cast<size_t>(width_) + 8 * bounds.first;
      uint8_t* to = out + bit / 8;
      const unsigned shift = bit % 8;
      found += count(from, end);
      if (shift == 0 && width_ % 8 == 0) {
        std::memcpy(to, from, static_cast<size_t>(end - from));
        continue;
      }
      for (; from < end; ++from, ++to) {
        *to = static_cast<uint8_t>(*to | *from >> shift);
        const auto rest = static_cast<uint8_t>(*from << (8 - shift));
        if (rest != 0) to[1] = rest;  // otherwise it may be behind the mask
      }
    }
    return found;
  }

  static int64_t count(const uint8_t* from, const uint8_t* end) noexcept {
    uint64_t found = 0;
    while (from < end) {
      uint64_t word = 0;
      const size_t size = std::min<size_t>(static_cast<size_t>(end - from), sizeof word);
      std::memcpy(&word, from, size);
      from += size;
      word -= word >> 1 & 0x5555555555555555u;
      word = (word & 0x3333333333333333u) + (word >> 2 & 0x3333333333333333u);
      word = (word + (word >> 4)) & 0x0F0F0F0F0F0F0F0Fu;
      found += word * 0x0101010101010101u >> 56;
    }
    return static_cast<int64_t>(found);
  }

  int64_t image_height_ = 0, image_width_ = 0;
  Box box_ = {}, place_ = {};
  bool flip_ = false, has_starts_ = false;
  int height_ = 0, width_ = 0;
  size_t stride_ = 0;  // bytes of a row of the planes
  Bounds bounds_;      // of the part
  std::vector<int> places_, first_row_, first_column_;
  std::vector<uint8_t> starts_, plane_, mask_;  // starts: whether the state changes before a column
};

struct Start {
  int64_t object, part, point, toggle;
};

void check_longs(const Tensor& tensor, const char* name, int64_t columns) {
  const bool is_right = columns > 0 ? tensor.dim() == 2 && tensor.size(1) == columns : tensor.dim() == 1;
  STD_TORCH_CHECK(
      tensor.is_cpu() && tensor.scalar_type() == ScalarType::Long && is_right && tensor.is_contiguous(), name,
      " must be a contiguous int64 tensor on the CPU");
}

void check_ints(const Tensor& tensor, const char* name, int64_t rows, int64_t columns) {
  STD_TORCH_CHECK(tensor.is_cpu() && tensor.scalar_type() == ScalarType::Int && tensor.dim() == 2 &&
                      tensor.size(0) == rows && tensor.size(1) == columns && tensor.is_contiguous(),
                  name, " must be a contiguous int32 tensor [", rows, ", ", columns, "] on the CPU");
}

Tensor fill_outlines(Tensor points, Tensor toggles, Tensor parts, Tensor objects, Tensor counts, Tensor sizes,
                     Tensor boxes, Tensor flips, Tensor places, bool centres, int64_t height, int64_t width,
                     Tensor out, int64_t threads) {
  STD_TORCH_CHECK(points.is_cpu() && points.scalar_type() == ScalarType::Double && points.dim() == 2 &&
                      points.size(1) == 2 && points.is_contiguous(),
                  "points must be a contiguous float64 tensor [n, 2] on the CPU");
  check_longs(toggles, "toggles", 0);
  check_longs(parts, "parts", 2);
  check_longs(objects, "objects", 0);
  check_longs(counts, "counts", 0);
  const int64_t images = counts.numel();
  check_ints(sizes, "sizes", images, 2);
  check_ints(boxes, "boxes", images, 4);
  check_ints(places, "places", images, 4);
  STD_TORCH_CHECK(flips.is_cpu() && flips.scalar_type() == ScalarType::Bool && flips.numel() == images &&
                      flips.is_contiguous(),
                  "flips must be a contiguous bool tensor [", images, "] on the CPU");
  const int lines = check_size(height, "height"), across = check_size(width, "width");
  const int64_t bytes = (height * width + 7) / 8;
  STD_TORCH_CHECK(out.is_cpu() && out.scalar_type() == ScalarType::Byte && out.dim() == 2 &&
                      out.size(0) == objects.numel() && out.size(1) == bytes && out.is_contiguous(),
                  "out must be a contiguous uint8 tensor [", objects.numel(), ", ", bytes, "] on the CPU");
  const auto* point = points.const_data_ptr<double>();
  for (int64_t i = 0; i < points.numel(); ++i) {
    STD_TORCH_CHECK(point[i] >= -kFar && point[i] <= kFar, "points must be from -1e7 to 1e7, got ", point[i]);
  }
  const int64_t* toggle = toggles.const_data_ptr<int64_t>();
  const int64_t *lengths = parts.const_data_ptr<int64_t>(), *of_objects = objects.const_data_ptr<int64_t>();
  const int64_t* of_images = counts.const_data_ptr<int64_t>();
  const int32_t *size = sizes.const_data_ptr<int32_t>(), *box = boxes.const_data_ptr<int32_t>();
  const int32_t* place = places.const_data_ptr<int32_t>();
  std::vector<Start> starts;
  Start next = {0, 0, 0, 0};
  for (int64_t i = 0; i < images; ++i, size += 2, box += 4, place += 4) {
    starts.push_back(next);
    STD_TORCH_CHECK(size[0] > 0 && size[1] > 0 && box[0] >= 0 && box[1] >= 0 && box[2] > 0 && box[3] > 0 &&
                        box[2] <= size[0] - box[0] && box[3] <= size[1] - box[1],
                    "boxes[", i, "] must be (top, left, height, width) within sizes[", i, "]");
    STD_TORCH_CHECK(place[0] >= 0 && place[1] >= 0 && place[2] > 0 && place[3] > 0 &&
                        place[2] <= lines - place[0] && place[3] <= across - place[1],
                    "places[", i, "] must be (top, left, height, width) within ", height, " x ", width);
    STD_TORCH_CHECK(of_images[i] >= 0 && of_images[i] <= objects.numel() - next.object, "counts[", i,
                    "] must be a number of the objects");
    for (const int64_t end = next.object + of_images[i]; next.object < end; ++next.object) {
      const int64_t own = of_objects[next.object];
      STD_TORCH_CHECK(own >= 0 && own <= parts.size(0) - next.part, "objects[", next.object,
                      "] must be a number of the parts");
      for (const int64_t last = next.part + own; next.part < last; ++next.part) {
        const int64_t* length = lengths + 2 * next.part;
        STD_TORCH_CHECK(length[0] >= 0 && length[0] <= points.size(0) - next.point && length[1] >= 0 &&
                            length[1] <= toggles.numel() - next.toggle,
                        "parts[", next.part, "] must be numbers of the points and toggles");
        next.point += length[0];
        next.toggle += length[1];
      }
    }
  }
  STD_TORCH_CHECK(next.object == objects.numel(), "counts must be of all ", objects.numel(), " objects");
  for (int64_t i = 0; i < toggles.numel(); ++i) {
    STD_TORCH_CHECK(toggle[i] >= 0, "toggles must be at least 0, got ", toggle[i]);
  }
  size = sizes.const_data_ptr<int32_t>(), box = boxes.const_data_ptr<int32_t>();
  place = places.const_data_ptr<int32_t>();
  const bool* flip = flips.const_data_ptr<bool>();
  uint8_t* to = out.mutable_data_ptr<uint8_t>();
  Tensor pixels = new_images({objects.numel()}, {1}, ScalarType::Int);
  auto* found = pixels.mutable_data_ptr<int32_t>();
  share_pieces(images, images, threads, [&](int64_t i) {
    static thread_local Canvas own_canvas;
    Canvas& canvas = own_canvas;  // looked up once
    Start at = starts[static_cast<size_t>(i)];
    if (of_images[i] == 0) return;
    const int32_t *own = box + 4 * i, *part = place + 4 * i;
    canvas.begin(size + 2 * i, {own[0], own[1], own[2], own[3]}, {part[0], part[1], part[2], part[3]},
                 flip[i], centres, lines, across);
    for (const int64_t end = at.object + of_images[i]; at.object < end; ++at.object) {
      const auto add = [&](int64_t) {
        const int64_t* length = lengths + 2 * at.part++;
        if (length[0] > 0) canvas.add_polygon(point + 2 * at.point, length[0]);
        canvas.add_runs(toggle + at.toggle, length[1]);
        at.point += length[0];
        at.toggle += length[1];
      };
      const int64_t count = canvas.fill(of_objects[at.object], add, to + at.object * bytes);
      found[at.object] = static_cast<int32_t>(std::min<int64_t>(count, INT32_MAX));
    }
  });
  return pixels;
}

}  // namespace
}  // namespace tarpeg

STABLE_TORCH_LIBRARY_IMPL(tarpeg, CPU, m) { m.impl("fill_outlines", TORCH_BOX(&tarpeg::fill_outlines)); }
