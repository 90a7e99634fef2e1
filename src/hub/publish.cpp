#include "hub/publish.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <map>
#include <optional>
#include <set>

#include "automoe/error.h"
#include "core/file.h"
#include "hub/shard_index.h"
#include "hub/sharding.h"

namespace automoe::hub {
namespace fs = std::filesystem;
namespace {

constexpr std::string_view kTemporaryPrefix = ".automoe-";  // then process id, time and final name

// Nothing if the index cannot be understood.
std::optional<std::set<std::string>> files_of_index(const fs::path& index) {
  std::set<std::string> files;
  if (!fs::exists(index)) return files;
  try {
    const MappedFile content(index);
    const std::string_view json(reinterpret_cast<const char*>(content.bytes().data()),
                                content.bytes().size());
    for (const auto& [tensor, file] : parse_index(json, index.string())) files.insert(file);
  } catch (const ValueError&) {
    return std::nullopt;
  }
  return files;
}

// Another process may still be writing it. One with our own id died: ids come back, in containers
// nearly always.
bool may_be_in_use(std::string_view name) {
  const int64_t writer = std::atoll(name.data() + kTemporaryPrefix.size());
  return writer != getpid() && process_is_alive(writer);
}

std::string index_text(const std::vector<StagedShard>& shards, bool final_names,
                       int64_t total_parameters, int64_t total_bytes) {
  std::map<std::string, std::string> weight_map;
  for (const StagedShard& shard : shards)
    for (const std::string& tensor : shard.tensors)
      weight_map[tensor] = final_names ? shard.final_name : shard.temporary.filename().string();
  return emit_index(weight_map, total_parameters, total_bytes);
}

// Gives the shard its final name in one step, and keeps the temporary one.
void link_in_place(const fs::path& temporary, const fs::path& final_path) {
  const fs::path link = temporary.string() + ".link";
  std::error_code no_links;
  fs::create_hard_link(temporary, link, no_links);
  if (no_links) {  // some network and FAT file systems
    fs::copy_file(temporary, link);
    flush_to_disk(link);
  }
  fs::rename(link, final_path);
}

void remove_stale_shards(const fs::path& folder, const std::vector<StagedShard>& shards) {
  for (const auto& entry : fs::directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    if (is_shard_file_name(name) &&
        std::none_of(shards.begin(), shards.end(),
                     [&](const StagedShard& s) { return s.final_name == name; }))
      fs::remove(entry.path());
  }
}

}  // namespace

fs::path temporary_for(const fs::path& folder, const std::string& final_name) {
  const auto now = std::chrono::system_clock::now().time_since_epoch().count();
  return folder / text(kTemporaryPrefix, getpid(), "-", now, "-", final_name);
}

void remove_leftovers(const fs::path& folder) {
  const bool index_counts = !fs::exists(folder / kWeightsFile);
  const auto named = index_counts ? files_of_index(folder / kIndexFile) : std::set<std::string>();
  if (!named) return;
  std::error_code ignored;  // what cannot be removed today is removed by a later save
  for (const auto& entry : fs::directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with(kTemporaryPrefix) && !named->contains(name) && !may_be_in_use(name))
      fs::remove(entry.path(), ignored);
  }
}

std::vector<std::function<void()>> publication(const fs::path& folder,
                                               const std::vector<StagedShard>& shards,
                                               int64_t total_parameters, int64_t total_bytes) {
  const auto write_index = [=](bool final_names) {
    write_file_atomically(folder / kIndexFile,
                          index_text(shards, final_names, total_parameters, total_bytes));
  };
  const auto remove_and_flush = [=](const char* name) {
    fs::remove(folder / name);
    flush_to_disk(folder);
  };
  std::vector<std::function<void()>> steps;
  if (shards.size() == 1) {
    steps.push_back([=] {  // readers prefer this file to an index: from here on the weights are new
      fs::rename(shards[0].temporary, folder / shards[0].final_name);
      flush_to_disk(folder);
    });
    steps.push_back([=] { remove_and_flush(kIndexFile); });
  } else {
    // The old shards may have the very names of the new ones, and files cannot be replaced
    // together. So the index first names the temporaries, and the final names only once they hold
    // the same bytes.
    steps.push_back([=] { write_index(/*final_names=*/false); });
    steps.push_back([=] { remove_and_flush(kWeightsFile); });
    for (const StagedShard& shard : shards)
      steps.push_back([=] { link_in_place(shard.temporary, folder / shard.final_name); });
    steps.push_back([=] { flush_to_disk(folder); });
    steps.push_back([=] { write_index(/*final_names=*/true); });
    for (const StagedShard& shard : shards) steps.push_back([=] { fs::remove(shard.temporary); });
  }
  steps.push_back([=] { remove_stale_shards(folder, shards); });
  steps.push_back([=] { remove_leftovers(folder); });
  return steps;
}

}  // namespace automoe::hub
