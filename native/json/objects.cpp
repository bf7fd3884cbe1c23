#include "json/objects.h"

#include <locale.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>
#if defined(__APPLE__)
#include <xlocale.h>
#endif

#include "json/numbers.h"

namespace tarpeg {
namespace {

constexpr int kDeepest = 64;
constexpr size_t kMostNames = 64;  // fields of an object: their names are compared in pairs
constexpr size_t kMostObjects = 100000;
constexpr int kLongestNumber = 64;  // characters
constexpr int kExactDigits = 15;    // integers of so many digits are exact as double
constexpr int kExactPower = 22;     // and so are powers of ten up to this

constexpr double kPowers[kExactPower + 1] = {1e0,  1e1,  1e2,  1e3,  1e4,  1e5,  1e6,  1e7,
                                             1e8,  1e9,  1e10, 1e11, 1e12, 1e13, 1e14, 1e15,
                                             1e16, 1e17, 1e18, 1e19, 1e20, 1e21, 1e22};

bool is_digit(uint8_t c) noexcept { return c >= '0' && c <= '9'; }

bool is_hex(uint8_t c) noexcept { return is_digit(c) || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F'); }

// Length of the UTF-8 sequence of several bytes at `at`; 0 if it is none. Surrogates are none.
size_t sequence(const uint8_t* at, const uint8_t* end) noexcept {
  const uint8_t first = at[0];
  const size_t length = first >= 0xF0 ? 4 : first >= 0xE0 ? 3 : 2;
  if (first < 0xC2 || first > 0xF4 || static_cast<size_t>(end - at) < length) return 0;
  for (size_t i = 1; i < length; ++i) {
    if ((at[i] & 0xC0) != 0x80) return 0;
  }
  const bool is_long = (first == 0xE0 && at[1] < 0xA0) || (first == 0xF0 && at[1] < 0x90);
  const bool is_out = (first == 0xED && at[1] > 0x9F) || (first == 0xF4 && at[1] > 0x8F);
  return is_long || is_out ? 0 : length;
}

// Rounded correctly, as Python does it, whatever the locale of the process.
double rounded(const char* number) noexcept {
  static const locale_t plain = newlocale(LC_ALL_MASK, "C", nullptr);
  return plain == nullptr ? std::numeric_limits<double>::quiet_NaN() : strtod_l(number, nullptr, plain);
}

// Returns the end of the number at `at`; nullptr if there is none.
const uint8_t* end_of_number(const uint8_t* at, const uint8_t* end) noexcept {
  const uint8_t* begin = at;
  const auto pass_digits = [&] {
    const uint8_t* first = at;
    while (at < end && is_digit(*at)) ++at;
    return at > first;
  };
  if (at < end && *at == '-') ++at;
  if (at < end && *at == '0') {
    ++at;
    if (at < end && is_digit(*at)) return nullptr;
  } else if (!pass_digits()) {
    return nullptr;
  }
  if (at < end && *at == '.') {
    ++at;
    if (!pass_digits()) return nullptr;
  }
  if (at < end && (*at == 'e' || *at == 'E')) {
    ++at;
    if (at < end && (*at == '-' || *at == '+')) ++at;
    if (!pass_digits()) return nullptr;
  }
  return at - begin > kLongestNumber ? nullptr : at;
}

// Bytes of a text that stand for themselves.
constexpr std::array<bool, 256> kPlain = [] {
  std::array<bool, 256> plain = {};
  for (size_t c = 0x20; c < 0x80; ++c) plain[c] = c != '"' && c != '\\';
  return plain;
}();

}  // namespace

void Objects::space() noexcept {
  while (at_ < end_ && (*at_ == ' ' || *at_ == '\n' || *at_ == '\r' || *at_ == '\t')) ++at_;
}

bool Objects::take(char wanted) noexcept {
  if (!is_next(wanted)) return false;
  ++at_;
  return true;
}

bool Objects::word(std::string_view wanted) noexcept {
  if (static_cast<size_t>(end_ - at_) < wanted.size()) return false;
  if (std::memcmp(at_, wanted.data(), wanted.size()) != 0) return false;
  at_ += wanted.size();
  return true;
}

bool Objects::text(Text* found) noexcept {
  if (!take('"')) return false;
  const uint8_t* begin = at_;
  bool has_escapes = false;
  while (true) {
    while (at_ < end_ && kPlain[*at_]) ++at_;
    if (at_ == end_ || *at_ < 0x20) return false;
    if (*at_ == '"') break;
    if (*at_ != '\\') {
      const size_t length = sequence(at_, end_);
      if (length == 0) return false;
      at_ += length;
      continue;
    }
    has_escapes = true;
    if (end_ - at_ < 2) return false;
    const uint8_t kind = at_[1];
    at_ += 2;
    if (kind == 'u') {
      if (end_ - at_ < 4 || !std::all_of(at_, at_ + 4, is_hex)) return false;
      at_ += 4;
    } else if (std::memchr("\"\\/bfnrt", kind, 8) == nullptr) {
      return false;
    }
  }
  *found = {begin, static_cast<size_t>(at_ - begin), has_escapes};
  ++at_;
  return true;
}

// Reads a number to `value`, if there is one, and whether it is an integer to `cell`.
bool Objects::number(Cell* cell, double* value) {
  const uint8_t* begin = at_;
  if (cell == nullptr) {
    const uint8_t* end = end_of_number(at_, end_);
    if (end != nullptr) at_ = end;
    return end != nullptr;
  }
  bool is_negative = take('-');
  uint64_t digits = 0;
  int count = 0, power = 0;
  const auto digit = [&] {
    digits = digits * 10 + static_cast<uint64_t>(*at_++ - '0');
    count += count > 0 || digits > 0;
  };
  if (at_ == end_ || !is_digit(*at_)) return false;
  if (*at_ == '0') {
    ++at_;
    if (at_ < end_ && is_digit(*at_)) return false;
  }
  while (at_ < end_ && is_digit(*at_)) digit();
  bool is_integer = true;
  if (take('.')) {
    is_integer = false;
    const uint8_t* first = at_;
    while (at_ < end_ && is_digit(*at_)) digit();
    if (at_ == first) return false;
    power = -static_cast<int>(std::min<std::ptrdiff_t>(at_ - first, 1000));
  }
  if (at_ < end_ && (*at_ == 'e' || *at_ == 'E')) {
    is_integer = false;
    ++at_;
    const bool is_below = take('-');
    if (!is_below) take('+');
    int exponent = 0;
    const uint8_t* first = at_;
    while (at_ < end_ && is_digit(*at_)) exponent = std::min(exponent * 10 + (*at_++ - '0'), 100000);
    if (at_ == first) return false;
    power += is_below ? -exponent : exponent;
  }
  if (at_ - begin > kLongestNumber) return false;
  if (count <= kExactDigits && std::abs(power) <= kExactPower) {
    const double whole = static_cast<double>(digits);
    if (is_integer && digits == 0) is_negative = false;  // Python's 0 has no sign
    const double size = power < 0 ? whole / kPowers[-power] : whole * kPowers[power];
    *value = is_negative ? -size : size;
  } else {
    char copy[kLongestNumber + 1] = {};
    std::memcpy(copy, begin, static_cast<size_t>(at_ - begin));
    *value = rounded(copy);
    if (!std::isfinite(*value)) return false;
  }
  *cell = {is_integer ? Kind::kInteger : Kind::kNumber};
  if (is_integer) {
    if (count > 18) return false;
    cell->a = is_negative ? -static_cast<int64_t>(digits) : static_cast<int64_t>(digits);
  }
  return true;
}

// Reads a value; `cell`, if there is one, gets what it is.
bool Objects::value(Cell* cell, int depth) {
  if (depth > kDeepest || at_ == end_) return false;
  if (cell != nullptr) cell->kind = Kind::kOther;
  switch (*at_) {
    case '{':
      return cell != nullptr ? runs(cell, depth)
                             : fields([&](const Text&) { return value(nullptr, depth + 1); });
    case '[':
      return list(cell, depth);
    case '"': {
      Text found;
      if (!text(&found)) return false;
      if (cell != nullptr && !found.has_escapes) {
        const int64_t place = base_ + (found.data - begin_);
        *cell = {Kind::kText, place, place + static_cast<int64_t>(found.size)};
      }
      return true;
    }
    case 't':
      if (cell != nullptr) cell->kind = Kind::kTrue;
      return word("true");
    case 'f':
      if (cell != nullptr) cell->kind = Kind::kFalse;
      return word("false");
    case 'n':
      return word("null");
    default: {
      double found = 0.0;
      if (!number(cell, &found)) return false;
      if (cell != nullptr && cell->kind == Kind::kNumber) {
        cell->a = static_cast<int64_t>(numbers.size());
        numbers.push_back(found);
      }
      return true;
    }
  }
}

bool Objects::list(Cell* cell, int depth) {
  if (depth > kDeepest || !take('[')) return false;
  if (cell != nullptr) *cell = {Kind::kNumbers, static_cast<int64_t>(numbers.size()), 0, 1};
  space();
  if (take(']')) return true;
  const uint8_t* last = cell == nullptr ? pass_numbers(at_, end_) : nullptr;
  if (last != nullptr) {
    at_ = last + 1;
    return true;
  }
  for (bool is_first = true;; is_first = false) {
    const bool is_number = at_ < end_ && (*at_ == '-' || is_digit(*at_));
    if (cell != nullptr && cell->kind == Kind::kNumbers && is_number) {
      Cell one;
      double found = 0.0;
      if (!number(&one, &found)) return false;
      numbers.push_back(found);
      ++cell->b;
      cell->c &= one.kind == Kind::kInteger;
    } else if (cell != nullptr && is_next('[') && (is_first || cell->kind == Kind::kLists)) {
      if (is_first) {
        *cell = {Kind::kLists, static_cast<int64_t>(numbers.size()), static_cast<int64_t>(lengths.size())};
      }
      Cell inner;
      if (!list(&inner, depth + 1)) return false;
      lengths.push_back(inner.b);
      ++cell->c;
      if (inner.kind != Kind::kNumbers) cell->kind = Kind::kOther;
    } else {
      if (cell != nullptr) cell->kind = Kind::kOther;
      const bool is_read = is_number ? number(nullptr, nullptr) : value(nullptr, depth + 1);
      if (!is_read) return false;
    }
    space();
    if (take(']')) return true;
    if (!take(',')) return false;
    space();
  }
}

bool Objects::runs(Cell* cell, int depth) {
  Cell size, counts_of;
  const bool is_read = fields([&](const Text& name) {
    const std::string_view text(reinterpret_cast<const char*>(name.data), name.size);
    Cell* own = text == "size" ? &size : text == "counts" ? &counts_of : nullptr;
    return value(own, depth + 1);
  });
  const bool is_size = size.kind == Kind::kNumbers && size.b == 2 && size.c != 0;
  const bool is_text = counts_of.kind == Kind::kText;
  if (is_size && (is_text || (counts_of.kind == Kind::kNumbers && counts_of.c != 0))) {
    *cell = {Kind::kRuns, size.a, counts_of.a, counts_of.b, is_text};
  }
  return is_read;
}

template <class Each>
bool Objects::fields(const Each& each) {
  if (!take('{')) return false;
  space();
  if (take('}')) return true;
  const size_t first = names_.size();
  while (true) {
    Text name;
    if (!text(&name) || name.has_escapes || names_.size() - first == kMostNames) return false;
    const std::string_view own(reinterpret_cast<const char*>(name.data), name.size);
    if (std::find(names_.begin() + static_cast<std::ptrdiff_t>(first), names_.end(), own) != names_.end())
      return false;
    names_.push_back(own);
    space();
    if (!take(':')) return false;
    space();
    if (!each(name)) return false;
    space();
    if (take('}')) break;
    if (!take(',')) return false;
    space();
  }
  names_.resize(first);
  return true;
}

bool Objects::objects() {
  if (!take('[')) return false;
  space();
  if (take(']')) return true;
  while (true) {
    if (static_cast<size_t>(counts.back()) == kMostObjects) return false;
    ++counts.back();
    const size_t first = cells.size();
    cells.resize(first + fields_.size());
    const bool is_object = fields([&](const Text& name) {
      const std::string_view own(reinterpret_cast<const char*>(name.data), name.size);
      for (size_t i = 0; i < fields_.size(); ++i) {
        if (fields_[i].compare(own) == 0) {
          Cell found;
          const bool is_read = value(&found, 2);
          cells[first + i] = found;
          return is_read;
        }
      }
      return value(nullptr, 2);
    });
    if (!is_object) return false;
    space();
    if (take(']')) return true;
    if (!take(',')) return false;
    space();
  }
}

// Reads the value at which the first `level` names of the path end.
bool Objects::document(size_t level) {
  if (level == path_.size()) return objects();
  bool is_there = false, has_id = false;
  const bool is_read = fields([&](const Text& name) {
    const std::string_view own(reinterpret_cast<const char*>(name.data), name.size);
    if (path_[level].compare(own) == 0) {
      is_there = true;
      return document(level + 1);
    }
    if (level > 0 || image_id_.empty() || image_id_.compare(own) != 0) return value(nullptr, 1);
    Cell found;
    if (!value(&found, 1) || found.kind != Kind::kInteger) return false;
    image_ids.back() = found.a;
    has_id = true;
    return true;
  });
  return is_read && is_there && (level > 0 || image_id_.empty() || has_id);
}

bool Objects::scan(const uint8_t* data, size_t size, int64_t base) {
  begin_ = data;
  at_ = data;
  end_ = data + size;
  base_ = base;
  names_.clear();
  counts.push_back(0);
  image_ids.push_back(0);
  if (path_.empty() && !image_id_.empty()) return false;
  space();
  if (path_.size() > static_cast<size_t>(kDeepest) || !document(0)) return false;
  space();
  return at_ == end_;
}

}  // namespace tarpeg
