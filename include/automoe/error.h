// Errors of automoe. All derive from the standard hierarchy, so Python sees ValueError and
// RuntimeError without any glue. Needs no Torch header.
#pragma once

#include <sstream>
#include <stdexcept>
#include <string>

namespace automoe {

/// The caller passed something wrong: the message names it, what was expected and what to do.
class ValueError : public std::invalid_argument {
 public:
  using std::invalid_argument::invalid_argument;
};

/// What the caller wants makes sense, but is not implemented natively.
class UnsupportedError : public ValueError {
 public:
  using ValueError::ValueError;
};

/// Something outside the caller's input failed: a file system, a broken invariant.
class RuntimeError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// The arguments streamed one after another: text("step ", 3) is "step 3".
template <typename... Parts>
std::string text(const Parts&... parts) {
  std::ostringstream out;
  (out << ... << parts);
  return out.str();
}

}  // namespace automoe

#define AUTOMOE_CHECK_VALUE(condition, ...)                      \
  do {                                                           \
    if (!(condition)) [[unlikely]]                               \
      throw ::automoe::ValueError(::automoe::text(__VA_ARGS__)); \
  } while (false)

#define AUTOMOE_CHECK_SUPPORTED(condition, ...)                        \
  do {                                                                 \
    if (!(condition)) [[unlikely]]                                     \
      throw ::automoe::UnsupportedError(::automoe::text(__VA_ARGS__)); \
  } while (false)

#define AUTOMOE_CHECK(condition, ...)                              \
  do {                                                             \
    if (!(condition)) [[unlikely]]                                 \
      throw ::automoe::RuntimeError(::automoe::text(__VA_ARGS__)); \
  } while (false)
