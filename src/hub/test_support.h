// What the unit tests of this folder share.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <exception>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include "automoe/error.h"
#include "core/text.h"

namespace automoe::hub {

/// An empty folder of the running test's own, removed at its end.
class Scratch {
 public:
  Scratch() {
    const auto* test = testing::UnitTest::GetInstance()->current_test_info();
    path_ = std::filesystem::path(testing::TempDir()) /
            text("automoe_", test->test_suite_name(), "_", test->name(), "_", getpid());
    std::filesystem::remove_all(path_);
    std::filesystem::create_directories(path_);
  }
  ~Scratch() { std::filesystem::remove_all(path_); }
  std::filesystem::path operator/(const std::string& name) const { return path_ / name; }
  operator const std::filesystem::path&() const { return path_; }

 private:
  std::filesystem::path path_;
};

inline std::string content_of(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  return std::string(std::istreambuf_iterator<char>(in), {});
}

inline void write_content(const std::filesystem::path& path, std::string_view content) {
  std::ofstream(path, std::ios::binary) << content;
}

template <typename Error = ValueError, typename Call>
std::string message_of(Call call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  } catch (const std::exception& error) {
    return text("another type of error: ", error.what());
  }
  return "no error";
}

inline testing::AssertionResult says(const std::string& message, const std::string& part) {
  if (message.find(part) != std::string::npos) return testing::AssertionSuccess();
  return testing::AssertionFailure() << "'" << part << "' is not in: " << message;
}
#define EXPECT_SAYS(message, part) EXPECT_TRUE(says(message, part))

/// Runs a Python script with `folder` as its argument; false if Python lacks `module`. The
/// interpreter is $AUTOMOE_PYTHON, else .venv of the repository, else python3.
inline bool run_python(const std::string& module, const std::string& script,
                       const std::filesystem::path& folder) {
  const auto venv = std::filesystem::path(__FILE__).parent_path() / "../../.venv/bin/python";
  const char* chosen = std::getenv("AUTOMOE_PYTHON");
  const std::string python = chosen != nullptr               ? chosen
                             : std::filesystem::exists(venv) ? venv.string()
                                                             : "python3";
  const std::string silence = " >" + (folder / "python.log").string() + " 2>&1";
  if (std::system(text(python, " -c 'import ", module, "'", silence).c_str()) != 0) return false;
  write_content(folder / "script.py", script);
  const int status = std::system(
      text(python, " ", (folder / "script.py").string(), " ", folder.string(), silence).c_str());
  EXPECT_EQ(status, 0) << content_of(folder / "python.log");
  return true;
}

}  // namespace automoe::hub
