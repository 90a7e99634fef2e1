#include "hub/weights_folder.h"

#include <set>
#include <vector>

#include "automoe/error.h"
#include "core/text.h"
#include "hub/shard_index.h"

namespace automoe::hub {
namespace fs = std::filesystem;
namespace {

std::string other_weights_of(const fs::path& folder) {
  std::vector<std::string> found;
  for (const auto& entry : fs::directory_iterator(folder)) {
    const std::string extension = entry.path().extension().string();
    if (extension == ".safetensors" || extension == ".bin" || extension == ".pth" ||
        extension == ".gguf")
      found.push_back(entry.path().filename().string());
    if (found.size() == 8) break;
  }
  return found.empty() ? "" : "; it holds " + join(found) + ": convert these to safetensors first";
}

std::string read_text(const fs::path& path) {
  const File file = File::open(path);
  std::string content(file.size(), '\0');
  file.read_at(0, std::as_writable_bytes(std::span(content)));
  return content;
}

}  // namespace

WeightsFolder::WeightsFolder(const fs::path& folder) {
  if (fs::is_regular_file(folder)) {
    open(folder);
    return;
  }
  AUTOMOE_CHECK_VALUE(fs::is_directory(folder), "[checkpoint] ", folder.string(),
                      " is not a folder");
  if (fs::exists(folder / kWeightsFile)) {
    open(folder / kWeightsFile);
    return;
  }
  AUTOMOE_CHECK_VALUE(fs::exists(folder / kIndexFile), "[checkpoint] ", folder.string(),
                      " has neither ", kWeightsFile, " nor ", kIndexFile, other_weights_of(folder));
  open_indexed(folder / kIndexFile);
}

void WeightsFolder::open(const fs::path& path) {
  const SafetensorsFile& file = files_.emplace_back(path);
  for (const TensorEntry& entry : file.tensors()) {
    const auto [place, is_new] = tensors_.emplace(entry.name, FileTensor{&file.file(), &entry});
    AUTOMOE_CHECK_VALUE(is_new, "[checkpoint] tensor '", entry.name, "' lies both in ",
                        place->second.file->path().string(), " and in ", path.string());
  }
}

void WeightsFolder::open_indexed(const fs::path& index) {
  const auto weight_map = parse_index(read_text(index), index.string());
  std::set<std::string> names;
  for (const auto& [tensor, file] : weight_map) {
    if (!names.insert(file).second) continue;
    const fs::path path = index.parent_path() / file;
    AUTOMOE_CHECK_VALUE(fs::exists(path), "[checkpoint] ", path.string(), " is missing; ",
                        index.string(), " expects tensor '", tensor, "' in it");
    open(path);
  }
  for (const auto& [tensor, file] : weight_map) {
    const auto found = tensors_.find(tensor);
    AUTOMOE_CHECK_VALUE(found != tensors_.end() && found->second.file_name() == file,
                        "[checkpoint] ", index.string(), " expects tensor '", tensor, "' in ", file,
                        ", which lacks it",
                        found == tensors_.end() ? "" : "; it lies in " + found->second.file_name());
  }
}

}  // namespace automoe::hub
