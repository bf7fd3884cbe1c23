#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "ops/checks.h"

namespace tarpeg {

// The bytes of a file.
struct FileBytes {
  const uint8_t* data;
  size_t size;
};

// Each tensor is a file; or, with `places`, int64 [3, n], they are memory that has several: the number of the
// tensor, the first byte and the number of bytes of each. `name`: of the tensors, in messages.
inline std::vector<FileBytes> files_of(const std::vector<Tensor>& tensors,
                                       const std::optional<Tensor>& places, const char* name) {
  std::vector<FileBytes> all(tensors.size());
  for (size_t i = 0; i < all.size(); ++i) {
    check_bytes(tensors[i], name, static_cast<int64_t>(i));
    all[i] = {tensors[i].const_data_ptr<uint8_t>(), static_cast<size_t>(tensors[i].numel())};
  }
  if (!places) return all;
  STD_TORCH_CHECK(places->is_cpu() && places->scalar_type() == ScalarType::Long && places->is_contiguous() &&
                      places->dim() == 2 && places->size(0) == 3,
                  "places must be a contiguous int64 tensor [3, n] on the CPU");
  const int64_t count = places->size(1);
  const int64_t* const numbers = static_cast<const int64_t*>(places->const_data_ptr());
  std::vector<FileBytes> files(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i) {
    const int64_t number = numbers[i], begin = numbers[count + i], size = numbers[2 * count + i];
    const bool is_there = number >= 0 && number < static_cast<int64_t>(all.size());
    const int64_t room = is_there ? static_cast<int64_t>(all[number].size) : -1;
    STD_TORCH_CHECK(begin >= 0 && size >= 0 && begin <= room && size <= room - begin, "places[:, ", i, "] (",
                    number, ", ", begin, ", ", size, ") is outside ", name);
    files[i] = {all[number].data + begin, static_cast<size_t>(size)};
  }
  return files;
}

}  // namespace tarpeg
