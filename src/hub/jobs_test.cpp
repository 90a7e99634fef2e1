#include "hub/jobs.h"

#include <atomic>
#include <vector>

#include "hub/test_support.h"

namespace automoe::hub {
namespace {

TEST(Jobs, EachRunsOnceWhateverTheNumberOfThreads) {
  for (const int threads : {1, 3, 20}) {
    std::vector<std::atomic<int>> runs(13);
    run_jobs(runs.size(), threads, [&](size_t i) { ++runs[i]; });
    for (const auto& count : runs) EXPECT_EQ(count, 1);
  }
  run_jobs(0, 4, [](size_t) { FAIL(); });
}

TEST(Jobs, TheFirstExceptionArrivesAndNoFurtherJobStarts) {
  std::atomic<int> started{0};
  EXPECT_SAYS(message_of([&] {
                run_jobs(1000, 2, [&](size_t i) {
                  ++started;
                  if (i == 5) throw ValueError("five");
                });
              }),
              "five");
  EXPECT_GE(started, 6);
  EXPECT_EQ(message_of([&] {
              run_jobs(9, 1, [&](size_t i) {
                if (i > 2) throw ValueError(text(i));
              });
            }),
            "3");
}

}  // namespace
}  // namespace automoe::hub
