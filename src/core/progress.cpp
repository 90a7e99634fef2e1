#include "core/progress.h"

#include <unistd.h>

#include <cmath>
#include <cstdlib>
#include <iomanip>
#include <iostream>
#include <sstream>

namespace automoe {
namespace {

bool is_terminal() { return isatty(STDERR_FILENO) != 0; }

ByteProgress::Tell tell_on_stderr() {
  const char* disabled = std::getenv("HF_HUB_DISABLE_PROGRESS_BARS");
  if (disabled != nullptr && *disabled != '\0' && std::string(disabled) != "0") return {};
  if (!is_terminal()) return [](const std::string& line) { std::cerr << line + "\n"; };
  return [](const std::string& line) {
    std::cerr << "\r\033[K" + line + (line.ends_with(" 0 s left") ? "\n" : "") << std::flush;
  };
}

}  // namespace

ByteProgress::ByteProgress(std::string what, uint64_t total_bytes, Tell tell,
                           Clock::duration interval)
    : what_(std::move(what)),
      total_bytes_(total_bytes),
      tell_(std::move(tell)),
      interval_(interval) {}

ByteProgress::ByteProgress(std::string what, uint64_t total_bytes)
    : ByteProgress(std::move(what), total_bytes, tell_on_stderr(),
                   std::chrono::seconds(is_terminal() ? 1 : 10)) {}

void ByteProgress::add(uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  done_bytes_ += bytes;
  const auto now = Clock::now();
  const bool was_told = told_ != begin_, is_last = done_bytes_ >= total_bytes_;
  if (!tell_ || (now - told_ < interval_ && !(is_last && was_told))) return;
  told_ = now;
  tell_(line(now));
}

std::string ByteProgress::line(Clock::time_point now) const {
  const double seconds = std::chrono::duration<double>(now - begin_).count();
  const double rate = double(done_bytes_) / seconds;
  const uint64_t left = total_bytes_ > done_bytes_ ? total_bytes_ - done_bytes_ : 0;
  std::ostringstream out;
  out << what_ << ": " << std::fixed << std::setprecision(1) << double(done_bytes_) / 1e9 << " of "
      << double(total_bytes_) / 1e9 << " GB, " << std::setprecision(2) << rate / 1e9 << " GB/s, "
      << std::setprecision(0) << std::ceil(double(left) / rate) << " s left";
  return out.str();
}

}  // namespace automoe
