#include "core/json.h"

#include <fstream>
#include <iterator>

namespace automoe {
namespace {

// Python's json module writes Infinity and NaN bare; JSON has no such literals. Outside strings
// they become 1e300, larger than any limit in use, and null.
std::string without_bare_literals(const std::string& text) {
  std::string out;
  out.reserve(text.size());
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string && c == '\\' && i + 1 < text.size()) {
      out += c;
      out += text[++i];
      continue;
    }
    if (c == '"') in_string = !in_string;
    if (!in_string && text.compare(i, 8, "Infinity") == 0) {
      out += "1e300";
      i += 7;
    } else if (!in_string && text.compare(i, 3, "NaN") == 0) {
      out += "null";
      i += 2;
    } else {
      out += c;
    }
  }
  return out;
}

}  // namespace

Json parse_json(const std::string& text_, const std::string& source) {
  try {
    return Json::parse(without_bare_literals(text_));
  } catch (const nlohmann::json::exception& error) {
    throw ValueError(text("[json] ", source, " is not valid JSON: ", error.what()));
  }
}

Json read_json(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  AUTOMOE_CHECK_VALUE(in.good(), "[json] cannot open ", path.string());
  return parse_json(std::string(std::istreambuf_iterator<char>(in), {}), path.string());
}

Json with_defaults(const Json& json, const Json& defaults) {
  Json all = defaults;
  for (const auto& [key, value] : json.items())
    if (!value.is_null()) all[key] = value;
  return all;
}

}  // namespace automoe
