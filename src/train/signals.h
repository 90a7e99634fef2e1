// SIGTERM and SIGINT as a request to stop at the next step.
#pragma once

#include <csignal>

namespace automoe::train {

/// While alive, SIGTERM and SIGINT are noted instead of ending the process; a second SIGINT ends
/// it. The handlers of before are restored at the end. One at a time in a process.
class StopSignals {
 public:
  StopSignals();
  ~StopSignals();
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;

  /// The signal that came, or 0.
  int received() const;

 private:
  struct sigaction old_term_ {
  }, old_int_{};
};

}  // namespace automoe::train
