// JSON out of files that may be damaged or hostile. Needs no Torch header.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace automoe::hub {

/// Parses UTF-8 JSON. Unlike core/json.h it refuses a key that appears twice and deep nesting, and
/// objects with a hundred thousand keys stay fast. Throws ValueError that begins with `source`.
nlohmann::json parse_strict_json(std::string_view json, const std::string& source);

}  // namespace automoe::hub
