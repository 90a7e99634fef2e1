// Small text helpers for error messages.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "automoe/error.h"

namespace automoe {

/// "a, b, c"; anything streamable.
template <typename Range>
std::string join(const Range& items, std::string_view separator = ", ") {
  std::string out;
  for (const auto& item : items) {
    if (!out.empty()) out += separator;
    if constexpr (requires { std::string_view(item); })
      out += std::string_view(item);
    else
      out += std::to_string(item);
  }
  return out;
}

/// "[2, 3]", for shapes.
template <typename Range>
std::string shape_text(const Range& shape) {
  return text('[', join(shape), ']');
}

/// The candidate with the smallest edit distance to `name`, or "" if none is near.
std::string nearest(std::string_view name, const std::vector<std::string>& candidates);

/// " Did you mean 'x'?" or "".
std::string did_you_mean(std::string_view name, const std::vector<std::string>& candidates);

}  // namespace automoe
