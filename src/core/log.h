// Messages to the user on stderr, and the environment switches, all in one table.
#pragma once

#include <string>

namespace automoe {

/// "automoe: <message>" on stderr; once per distinct message in a process.
void warn_once(const std::string& message);

/// Environment switches of the engine. docs/architecture.md lists them.
struct Environment {
  bool strict = false;  // AUTOMOE_STRICT=1: a fallback is an error
  static const Environment& get();
};

}  // namespace automoe
