// A batch of independent jobs on several threads.
#pragma once

#include <cstddef>
#include <functional>

namespace automoe::hub {

/// `threads` if positive, else one per core but at most 8.
int num_threads_for(int threads);

/// Runs job(0) ... job(count - 1), each once, on up to `threads` threads, and returns when all are
/// done. After an exception no further job starts; the first one is thrown here. Jobs run below
/// autograd.
void run_jobs(size_t count, int threads, const std::function<void(size_t)>& job);

}  // namespace automoe::hub
