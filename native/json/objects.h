#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace tarpeg {

// What a field of an object has.
enum class Kind : int64_t {
  kMissing,
  kInteger,  // a: its value
  kNumber,   // a: place in the numbers
  kText,     // a, b: begin and end in the bytes; it has no escapes
  kNumbers,  // a list. a: place of the first number, b: how many, c: whether all are integers
  kLists,    // a list of such lists. a: place of the first number, b: place of the first length, c: how many
             // lists
  kRuns,  // {"size": [h, w], "counts": ...}, all integers. a: place of h; counts: b, c as of kNumbers (d = 0)
          // or of kText (d = 1)
  kTrue,
  kFalse,
  kOther,
};

struct Cell {
  Kind kind = Kind::kMissing;
  int64_t a = 0, b = 0, c = 0, d = 0;
};

// The wanted fields of the objects of JSON documents: a list of objects somewhere in each.
//
// Note [plain JSON]. What is wrong with a document is said by Python's parser, and what is rare is left to
// it: `scan` reads documents that this parser accepts too, to the same values, and gives up at all others,
// such as those with an escape in a name, NaN, or an object with a field twice.
class Objects {
 public:
  // path: names that lead to the list. image_id: name of a field of the document; "" for none.
  Objects(std::vector<std::string> path, std::vector<std::string> fields, std::string image_id)
      : path_(std::move(path)), fields_(std::move(fields)), image_id_(std::move(image_id)) {}

  // Adds the objects of one document; false if it is not plain. base: place of its first byte.
  bool scan(const uint8_t* data, size_t size, int64_t base);

  std::vector<int64_t> counts, image_ids;  // of each document
  std::vector<Cell> cells;                 // of each field of each object
  std::vector<double> numbers;
  std::vector<int64_t> lengths;

 private:
  struct Text {
    const uint8_t* data;
    size_t size;
    bool has_escapes;
  };

  void space() noexcept;
  bool is_next(char wanted) const noexcept { return at_ < end_ && *at_ == static_cast<uint8_t>(wanted); }
  bool take(char wanted) noexcept;
  bool word(std::string_view wanted) noexcept;
  bool text(Text* found) noexcept;
  bool number(Cell* cell, double* value);
  bool value(Cell* cell, int depth);
  bool list(Cell* cell, int depth);
  bool runs(Cell* cell, int depth);
  bool document(size_t level);
  bool objects();
  // Calls each(name), which reads the value, for the fields of an object.
  template <class Each>
  bool fields(const Each& each);

  const std::vector<std::string> path_, fields_;
  const std::string image_id_;
  const uint8_t *begin_ = nullptr, *at_ = nullptr, *end_ = nullptr;
  int64_t base_ = 0;
  std::vector<std::string_view> names_;  // of the objects that are open, one after another
};

}  // namespace tarpeg
