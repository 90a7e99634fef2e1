#include "hub/shard_index.h"

#include <nlohmann/json.hpp>

#include "automoe/error.h"
#include "hub/strict_json.h"

namespace automoe::hub {
namespace {

// A downloaded index must not make us open files elsewhere.
bool is_plain_file_name(const std::string& name) {
  return name.ends_with(".safetensors") && name.find('/') == std::string::npos &&
         name.find('\0') == std::string::npos;
}

}  // namespace

std::map<std::string, std::string> parse_index(std::string_view json, const std::string& source) {
  const nlohmann::json index = parse_strict_json(json, text("[checkpoint] ", source));
  const auto found = index.is_object() ? index.find("weight_map") : index.end();
  AUTOMOE_CHECK_VALUE(found != index.end() && found->is_object(), "[checkpoint] ", source,
                      " has no 'weight_map' from tensor to file");
  std::map<std::string, std::string> weight_map;
  for (const auto& [tensor, file] : found->items()) {
    AUTOMOE_CHECK_VALUE(file.is_string() && is_plain_file_name(file.get_ref<const std::string&>()),
                        "[checkpoint] ", source, ": tensor '", tensor,
                        "' must name a .safetensors file beside the index, found ",
                        file.dump(-1, ' ', /*ensure_ascii=*/true));
    weight_map.emplace_hint(weight_map.end(), tensor, file.get<std::string>());
  }
  return weight_map;
}

std::string emit_index(const std::map<std::string, std::string>& weight_map,
                       int64_t total_parameters, int64_t total_bytes) {
  const nlohmann::json index{
      {"metadata", {{"total_parameters", total_parameters}, {"total_size", total_bytes}}},
      {"weight_map", weight_map}};
  return index.dump(/*indent=*/2, ' ', /*ensure_ascii=*/true) + "\n";
}

}  // namespace automoe::hub
