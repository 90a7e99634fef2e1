#include "core/log.h"

#include <cstdlib>
#include <iostream>
#include <mutex>
#include <set>
#include <string_view>

namespace automoe {
namespace {

bool is_set(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr && *value != '\0' && std::string_view(value) != "0";
}

}  // namespace

void warn_once(const std::string& message) {
  static std::mutex mutex;
  static std::set<std::string> seen;
  const std::lock_guard lock(mutex);
  if (seen.insert(message).second) std::cerr << "automoe: " << message << std::endl;
}

const Environment& Environment::get() {
  static const Environment environment{.strict = is_set("AUTOMOE_STRICT")};
  return environment;
}

}  // namespace automoe
