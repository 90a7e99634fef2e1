#include "core/file.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "automoe/error.h"

namespace automoe {
namespace fs = std::filesystem;
namespace {

fs::path without_slash(const fs::path& path) {
  return path.has_filename() ? path : path.parent_path();
}

fs::path parent_of(const fs::path& path) {
  const fs::path parent = without_slash(path).parent_path();
  return parent.empty() ? fs::path(".") : parent;
}

// ".name.tmp-": what temporaries beside `target` begin with; the writer's process id follows.
std::string temporary_prefix(const fs::path& target) {
  return text(".", without_slash(target).filename().string(), ".tmp-");
}

// Beside the target, so that the rename stays on one file system.
fs::path temporary_beside(const fs::path& target) {
  return parent_of(target) / text(temporary_prefix(target), getpid());
}

// A name with this process's own id is stale too: ids come back, in containers nearly always.
void remove_stale_temporaries(const fs::path& target) {
  const std::string prefix = temporary_prefix(target);
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(parent_of(target), ignored)) {
    const std::string name = entry.path().filename().string();
    if (!name.starts_with(prefix)) continue;
    const int64_t writer = std::atoll(name.c_str() + prefix.size());
    if (writer == getpid() || !process_is_alive(writer)) fs::remove_all(entry.path(), ignored);
  }
}

bool exchange(const fs::path& a, const fs::path& b) {
#ifdef RENAME_EXCHANGE
  return ::renameat2(AT_FDCWD, a.c_str(), AT_FDCWD, b.c_str(), RENAME_EXCHANGE) == 0;
#else
  return false;
#endif
}

// Where the target goes for a moment on file systems that cannot exchange two folders.
fs::path set_aside(const fs::path& target) {
  return parent_of(target) / text(".", without_slash(target).filename().string(), ".old");
}

}  // namespace

StagedFolder::StagedFolder(fs::path target)
    : target_(std::move(target)), path_(temporary_beside(target_)) {
  fs::create_directories(parent_of(target_));
  if (fs::exists(set_aside(target_))) {  // a crash came between the two renames of commit()
    if (fs::exists(target_))
      fs::remove_all(set_aside(target_));
    else
      fs::rename(set_aside(target_), target_);
  }
  remove_stale_temporaries(target_);
  fs::create_directory(path_);
}

StagedFolder::~StagedFolder() {
  std::error_code ignored;
  if (!path_.empty()) fs::remove_all(path_, ignored);
}

void StagedFolder::commit() {
  for (const auto& entry : fs::recursive_directory_iterator(path_)) flush_to_disk(entry.path());
  flush_to_disk(path_);
  const fs::path target = without_slash(target_);
  if (!fs::exists(target)) {
    fs::rename(path_, target);
    path_.clear();
  } else if (!exchange(path_, target)) {
    fs::rename(target, set_aside(target));
    fs::rename(path_, target);
    path_ = set_aside(target);
  }
  flush_to_disk(parent_of(target));
  if (!path_.empty()) fs::remove_all(path_);  // the old folder by now
  path_.clear();
}

void write_file_atomically(const fs::path& path, std::string_view content) {
  remove_stale_temporaries(path);
  require_file_size_allowed(path, content.size());
  const fs::path temporary = temporary_beside(path);
  try {
    const File file = File::create(temporary);
    file.write_at(0, std::as_bytes(std::span(content)));
    file.flush();
    fs::rename(temporary, path);
  } catch (...) {
    ::unlink(temporary.c_str());
    throw;
  }
  flush_to_disk(parent_of(path));
}

void flush_to_disk(const fs::path& path) {
  const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  AUTOMOE_CHECK(file >= 0, "[file] cannot open ", path.string(), ": ", std::strerror(errno));
  const int failed = ::fsync(file);
  const int error = errno;
  ::close(file);
  AUTOMOE_CHECK(failed == 0 || error == EINVAL, "[file] cannot flush ", path.string(),
                " to disk: ", std::strerror(error));
}

void require_free_space(const fs::path& folder, uint64_t needed_bytes) {
  fs::path existing = fs::absolute(folder);
  while (!fs::exists(existing)) existing = existing.parent_path();
  const uint64_t free_bytes = fs::space(existing).available;
  AUTOMOE_CHECK(needed_bytes <= free_bytes, "[file] not enough room in ", existing.string(), ": ",
                needed_bytes, " bytes are needed, ", free_bytes,
                " are free; free some space or choose another folder");
}

void require_file_size_allowed(const fs::path& path, uint64_t bytes) {
  rlimit limit{};
  if (::getrlimit(RLIMIT_FSIZE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return;
  AUTOMOE_CHECK(bytes <= limit.rlim_cur, "[file] cannot write ", path.string(), ": ", bytes,
                " bytes are needed, this process may write files of at most ", limit.rlim_cur,
                " bytes; raise the limit (ulimit -f)");
}

bool process_is_alive(int64_t id) {
  return id > 0 && (::kill(pid_t(id), 0) == 0 || errno == EPERM);
}

File::File(fs::path path, int handle) : path_(std::move(path)), handle_(handle) {}

File File::open(const fs::path& path) {
  const int handle = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  AUTOMOE_CHECK_VALUE(handle >= 0, "[file] cannot open ", path.string(), ": ",
                      std::strerror(errno));
  return File(path, handle);
}

File File::create(const fs::path& path) {
  const int handle = ::open(path.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  AUTOMOE_CHECK(handle >= 0, "[file] cannot create ", path.string(), ": ", std::strerror(errno));
  return File(path, handle);
}

File::~File() {
  if (handle_ >= 0) ::close(handle_);
}

File::File(File&& other) noexcept
    : path_(std::move(other.path_)), handle_(std::exchange(other.handle_, -1)) {}

File& File::operator=(File&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(handle_, other.handle_);
  return *this;
}

uint64_t File::size() const {
  struct stat info {};
  AUTOMOE_CHECK(::fstat(handle_, &info) == 0, "[file] cannot examine ", path_.string(), ": ",
                std::strerror(errno));
  return uint64_t(info.st_size);
}

void File::read_at(uint64_t offset, std::span<std::byte> out) const {
  while (!out.empty()) {
    const ssize_t got = ::pread(handle_, out.data(), out.size(), off_t(offset));
    if (got < 0 && errno == EINTR) continue;
    AUTOMOE_CHECK(got >= 0, "[file] cannot read ", path_.string(), ": ", std::strerror(errno));
    AUTOMOE_CHECK_VALUE(got > 0, "[file] ", path_.string(), " is truncated: it ends at byte ",
                        offset, ", ", out.size(), " more were expected");
    offset += uint64_t(got);
    out = out.subspan(size_t(got));
  }
}

void File::read_ahead(uint64_t offset, uint64_t bytes) const {
  ::posix_fadvise(handle_, off_t(offset), off_t(bytes), POSIX_FADV_WILLNEED);
}

void File::write_at(uint64_t offset, std::span<const std::byte> bytes) const {
  while (!bytes.empty()) {
    const ssize_t put = ::pwrite(handle_, bytes.data(), bytes.size(), off_t(offset));
    if (put < 0 && errno == EINTR) continue;
    AUTOMOE_CHECK(put >= 0, "[file] cannot write ", path_.string(), ": ", std::strerror(errno));
    offset += uint64_t(put);
    bytes = bytes.subspan(size_t(put));
  }
}

void File::reserve(uint64_t bytes) const {
  if (bytes == 0 || ::fallocate(handle_, 0, 0, off_t(bytes)) == 0) return;
  AUTOMOE_CHECK(errno != ENOSPC && errno != EDQUOT && errno != EFBIG, "[file] cannot write ",
                path_.string(), ": no room for its ", bytes, " bytes: ", std::strerror(errno));
}

void File::flush() const {
  AUTOMOE_CHECK(::fsync(handle_) == 0, "[file] cannot flush ", path_.string(),
                " to disk: ", std::strerror(errno));
}

MappedFile::MappedFile(const fs::path& path) {
  const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  AUTOMOE_CHECK_VALUE(file >= 0, "[file] cannot open ", path.string(), ": ", std::strerror(errno));
  struct stat info {};
  ::fstat(file, &info);
  size_ = size_t(info.st_size);
  void* mapped = size_ == 0 ? nullptr : ::mmap(nullptr, size_, PROT_READ, MAP_SHARED, file, 0);
  const int error = errno;
  ::close(file);
  AUTOMOE_CHECK(mapped != MAP_FAILED, "[file] cannot map ", path.string(), ": ",
                std::strerror(error));
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
