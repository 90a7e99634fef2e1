#include "hub/parameters.h"

#include <c10/core/impl/VirtualGuardImpl.h>

#include <map>
#include <set>
#include <utility>

#include "automoe/error.h"

namespace automoe::hub {

void check_parameters(const std::vector<NamedTensor>& parameters) {
  std::set<std::string_view> names;
  std::map<const void*, std::string_view> memory;
  for (const auto& [name, tensor] : parameters) {
    AUTOMOE_CHECK_VALUE(names.insert(name).second, "[checkpoint] parameter '", name,
                        "' is listed twice");
    AUTOMOE_CHECK_VALUE(tensor.defined() && !tensor.is_meta() && tensor.layout() == at::kStrided,
                        "[checkpoint] parameter '", name,
                        "' has no dense memory; move it to the CPU or a GPU first (to_empty)");
    if (tensor.numel() == 0) continue;
    const auto [place, is_new] = memory.emplace(tensor.const_data_ptr(), name);
    AUTOMOE_CHECK_VALUE(is_new, "[checkpoint] parameters '", place->second, "' and '", name,
                        "' share their memory; list tied weights once");
  }
}

void synchronize_devices(const std::vector<NamedTensor>& parameters) {
  std::set<std::pair<at::DeviceType, at::DeviceIndex>> devices;
  for (const auto& [name, tensor] : parameters)
    if (!tensor.device().is_cpu()) devices.emplace(tensor.device().type(), tensor.device().index());
  for (const auto& [type, index] : devices)
    c10::impl::VirtualGuardImpl(type).synchronizeDevice(index);
}

}  // namespace automoe::hub
