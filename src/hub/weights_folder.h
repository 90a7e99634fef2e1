// The safetensors files of a checkpoint folder, opened and checked against their index.
#pragma once

#include <deque>
#include <filesystem>
#include <map>
#include <string>
#include <string_view>

#include "hub/safetensors.h"

namespace automoe::hub {

struct FileTensor {
  const File* file;
  const TensorEntry* entry;

  std::string file_name() const { return file->path().filename().string(); }
};

class WeightsFolder {
 public:
  /// Opens model.safetensors, else the files that model.safetensors.index.json names; `folder` may
  /// also be one safetensors file. Throws ValueError naming file and tensor: neither is there, a
  /// file is missing or damaged, the index names a tensor that its file lacks, a tensor lies in two
  /// files.
  explicit WeightsFolder(const std::filesystem::path& folder);

  /// Every tensor of every file, by name; valid as long as this object.
  const std::map<std::string_view, FileTensor>& tensors() const { return tensors_; }

 private:
  void open(const std::filesystem::path& path);
  void open_indexed(const std::filesystem::path& index);

  std::deque<SafetensorsFile> files_;
  std::map<std::string_view, FileTensor> tensors_;
};

}  // namespace automoe::hub
