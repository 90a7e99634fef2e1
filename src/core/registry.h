// Named things that register themselves at start-up.
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "automoe/error.h"
#include "core/text.h"

namespace automoe {

template <typename T>
class Registry {
 public:
  /// `kind` names the entries in errors, e.g. "architecture".
  explicit Registry(std::string kind) : kind_(std::move(kind)) {}

  bool add(const std::string& name, T entry) {
    AUTOMOE_CHECK(entries_.emplace(name, std::move(entry)).second, kind_, " '", name,
                  "' is registered twice");
    return true;
  }

  bool contains(const std::string& name) const { return entries_.contains(name); }

  const T& at(const std::string& name) const {
    const auto found = entries_.find(name);
    AUTOMOE_CHECK_VALUE(found != entries_.end(), "unknown ", kind_, " '", name,
                        "'; known: ", join(names()), ".", did_you_mean(name, names()));
    return found->second;
  }

  std::vector<std::string> names() const {
    std::vector<std::string> out;
    for (const auto& [name, entry] : entries_) out.push_back(name);
    return out;
  }

 private:
  std::string kind_;
  std::map<std::string, T> entries_;
};

}  // namespace automoe
