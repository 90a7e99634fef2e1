#include "train/signals.h"

namespace automoe::train {
namespace {

volatile std::sig_atomic_t last_signal = 0;

void note(int signal) { last_signal = signal; }

}  // namespace

StopSignals::StopSignals() {
  last_signal = 0;
  struct sigaction action {};
  action.sa_handler = note;
  sigemptyset(&action.sa_mask);
  action.sa_flags = SA_RESTART;
  sigaction(SIGTERM, &action, &old_term_);
  action.sa_flags |= SA_RESETHAND;
  sigaction(SIGINT, &action, &old_int_);
}

StopSignals::~StopSignals() {
  sigaction(SIGTERM, &old_term_, nullptr);
  sigaction(SIGINT, &old_int_, nullptr);
}

int StopSignals::received() const { return last_signal; }

}  // namespace automoe::train
