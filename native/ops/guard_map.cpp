#include <optional>

#include "base/guard.h"
#include "ops/checks.h"

namespace tarpeg {
namespace {

void guard_map_op(std::optional<Tensor> map, Tensor torn) {
  STD_TORCH_CHECK(torn.is_cpu() && torn.scalar_type() == ScalarType::Byte && torn.numel() == 1,
                  "torn must be one uint8 on the CPU");
  uint8_t* flag = torn.mutable_data_ptr<uint8_t>();
  if (!map) return release_map(flag);
  check_bytes(*map, "map", 0);
  guard_map(map->const_data_ptr<uint8_t>(), static_cast<size_t>(map->numel()), flag);
}

}  // namespace
}  // namespace tarpeg

STABLE_TORCH_LIBRARY_IMPL(tarpeg, CPU, m) { m.impl("guard_map", TORCH_BOX(&tarpeg::guard_map_op)); }
