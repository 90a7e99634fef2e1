#include "train/schedule.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numbers>

namespace automoe::train {
namespace {

Schedule schedule(const std::string& type, double min_lr_ratio = 0.0) {
  return {.type = type,
          .total_steps = 50,
          .warmup_steps = 7,
          .decay_steps = 13,
          .min_lr_ratio = min_lr_ratio};
}

TEST(Schedule, WarmUpRisesLinearlyFromZeroInEveryType) {
  for (const std::string& type : schedule_names())
    for (int64_t step = 0; step < 7; ++step)
      EXPECT_DOUBLE_EQ(schedule(type).factor(step), double(step) / 7) << type;
}

TEST(Schedule, ConstantStaysAtOne) {
  for (int64_t step = 7; step <= 50; ++step) EXPECT_EQ(schedule("constant").factor(step), 1.0);
}

TEST(Schedule, LinearFallsToZeroAtTheEnd) {
  for (int64_t step = 7; step <= 50; ++step)
    EXPECT_NEAR(schedule("linear").factor(step), double(50 - step) / 43, 1e-15);
}

TEST(Schedule, CosineFallsAlongHalfAWaveToTheFloor) {
  for (const double floor : {0.0, 0.1})
    for (int64_t step = 7; step <= 50; ++step) {
      const double wave = 0.5 * (1 + std::cos(std::numbers::pi * double(step - 7) / 43));
      EXPECT_NEAR(schedule("cosine", floor).factor(step), floor + (1 - floor) * wave, 1e-15);
    }
}

TEST(Schedule, WarmupStableDecayHoldsThenFollowsACosineToTheFloor) {
  const Schedule wsd = schedule("warmup_stable_decay", 0.2);
  EXPECT_DOUBLE_EQ(wsd.factor(0), 0.2);
  EXPECT_DOUBLE_EQ(wsd.factor(3), 0.2 + 0.8 * 3.0 / 7.0);
  for (int64_t step = 7; step <= 37; ++step) EXPECT_EQ(wsd.factor(step), 1.0);
  for (int64_t step = 38; step < 50; ++step)
    EXPECT_NEAR(wsd.factor(step),
                0.2 + 0.4 * (1 + std::cos(std::numbers::pi * double(step - 37) / 13)), 1e-15);
  EXPECT_EQ(wsd.factor(50), 0.2);
}

TEST(Schedule, NoStepsToDecayOrWarmUpIsFine) {
  const Schedule bare{.type = "linear", .total_steps = 1};
  EXPECT_EQ(bare.factor(0), 1.0);
  const Schedule held{.type = "warmup_stable_decay", .total_steps = 5, .decay_steps = 0};
  EXPECT_EQ(held.factor(4), 1.0);
}

}  // namespace
}  // namespace automoe::train
