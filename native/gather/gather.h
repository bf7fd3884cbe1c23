#pragma once

#include <cstdint>
#include <vector>

#include "gather/layout.h"
#include "image/decode.h"

namespace tarpeg::gather {

// What is copied of an image for a crop, and its record, in which the places are still missing.
struct Source {
  struct Part {
    const uint8_t* data;
    uint32_t size;
  };

  Status status = Status::kOk;
  tarpeg::Header header;
  Image image;
  Table tables[kMostTables];
  std::vector<Part> parts;
  uint64_t room = 0;  // bytes in the tensor behind the tables of records and pieces
};

// Finds the parts of an encoded image that a request needs. source->status: as decode_image() returns it of a
// header or a box that it cannot use; kNotGathered of all that only the CPU decodes. `header` has the size of
// the results. Throws only if memory runs out.
void find_parts(const uint8_t* data, size_t size, const Request& request, const Header& header,
                Source* source);

// Copies tables and parts to `at` in a tensor that begins at `tensor`, and writes the record and the pieces.
// Sets source->status where the data turn out to be irregular.
void copy_parts(Source* source, uint8_t* tensor, uint64_t at, Piece* pieces);

// The record of an image whose status is source->status.
Image record_of(const Source& source);

}  // namespace tarpeg::gather
