#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/rows.h"
#include "base/status.h"
#include "png/runs.h"

namespace tarpeg {

// A PNG with a byte per pixel, gray or numbers of a palette, not interlaced and upright. Other PNGs, and
// whatever is wrong, are Pillow's: it decides what is damaged. The file stays where it is while this is used.
class BytePng {
 public:
  // Reads the headers of all chunks. kUnsupported for other PNGs.
  Status parse(const uint8_t* data, size_t size, int64_t max_pixels);

  // Decodes the rows of a box, and those before it unless the file has bands. Row y of the image begins at
  // `rows` + (y - first) * (width + 1) + 1 afterwards. kCorrupt if the box is not within the image.
  struct Rows {
    const uint8_t* first_row;
    int first;
  };
  Status decode(const Box& box, std::vector<uint8_t>* memory, Rows* rows) const;

  // Whether a box is within the image.
  bool has(const Box& box) const noexcept;

  // Opens the rows as runs. False if the file has none, or those of other pixels.
  bool open(Runs* runs) const noexcept;

  int height = 0, width = 0;

 private:
  struct Part {
    const uint8_t* data;
    size_t size;
  };
  Status decode_bands(const Box& box, std::vector<uint8_t>* memory, Rows* rows) const;
  Status decode_from_start(const Box& box, std::vector<uint8_t>* memory, Rows* rows) const;

  std::vector<Part> parts_;  // contents of the IDAT chunks
  Part runs_ = {};           // content of the chunk tpRL
  int band_ = 0;             // rows of each part, 0 if there is no such number
};

}  // namespace tarpeg
