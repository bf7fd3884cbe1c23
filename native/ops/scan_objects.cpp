#include <string>
#include <tuple>

#include "json/objects.h"
#include "ops/checks.h"

namespace tarpeg {
namespace {

constexpr char kBetween = '\n';  // between the names of a list

std::vector<std::string> split(const std::string& names) {
  std::vector<std::string> found;
  for (size_t begin = 0; begin < names.size();) {
    const size_t end = std::min(names.find(kBetween, begin), names.size());
    found.push_back(names.substr(begin, end - begin));
    begin = end + 1;
  }
  return found;
}

template <class Value>
Tensor as_tensor(const std::vector<Value>& values, int64_t columns = 1) {
  const int32_t dtype = std::is_same_v<Value, double> ? aoti_torch_dtype_float64() : aoti_torch_dtype_int64();
  const auto bytes = values.size() * sizeof(Value);
  const int64_t sizes[2] = {static_cast<int64_t>(bytes / 8) / columns, columns}, strides[2] = {columns, 1};
  AtenTensorHandle handle;
  TORCH_ERROR_CODE_CHECK(
      aoti_torch_empty_strided(2, sizes, strides, dtype, aoti_torch_device_type_cpu(), 0, &handle));
  Tensor result(handle);
  if (bytes > 0) std::memcpy(result.mutable_data_ptr(), values.data(), bytes);
  return result;
}

static_assert(sizeof(Cell) == 5 * sizeof(int64_t), "a row of the tensor of cells");

std::tuple<Tensor, Tensor, Tensor, Tensor> scan_objects(Tensor files, Tensor ends, std::string path,
                                                        std::string fields, std::string image_id) {
  check_bytes(files, "files", 0);
  STD_TORCH_CHECK(
      ends.is_cpu() && ends.scalar_type() == ScalarType::Long && ends.dim() == 1 && ends.is_contiguous(),
      "ends must be a contiguous int64 tensor [B] on the CPU");
  const auto* data = files.const_data_ptr<uint8_t>();
  const auto* last = ends.const_data_ptr<int64_t>();
  Objects objects(split(path), split(fields), std::move(image_id));
  int64_t begin = 0;
  bool is_plain = true;
  for (int64_t i = 0; i < ends.numel() && is_plain; begin = last[i++]) {
    STD_TORCH_CHECK(last[i] >= begin && last[i] <= files.numel(), "ends[", i,
                    "] must be from the end before to ", files.numel(), ", got ", last[i]);
    is_plain = objects.scan(data + begin, static_cast<size_t>(last[i] - begin), begin);
  }
  std::vector<int64_t> facts;  // of each document: number of objects, number of the image
  for (size_t i = 0; is_plain && i < objects.counts.size(); ++i) {
    facts.insert(facts.end(), {objects.counts[i], objects.image_ids[i]});
  }
  return {as_tensor(facts, 2), as_tensor(objects.cells, 5), as_tensor(objects.numbers),
          as_tensor(objects.lengths)};
}

}  // namespace
}  // namespace tarpeg

STABLE_TORCH_LIBRARY_IMPL(tarpeg, CPU, m) { m.impl("scan_objects", TORCH_BOX(&tarpeg::scan_objects)); }
