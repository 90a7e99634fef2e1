#include "train/checkpoints.h"

#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <optional>

#include "automoe/error.h"
#include "core/file.h"
#include "core/json.h"
#include "core/log.h"

namespace automoe::train {
namespace fs = std::filesystem;
namespace {

constexpr std::string_view kPrefix = "checkpoint-";
constexpr std::string_view kRemoving = ".removing-";

std::optional<int64_t> step_in(std::string_view name) {
  if (!name.starts_with(kPrefix)) return std::nullopt;
  name.remove_prefix(kPrefix.size());
  int64_t step = 0;
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), step);
  if (error != std::errc() || end != name.data() + name.size() || step < 0) return std::nullopt;
  return step;
}

// ".checkpoint-5.tmp-<process>" is a save that never ended, ".removing-checkpoint-5" a removal.
bool is_leftover(const std::string& name) {
  if (name.starts_with(kRemoving)) return true;
  const std::string begin = text(".", kPrefix), mark = ".tmp-";
  const size_t at = name.find(mark);
  if (!name.starts_with(begin) || at == std::string::npos) return false;
  const int64_t writer = std::atoll(name.c_str() + at + mark.size());
  return writer == getpid() || !process_is_alive(writer);
}

}  // namespace

fs::path checkpoint_path(const fs::path& output_dir, int64_t step) {
  return output_dir / text(kPrefix, step);
}

std::string missing_in(const fs::path& checkpoint) {
  if (!fs::exists(checkpoint / kStateFile)) return text("it has no ", kStateFile);
  try {
    const Json files = require<Json>(read_json(checkpoint / kStateFile), "files");
    for (const auto& [name, bytes] : files.items()) {
      std::error_code absent;
      const uintmax_t found = fs::file_size(checkpoint / name, absent);
      if (absent) return text(name, " is missing");
      if (bytes != found) return text(name, " has ", found, " bytes instead of ", bytes.dump());
    }
  } catch (const ValueError& error) {
    return error.what();
  }
  return "";
}

std::vector<CheckpointFolder> list_checkpoints(const fs::path& output_dir) {
  std::vector<CheckpointFolder> found;
  if (!fs::exists(output_dir)) return found;
  for (const auto& entry : fs::directory_iterator(output_dir))
    if (const auto step = step_in(entry.path().filename().string()); step && entry.is_directory())
      found.push_back({*step, entry.path()});
  std::sort(found.begin(), found.end(),
            [](const auto& a, const auto& b) { return a.step < b.step; });
  return found;
}

void remove_leftovers(const fs::path& output_dir) {
  if (!fs::exists(output_dir)) return;
  std::vector<fs::path> leftovers;
  for (const auto& entry : fs::directory_iterator(output_dir))
    if (is_leftover(entry.path().filename().string())) leftovers.push_back(entry.path());
  for (const fs::path& leftover : leftovers) {
    fs::remove_all(leftover);
    warn_once(text("removed ", leftover.string(), ", which a killed process left"));
  }
}

void keep_newest(const fs::path& output_dir, int64_t limit) {
  if (limit <= 0) return;
  const std::vector<CheckpointFolder> all = list_checkpoints(output_dir);
  for (int64_t i = 0; i + limit < int64_t(all.size()); ++i) {
    const fs::path doomed = output_dir / text(kRemoving, all[i].path.filename().string());
    fs::remove_all(doomed);
    fs::rename(all[i].path, doomed);
    fs::remove_all(doomed);
  }
}

std::vector<std::pair<std::string, uint64_t>> files_of(const fs::path& folder) {
  std::vector<std::pair<std::string, uint64_t>> files;
  for (const auto& entry : fs::recursive_directory_iterator(folder))
    if (entry.is_regular_file())
      files.emplace_back(entry.path().lexically_relative(folder).string(), entry.file_size());
  std::sort(files.begin(), files.end());
  return files;
}

}  // namespace automoe::train
