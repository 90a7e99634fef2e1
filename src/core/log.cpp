#include "core/log.h"

#include <iostream>
#include <mutex>
#include <set>

namespace automoe {

void warn_once(const std::string& message) {
  static std::mutex mutex;
  static std::set<std::string> seen;
  const std::lock_guard lock(mutex);
  if (seen.insert(message).second) std::cerr << "automoe: " << message << std::endl;
}

}  // namespace automoe
