#include "hub/jobs.h"

#include <ATen/core/LegacyTypeDispatch.h>

#include <algorithm>
#include <atomic>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

namespace automoe::hub {

int num_threads_for(int threads) {
  return threads > 0 ? threads : std::clamp(int(std::thread::hardware_concurrency()), 1, 8);
}

void run_jobs(size_t count, int threads, const std::function<void(size_t)>& job) {
  std::atomic<size_t> next{0};
  std::mutex mutex;
  std::exception_ptr first;
  const auto work = [&] {
    // Thread-local: parameters that require gradients are filled like any other memory.
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    for (size_t i; (i = next.fetch_add(1)) < count;) {
      try {
        job(i);
      } catch (...) {
        const std::lock_guard lock(mutex);
        if (!first) first = std::current_exception();
        next = count;
      }
    }
  };
  std::vector<std::jthread> others;
  for (size_t i = 1; i < std::min(size_t(threads), count); ++i) others.emplace_back(work);
  work();
  others.clear();  // joins
  if (first) std::rethrow_exception(first);
}

}  // namespace automoe::hub
