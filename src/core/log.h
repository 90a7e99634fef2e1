// Messages to the user on stderr.
#pragma once

#include <string>

namespace automoe {

/// "automoe: <message>" on stderr; once per distinct message in a process.
void warn_once(const std::string& message);

}  // namespace automoe
