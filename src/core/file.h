// Files that appear whole or not at all, and memory-mapped reading.
#pragma once

#include <cstddef>
#include <filesystem>
#include <span>
#include <string>

namespace automoe {

/// A folder written under a temporary name beside `target`; commit() flushes it to disk and renames
/// it into place, replacing `target`. Without commit() the destructor removes it.
class StagedFolder {
 public:
  explicit StagedFolder(std::filesystem::path target);
  ~StagedFolder();
  StagedFolder(const StagedFolder&) = delete;
  StagedFolder& operator=(const StagedFolder&) = delete;

  const std::filesystem::path& path() const { return path_; }
  void commit();

 private:
  std::filesystem::path target_, path_;
};

/// Writes `content` to `path` through a temporary file, fsync and rename.
void write_file_atomically(const std::filesystem::path& path, std::string_view content);

/// fsyncs a file or a folder. Throws RuntimeError naming it.
void flush_to_disk(const std::filesystem::path& path);

/// Throws RuntimeError naming the bytes needed and free if `folder`'s file system lacks the room.
void require_free_space(const std::filesystem::path& folder, uint64_t needed_bytes);

/// A read-only mapping of a whole file.
class MappedFile {
 public:
  MappedFile() = default;
  explicit MappedFile(const std::filesystem::path& path);
  ~MappedFile();
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;

  std::span<const std::byte> bytes() const { return {data_, size_}; }

 private:
  const std::byte* data_ = nullptr;
  size_t size_ = 0;
};

}  // namespace automoe
