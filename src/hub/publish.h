// New weights take the place of old ones in a folder that readers may open at any moment.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

namespace automoe::hub {

/// A shard written and flushed under a temporary name in its folder.
struct StagedShard {
  std::filesystem::path temporary;
  std::string final_name;
  std::vector<std::string> tensors;
};

/// A temporary name for a file of `folder`, unlike any other. It ends in .safetensors, so that an
/// index may name it, and carries the id of this process.
std::filesystem::path temporary_for(const std::filesystem::path& folder,
                                    const std::string& final_name);

/// Removes temporaries that no running process is writing and that the folder's index does not
/// name.
void remove_leftovers(const std::filesystem::path& folder);

/// What is to be done, in order, for the folder to hold these shards under their final names, with
/// an index if there are several, and no other weights. Between any two steps, and so after a
/// crash, whoever opens the folder finds either all of the old weights or all of the new ones.
std::vector<std::function<void()>> publication(const std::filesystem::path& folder,
                                               const std::vector<StagedShard>& shards,
                                               int64_t total_parameters, int64_t total_bytes);

}  // namespace automoe::hub
