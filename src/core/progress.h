// A line that tells how a long transfer of bytes goes on.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <mutex>
#include <string>

namespace automoe {

/// Tells share, rate and time left, from any thread. Nothing is told in the first `interval`, so
/// that short transfers stay quiet.
class ByteProgress {
 public:
  using Clock = std::chrono::steady_clock;
  using Tell = std::function<void(const std::string& line)>;

  ByteProgress(std::string what, uint64_t total_bytes, Tell tell, Clock::duration interval);

  /// To stderr: a line drawn over once a second on a terminal, else a new one every ten seconds;
  /// nothing where HF_HUB_DISABLE_PROGRESS_BARS is set.
  ByteProgress(std::string what, uint64_t total_bytes);

  void add(uint64_t bytes);

 private:
  std::string line(Clock::time_point now) const;

  const std::string what_;
  const uint64_t total_bytes_;
  const Tell tell_;
  const Clock::duration interval_;
  std::mutex mutex_;
  uint64_t done_bytes_ = 0;
  Clock::time_point begin_ = Clock::now(), told_ = begin_;
};

}  // namespace automoe
