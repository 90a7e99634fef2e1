// Files and folders that appear whole or not at all, positioned reading and writing, free space.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>

namespace automoe {

/// A folder written under a temporary name beside `target`; commit() flushes it to disk and puts it
/// in place, replacing `target`: after a crash `target` is the old folder or the new one. Without
/// commit() the destructor removes it. What dead processes left beside `target` is removed first.
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

/// Writes `content` to `path` through a temporary file, fsync and rename; the rename is on disk
/// when this returns.
void write_file_atomically(const std::filesystem::path& path, std::string_view content);

/// fsyncs a file or a folder. Throws RuntimeError naming it.
void flush_to_disk(const std::filesystem::path& path);

/// Throws RuntimeError naming the bytes needed and free if `folder`'s file system lacks the room.
void require_free_space(const std::filesystem::path& folder, uint64_t needed_bytes);

/// Throws RuntimeError if this process may not write a file of that size (ulimit -f). Checked
/// beforehand because the system otherwise ends the process with SIGXFSZ.
void require_file_size_allowed(const std::filesystem::path& path, uint64_t bytes);

/// Whether process `id` runs on this machine. A writer's id in a temporary name tells what a crash
/// left.
bool process_is_alive(int64_t id);

/// A file open for reading or writing at given places; safe to share between threads.
/// Errors name the path.
class File {
 public:
  static File open(const std::filesystem::path& path);    // ValueError if it cannot be read
  static File create(const std::filesystem::path& path);  // empty, or emptied
  ~File();
  File(File&& other) noexcept;
  File& operator=(File&& other) noexcept;

  const std::filesystem::path& path() const { return path_; }
  uint64_t size() const;
  /// Fills `out` from byte `offset`; ValueError if the file ends before.
  void read_at(uint64_t offset, std::span<std::byte> out) const;
  /// Tells the system that these bytes will be read soon; returns at once.
  void read_ahead(uint64_t offset, uint64_t bytes) const;
  void write_at(uint64_t offset, std::span<const std::byte> bytes) const;
  /// Claims the room for `bytes` at once where the file system can, so that a full disk shows
  /// early.
  void reserve(uint64_t bytes) const;
  void flush() const;

 private:
  File(std::filesystem::path path, int handle);
  std::filesystem::path path_;
  int handle_ = -1;
};

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
