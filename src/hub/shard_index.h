// model.safetensors.index.json: which file holds which tensor. Needs no Torch header.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>

namespace automoe::hub {

constexpr const char* kWeightsFile = "model.safetensors";
constexpr const char* kIndexFile = "model.safetensors.index.json";

/// Tensor name -> file name. Throws ValueError that names `source` and the entry: bad JSON, no
/// weight_map, a tensor listed twice, a file outside the index's folder.
std::map<std::string, std::string> parse_index(std::string_view json, const std::string& source);

/// The text that Transformers writes.
std::string emit_index(const std::map<std::string, std::string>& weight_map,
                       int64_t total_parameters, int64_t total_bytes);

}  // namespace automoe::hub
