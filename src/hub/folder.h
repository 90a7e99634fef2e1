// What a Hugging Face model folder holds besides weights and config.
#pragma once

#include <filesystem>

namespace automoe::hub {

/// Copies tokenizer, chat template and generation settings from one model folder to another, so
/// that the copy can be served on its own. Files already there are replaced; nothing is copied onto
/// itself.
void copy_companions(const std::filesystem::path& from, const std::filesystem::path& to);

}  // namespace automoe::hub
