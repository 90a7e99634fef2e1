#include "core/file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "automoe/error.h"

namespace automoe {
namespace fs = std::filesystem;
namespace {

// Beside the target, so that the rename stays on one file system; the process id keeps two writers apart.
fs::path temporary_beside(const fs::path& target) {
  const fs::path clean = target.has_filename() ? target : target.parent_path();
  return clean.parent_path() / ("." + clean.filename().string() + ".tmp-" + std::to_string(getpid()));
}

}  // namespace

StagedFolder::StagedFolder(fs::path target)
    : target_(std::move(target)), path_(temporary_beside(target_)) {
  fs::remove_all(path_);
  fs::create_directories(path_);
}

StagedFolder::~StagedFolder() {
  std::error_code ignored;
  if (!path_.empty()) fs::remove_all(path_, ignored);
}

void StagedFolder::commit() {
  for (const auto& entry : fs::recursive_directory_iterator(path_)) flush_to_disk(entry.path());
  flush_to_disk(path_);
  const fs::path old = path_.string() + ".old";
  const bool replaces = fs::exists(target_);
  if (replaces) fs::rename(target_, old);
  fs::rename(path_, target_);
  path_.clear();
  flush_to_disk(target_.has_parent_path() ? target_.parent_path() : fs::path("."));
  if (replaces) fs::remove_all(old);
}

void write_file_atomically(const fs::path& path, std::string_view content) {
  const fs::path temporary = temporary_beside(path);
  const int file = ::open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  AUTOMOE_CHECK(file >= 0, "[file] cannot create ", temporary.string(), ": ", std::strerror(errno));
  const char* at = content.data();
  size_t left = content.size();
  bool failed = false;
  while (left > 0 && !failed) {
    const ssize_t written = ::write(file, at, left);
    failed = written < 0;
    if (!failed) at += written, left -= size_t(written);
  }
  failed = ::fsync(file) != 0 || failed;
  const int error = errno;
  ::close(file);
  if (failed) {
    ::unlink(temporary.c_str());
    throw RuntimeError(text("[file] cannot write ", path.string(), ": ", std::strerror(error)));
  }
  fs::rename(temporary, path);
}

void flush_to_disk(const fs::path& path) {
  const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  AUTOMOE_CHECK(file >= 0, "[file] cannot open ", path.string(), ": ", std::strerror(errno));
  const int failed = ::fsync(file);
  ::close(file);
  AUTOMOE_CHECK(failed == 0 || errno == EINVAL, "[file] cannot flush ", path.string(), " to disk: ",
                std::strerror(errno));
}

void require_free_space(const fs::path& folder, uint64_t needed_bytes) {
  fs::path existing = fs::absolute(folder);
  while (!fs::exists(existing)) existing = existing.parent_path();
  const uint64_t free_bytes = fs::space(existing).available;
  AUTOMOE_CHECK(needed_bytes <= free_bytes, "[file] not enough room in ", existing.string(), ": ",
                needed_bytes, " bytes are needed, ", free_bytes,
                " are free; free some space or choose another folder");
}

MappedFile::MappedFile(const fs::path& path) {
  const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  AUTOMOE_CHECK_VALUE(file >= 0, "[file] cannot open ", path.string(), ": ", std::strerror(errno));
  struct stat info {};
  ::fstat(file, &info);
  size_ = size_t(info.st_size);
  void* mapped = size_ == 0 ? nullptr : ::mmap(nullptr, size_, PROT_READ, MAP_SHARED, file, 0);
  ::close(file);
  AUTOMOE_CHECK(mapped != MAP_FAILED, "[file] cannot map ", path.string(), ": ", std::strerror(errno));
  data_ = static_cast<const std::byte*>(mapped);
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) ::munmap(const_cast<std::byte*>(data_), size_);
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

}  // namespace automoe
