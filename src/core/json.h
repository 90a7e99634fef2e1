// JSON reading with errors that name the file and the key. Key order is kept.
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>

#include "automoe/error.h"

namespace automoe {

using Json = nlohmann::ordered_json;

/// Parses JSON text; also accepts the bare Infinity, -Infinity and NaN that Python writes.
/// `source` names the text in the error.
Json parse_json(const std::string& text, const std::string& source);

Json read_json(const std::filesystem::path& path);

/// The value of a required key. Throws ValueError naming `key` and the type found.
template <typename T>
T require(const Json& json, const std::string& key) {
  const auto found = json.find(key);
  AUTOMOE_CHECK_VALUE(found != json.end() && !found->is_null(), "[config] '", key, "' is missing");
  try {
    return found->template get<T>();
  } catch (const nlohmann::json::exception&) {
    throw ValueError(text("[config] '", key, "' has the wrong type: ", found->dump()));
  }
}

/// The value of an optional key; `fallback` where it is absent or null.
template <typename T>
T value_or(const Json& json, const std::string& key, T fallback) {
  const auto found = json.find(key);
  if (found == json.end() || found->is_null()) return fallback;
  return require<T>(json, key);
}

/// `json` over `defaults`; a null counts as absent.
Json with_defaults(const Json& json, const Json& defaults);

}  // namespace automoe
