#include "core/progress.h"

#include <gtest/gtest.h>

#include <thread>
#include <vector>

#include "core/testing.h"

namespace automoe {
namespace {

using std::chrono::hours;
using std::chrono::nanoseconds;

TEST(ByteProgress, TellsShareRateAndTimeLeft) {
  std::vector<std::string> lines;
  ByteProgress progress(
      "loading x", 4'000'000'000, [&](const std::string& line) { lines.push_back(line); },
      nanoseconds(1));
  progress.add(1'000'000'000);
  progress.add(3'000'000'000);
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_TRUE(lines[0].starts_with("loading x: 1.0 of 4.0 GB, ")) << lines[0];
  EXPECT_SAYS(lines[0], " GB/s, ");
  EXPECT_TRUE(lines[1].ends_with(" GB/s, 0 s left")) << lines[1];
}

TEST(ByteProgress, ShortTransfersStayQuiet) {
  int told = 0;
  ByteProgress progress(
      "x", 10, [&](const std::string&) { ++told; }, hours(1));
  for (int i = 0; i < 10; ++i) progress.add(1);
  EXPECT_EQ(told, 0);
}

TEST(ByteProgress, CountsEveryByteOfEveryThread) {
  std::string last;
  ByteProgress progress(
      "x", 8'000'000'000, [&](const std::string& line) { last = line; }, nanoseconds(1));
  {
    std::vector<std::jthread> threads;
    for (int thread = 0; thread < 4; ++thread)
      threads.emplace_back([&] {
        for (int i = 0; i < 200; ++i) progress.add(10'000'000);
      });
  }
  EXPECT_SAYS(last, "8.0 of 8.0 GB");
}

}  // namespace
}  // namespace automoe
