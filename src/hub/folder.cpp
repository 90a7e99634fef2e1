#include "hub/folder.h"

#include <algorithm>
#include <array>
#include <string>
#include <string_view>

namespace automoe::hub {
namespace fs = std::filesystem;
namespace {

bool is_companion(const std::string& name) {
  constexpr std::array<std::string_view, 9> kPrefixes = {
      "tokenizer",     "special_tokens_map", "added_tokens", "vocab",        "merges",
      "chat_template", "generation_config",  "spiece",       "sentencepiece"};
  return std::ranges::any_of(kPrefixes,
                             [&](std::string_view prefix) { return name.starts_with(prefix); }) ||
         name.ends_with(".tiktoken");
}

}  // namespace

void copy_companions(const fs::path& from, const fs::path& to) {
  if (fs::exists(to) && fs::equivalent(from, to)) return;
  for (const auto& entry : fs::directory_iterator(from)) {
    const std::string name = entry.path().filename().string();
    if (!is_companion(name)) continue;  // chat_template may be a file or a folder of templates
    fs::copy(entry.path(), to / name,
             fs::copy_options::recursive | fs::copy_options::overwrite_existing);
  }
}

}  // namespace automoe::hub
