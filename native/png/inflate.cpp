#include "png/inflate.h"

#include <algorithm>
#include <cstring>

namespace tarpeg {
namespace {

constexpr int kLongest = 15;  // bits of a code
constexpr int kMostSymbols = 288;
constexpr uint16_t kLengths[29] = {3,  4,  5,  6,  7,  8,  9,  10, 11,  13,  15,  17,  19,  23, 27,
                                   31, 35, 43, 51, 59, 67, 83, 99, 115, 131, 163, 195, 227, 258};
constexpr uint8_t kLengthBits[29] = {0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2,
                                     2, 3, 3, 3, 3, 4, 4, 4, 4, 5, 5, 5, 5, 0};
constexpr uint16_t kDistances[30] = {1,    2,    3,    4,    5,    7,    9,    13,    17,    25,
                                     33,   49,   65,   97,   129,  193,  257,  385,   513,   769,
                                     1025, 1537, 2049, 3073, 4097, 6145, 8193, 12289, 16385, 24577};
constexpr uint8_t kDistanceBits[30] = {0, 0, 0, 0, 1, 1, 2, 2,  3,  3,  4,  4,  5,  5,  6,
                                       6, 7, 7, 8, 8, 9, 9, 10, 10, 11, 11, 12, 12, 13, 13};
constexpr uint8_t kOrder[19] = {16, 17, 18, 0, 8, 7, 9, 6, 10, 5, 11, 4, 12, 3, 13, 2, 14, 1, 15};
constexpr int kEndOfBlock = 256;
constexpr size_t kStep = 64;  // bytes that are copied at a time

// An entry of a code: bits of the code, bits behind it that are added to the value, what it is, and the
// value.
constexpr uint32_t kCodeBits = 0xF, kMoreBits = 4, kIsLiteral = 0x100, kIsOther = 0x200, kValueBits = 16;

constexpr uint32_t entry_of(uint32_t value, uint32_t more, uint32_t kind) {
  return value << kValueBits | more << kMoreBits | kind;
}
uint32_t plain_entry(int symbol) noexcept { return entry_of(static_cast<uint32_t>(symbol), 0, 0); }
uint32_t length_entry(int symbol) noexcept {
  if (symbol < kEndOfBlock) return entry_of(static_cast<uint32_t>(symbol), 0, kIsLiteral);
  const int number = symbol - kEndOfBlock - 1;
  if (number < 0 || number >= 29) return entry_of(static_cast<uint32_t>(symbol), 0, kIsOther);
  return entry_of(kLengths[number], kLengthBits[number], 0);
}
uint32_t distance_entry(int symbol) noexcept {
  if (symbol >= 30) return entry_of(static_cast<uint32_t>(symbol), 0, kIsOther);
  return entry_of(kDistances[symbol], kDistanceBits[symbol], 0);
}

// Bits, the lowest of each byte first. Behind the data it returns zeros.
class Bits {
 public:
  Bits(const uint8_t* data, size_t size) noexcept : next_(data), end_(data + size) {}

  // At least 56 bits are there afterwards.
  void refill() noexcept {
    if (end_ - next_ >= 8) {
      uint64_t word;
      std::memcpy(&word, next_, sizeof word);
      bits_ |= word << count_;
      next_ += (63 - count_) >> 3;
      count_ |= 56;
      return;
    }
    for (; count_ <= 56; count_ += 8) {
      if (next_ < end_) {
        bits_ |= static_cast<uint64_t>(*next_++) << count_;
      } else {
        ++missing_;
      }
    }
  }
  uint32_t peek(int bits) const noexcept {
    return static_cast<uint32_t>(bits_ & ((uint64_t{1} << bits) - 1));
  }
  void skip(int bits) noexcept {
    bits_ >>= bits;
    count_ -= bits;
  }
  uint32_t take(int bits) noexcept {
    const uint32_t value = peek(bits);
    skip(bits);
    return value;
  }
  // Whether bits were taken that are not in the data.
  bool is_beyond() const noexcept { return 8 * missing_ > count_; }
  bool is_at_end() const noexcept { return next_ == end_ && count_ < 8 + 8 * missing_; }

  // Drops the rest of a byte; the bytes that follow are read by `bytes`.
  void align() noexcept { skip(count_ & 7); }
  // Copies bytes as they stand. False if the data has fewer.
  bool bytes(uint8_t* out, size_t count) noexcept {
    for (; count > 0 && count_ >= 8 * (missing_ + 1); --count) *out++ = static_cast<uint8_t>(take(8));
    if (count == 0) return true;
    if (count > static_cast<size_t>(end_ - next_)) return false;
    bits_ = 0;  // `refill` leaves bits of the next bytes above `count_`
    std::memcpy(out, next_, count);
    next_ += count;
    return true;
  }

 private:
  const uint8_t *next_, *end_;
  uint64_t bits_ = 0;
  int count_ = 0, missing_ = 0;  // bits; bytes behind the data that were added to them
};

// A canonical code. Codes of up to kShort bits are looked up, longer ones are rare and found bit by bit.
template <int kShort>
class Code {
 public:
  // False if the lengths are not those of a code. of(symbol): its entry, without bits of the code.
  template <class Of>
  bool build(const uint8_t* lengths, int count, const Of& of) noexcept {
    std::fill_n(counts_, kLongest + 1, uint16_t{0});
    for (int i = 0; i < count; ++i) ++counts_[lengths[i]];
    const int used = count - counts_[0];
    counts_[0] = 0;
    int left = 1;
    uint16_t offsets[kLongest + 2] = {};
    int codes[kLongest + 2] = {};
    for (int length = 1; length <= kLongest; ++length) {
      left = 2 * left - counts_[length];
      if (left < 0) return false;
      offsets[length + 1] = static_cast<uint16_t>(offsets[length] + counts_[length]);
      codes[length + 1] = (codes[length] + counts_[length]) << 1;
    }
    // As zlib: a code of one symbol is incomplete, and there may be none at all.
    if (left > 0 && used > 0 && !(used == 1 && counts_[1] == 1)) return false;
    std::fill_n(short_, 1 << kShort, uint32_t{0});
    for (int symbol = 0; symbol < count; ++symbol) {
      const int length = lengths[symbol];
      if (length == 0) continue;
      const uint32_t entry = of(symbol);
      entries_[offsets[length]++] = entry;
      int code = codes[length]++;
      if (length > kShort) continue;
      int reversed = 0;
      for (int bit = 0; bit < length; ++bit, code >>= 1) reversed = reversed << 1 | (code & 1);
      for (int i = reversed; i < 1 << kShort; i += 1 << length) {
        short_[i] = entry | static_cast<uint32_t>(length);
      }
    }
    return true;
  }

  // The entry of the next symbol, whose code is dropped; kIsOther for bits that are no code. 15 bits must be
  // there.
  uint32_t next(Bits* bits) const noexcept {
    const uint32_t entry = short_[bits->peek(kShort)];
    if (entry == 0) return next_long(bits);
    bits->skip(static_cast<int>(entry & kCodeBits));
    return entry;
  }

 private:
  uint32_t next_long(Bits* bits) const noexcept {
    const uint32_t ahead = bits->peek(kLongest);
    int code = 0, first = 0, index = 0;
    for (int length = 1; length <= kLongest; ++length) {
      code |= ahead >> (length - 1) & 1;
      const int count = counts_[length];
      if (code - count < first) {
        bits->skip(length);
        return entries_[index + code - first];
      }
      index += count;
      first = (first + count) << 1;
      code <<= 1;
    }
    return entry_of(0xFFFF, 0, kIsOther);
  }

  uint32_t short_[1 << kShort], entries_[kMostSymbols];
  uint16_t counts_[kLongest + 1];
};

struct Codes {
  Code<10> symbols;
  Code<8> distances;
};

bool build_fixed(Codes* codes) noexcept {
  uint8_t lengths[kMostSymbols];
  std::fill(lengths, lengths + 144, uint8_t{8});
  std::fill(lengths + 144, lengths + 256, uint8_t{9});
  std::fill(lengths + 256, lengths + 280, uint8_t{7});
  std::fill(lengths + 280, lengths + 288, uint8_t{8});
  uint8_t distances[32];
  std::fill_n(distances, 32, uint8_t{5});
  return codes->symbols.build(lengths, 288, length_entry) &&
         codes->distances.build(distances, 32, distance_entry);
}

Status read_codes(Bits* bits, Codes* codes) noexcept {
  bits->refill();
  const int symbols = static_cast<int>(bits->take(5)) + 257, distances = static_cast<int>(bits->take(5)) + 1;
  const int given = static_cast<int>(bits->take(4)) + 4;
  if (symbols > 286 || distances > 30) return Status::kCorrupt;
  uint8_t lengths[286 + 30] = {};
  uint8_t small[19] = {};
  for (int i = 0; i < given; ++i) {
    bits->refill();
    small[kOrder[i]] = static_cast<uint8_t>(bits->take(3));
  }
  Code<7> code;
  if (!code.build(small, 19, plain_entry)) return Status::kCorrupt;
  for (int i = 0; i < symbols + distances;) {
    bits->refill();
    if (bits->is_beyond()) return Status::kTruncated;
    const uint32_t entry = code.next(bits), symbol = entry >> kValueBits;
    if ((entry & kIsOther) != 0) return Status::kCorrupt;
    if (symbol < 16) {
      lengths[i++] = static_cast<uint8_t>(symbol);
      continue;
    }
    if (symbol == 16 && i == 0) return Status::kCorrupt;
    const uint8_t value = symbol == 16 ? lengths[i - 1] : uint8_t{0};
    const int times = symbol == 16   ? 3 + static_cast<int>(bits->take(2))
                      : symbol == 17 ? 3 + static_cast<int>(bits->take(3))
                                     : 11 + static_cast<int>(bits->take(7));
    if (i + times > symbols + distances) return Status::kCorrupt;
    std::fill_n(lengths + i, times, value);
    i += times;
  }
  const bool is_code = lengths[kEndOfBlock] != 0 && codes->symbols.build(lengths, symbols, length_entry) &&
                       codes->distances.build(lengths + symbols, distances, distance_entry);
  return is_code ? Status::kOk : Status::kCorrupt;
}

// Copies what begins `distance` bytes before `out`; may write kInflateMargin bytes more.
inline void repeat(uint8_t* out, size_t distance, size_t length) noexcept {
  const uint8_t *from = out - distance, *end = out + length;
  if (distance >= kStep) {
    for (; out < end; out += kStep, from += kStep) std::memcpy(out, from, kStep);
  } else if (distance == 1) {
    const uint8_t value = *from;
    for (; out < end; out += kStep) std::memset(out, value, kStep);
  } else if (distance >= 16) {
    for (; out < end; out += 16, from += 16) std::memcpy(out, from, 16);
  } else {
    for (; out < end; ++out, ++from) *out = *from;
  }
}

struct Output {
  uint8_t* out;
  size_t room;
  size_t written = 0;
  bool is_over = false;  // there is more than fits
};

// Decodes the symbols of a block up to its end, or as far as there is room.
Status read_symbols(Bits* given, const Codes& codes, Output* to) noexcept {
  Bits bits = *given;  // a local one, as bytes that are written may be its members
  uint8_t* const out = to->out;
  const size_t room = to->room;
  size_t at = to->written;
  Status status = Status::kOk;
  while (true) {
    bits.refill();
    const uint32_t entry = codes.symbols.next(&bits);
    if ((entry & kIsLiteral) != 0) {
      if (at == room) {
        to->is_over = true;
        break;
      }
      out[at++] = static_cast<uint8_t>(entry >> kValueBits);
      if (bits.is_beyond()) {
        status = Status::kTruncated;
        break;
      }
      continue;
    }
    if ((entry & kIsOther) != 0) {
      if (bits.is_beyond()) {
        status = Status::kTruncated;
      } else if (entry >> kValueBits != kEndOfBlock) {
        status = Status::kCorrupt;
      }
      break;
    }
    const size_t length = (entry >> kValueBits) + bits.take(static_cast<int>(entry >> kMoreBits & 15));
    const uint32_t far = codes.distances.next(&bits);
    const size_t distance = (far >> kValueBits) + bits.take(static_cast<int>(far >> kMoreBits & 15));
    if (bits.is_beyond()) {
      status = Status::kTruncated;
      break;
    }
    if ((far & kIsOther) != 0 || distance > at) {
      status = Status::kCorrupt;
      break;
    }
    const size_t fitting = std::min(length, room - at);
    repeat(out + at, distance, fitting);
    at += fitting;
    if (fitting < length) {
      to->is_over = true;
      break;
    }
  }
  to->written = at;
  *given = bits;
  return status;
}

// The fixed code, built once: a file may have a block of it in ten bits.
const Codes& fixed_codes() noexcept {
  static const Codes codes = [] {
    Codes built;
    build_fixed(&built);
    return built;
  }();
  return codes;
}

}  // namespace

Status inflate(const uint8_t* data, size_t size, uint8_t* out, size_t room, Ending ending) noexcept {
  Bits bits(data, size);
  Output to = {out, room};
  Codes codes;
  while (true) {
    if (ending == Ending::kAtRoom && to.written == room) return Status::kOk;
    if (ending == Ending::kAtData && bits.is_at_end()) break;
    bits.refill();
    const bool is_last = bits.take(1) != 0;
    const uint32_t kind = bits.take(2);
    if (kind == 0) {
      bits.align();
      uint8_t head[4];
      if (bits.is_beyond() || !bits.bytes(head, 4)) return Status::kTruncated;
      const size_t length = head[0] | static_cast<size_t>(head[1]) << 8;
      if ((length ^ (head[2] | static_cast<size_t>(head[3]) << 8)) != 0xFFFF) return Status::kCorrupt;
      const size_t fitting = std::min(length, room - to.written);
      if (!bits.bytes(out + to.written, fitting)) return Status::kTruncated;
      to.written += fitting;
      if (fitting < length) return ending == Ending::kAtRoom ? Status::kOk : Status::kCorrupt;
    } else {
      Status status = Status::kOk;
      if (kind == 2) {
        status = read_codes(&bits, &codes);
      } else if (kind != 1) {
        status = Status::kCorrupt;
      }
      if (status == Status::kOk) status = read_symbols(&bits, kind == 1 ? fixed_codes() : codes, &to);
      if (ending == Ending::kAtRoom && to.written == room) return Status::kOk;
      if (status != Status::kOk) return status;
      if (to.is_over) return Status::kCorrupt;
    }
    if (is_last) break;
  }
  return to.written == room ? Status::kOk : Status::kTruncated;
}

}  // namespace tarpeg
