// The checkpoint folders of an output folder: output_dir/checkpoint-<step>.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace automoe::train {

constexpr const char* kStateFile =
    "trainer_state.json";  // lists the other files: the mark of completeness

std::filesystem::path checkpoint_path(const std::filesystem::path& output_dir, int64_t step);

/// What is missing in a checkpoint folder; empty if it is complete.
std::string missing_in(const std::filesystem::path& checkpoint);

struct CheckpointFolder {
  int64_t step;
  std::filesystem::path path;
};

/// Every checkpoint-<step> folder, complete or not, oldest first.
std::vector<CheckpointFolder> list_checkpoints(const std::filesystem::path& output_dir);

/// Removes what killed saves left, saying so.
void remove_leftovers(const std::filesystem::path& output_dir);

/// Removes checkpoints, oldest first, until `limit` are left. 0: keeps all. A folder under removal
/// has no checkpoint's name any more, so that a crash cannot leave half of one.
void keep_newest(const std::filesystem::path& output_dir, int64_t limit);

/// Every file below `folder`, relative to it, with its size, sorted.
std::vector<std::pair<std::string, uint64_t>> files_of(const std::filesystem::path& folder);

}  // namespace automoe::train
