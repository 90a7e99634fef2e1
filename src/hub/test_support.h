// What the unit tests of this folder share.
#pragma once

#include <cstdlib>
#include <filesystem>
#include <string>

#include "core/testing.h"

namespace automoe::hub {

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
