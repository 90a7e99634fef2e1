#include "blocks/rope.h"

#include <gtest/gtest.h>

#include "automoe/error.h"

namespace automoe::blocks {
namespace {

double angle(const Rope& rope, int64_t position,
             int64_t i) {  // atan2 of the tables, small angles only
  const RopeTables t = rope.tables(at::tensor({position}), at::kFloat);
  return std::atan2(t.sin[0][i].item<double>(), t.cos[0][i].item<double>());
}

TEST(Rope, DefaultIsThetaToTheMinusTwoIOverD) {
  const Rope rope({{"rope_type", "default"}, {"rope_theta", 10000.0}}, 8, 128);
  for (int64_t i = 0; i < 4; ++i)
    EXPECT_NEAR(angle(rope, 1, i), std::pow(10000.0, -2.0 * i / 8), 1e-6);
}

TEST(Rope, YarnOfGptOssScalesTheTablesAndKeepsFastFrequencies) {
  const Rope rope({{"rope_type", "yarn"},
                   {"rope_theta", 150000.0},
                   {"factor", 32.0},
                   {"beta_fast", 32.0},
                   {"beta_slow", 1.0},
                   {"truncate", false},
                   {"original_max_position_embeddings", 4096}},
                  64, 131072);
  const RopeTables t = rope.tables(at::tensor({int64_t{0}}), at::kFloat);
  EXPECT_NEAR(t.cos[0][0].item<double>(), 1.346574, 1e-6);
  EXPECT_NEAR(angle(rope, 1, 0), 1.0, 1e-6);  // kept: below the ramp
  EXPECT_NEAR(angle(rope, 1, 31), std::pow(150000.0, -62.0 / 64) / 32,
              1e-9);  // stretched: above it
}

TEST(Rope, Llama3KeepsShortWavelengthsAndStretchesLongOnes) {
  const Rope rope({{"rope_type", "llama3"},
                   {"rope_theta", 500000.0},
                   {"factor", 8.0},
                   {"low_freq_factor", 1.0},
                   {"high_freq_factor", 4.0},
                   {"original_max_position_embeddings", 8192}},
                  128, 131072);
  EXPECT_NEAR(angle(rope, 1, 0), 1.0, 1e-6);
  EXPECT_NEAR(angle(rope, 1, 63), std::pow(500000.0, -126.0 / 128) / 8, 1e-10);
}

TEST(Rope, DynamicGrowsOnlyBeyondTheMaximumLength) {
  const Json json = {{"rope_type", "dynamic"}, {"rope_theta", 10000.0}, {"factor", 2.0}};
  const Rope rope(json, 8, 16);
  const auto slowest = [&](int64_t last) {
    return rope.tables(at::tensor({int64_t{1}, last}), at::kFloat).sin[0][3].item<double>();
  };
  EXPECT_EQ(slowest(15), slowest(2));
  EXPECT_LT(slowest(31), slowest(15));
}

TEST(Rope, ConfigsInTheOldSpellingReadTheSame) {
  const Json old_style = {{"rope_theta", 5e5},
                          {"max_position_embeddings", 64},
                          {"rope_scaling", {{"type", "linear"}, {"factor", 4.0}}}};
  const Json new_style = {
      {"max_position_embeddings", 64},
      {"rope_parameters", {{"rope_type", "linear"}, {"rope_theta", 5e5}, {"factor", 4.0}}}};
  const Rope a(rope_parameters(old_style, 1e4), 8, 64), b(rope_parameters(new_style, 1e4), 8, 64);
  EXPECT_EQ(angle(a, 1, 1), angle(b, 1, 1));
  EXPECT_NEAR(angle(a, 1, 0), 0.25, 1e-6);
  EXPECT_EQ(rope_parameters(Json::object(), 1e6)["rope_theta"].get<double>(), 1e6);
}

TEST(SoftmaxFactor, IsThatOfDeepSeekV3AndKimiK2) {
  const Json deepseek = {{"rope_type", "yarn"}, {"factor", 40.0}, {"mscale_all_dim", 1.0}};
  EXPECT_NEAR(softmax_factor(deepseek) / std::sqrt(192.0), 0.1352338, 1e-7);
  const Json kimi = {{"rope_type", "yarn"}, {"factor", 64.0}, {"mscale_all_dim", 1.0}};
  EXPECT_NEAR(softmax_factor(kimi) / std::sqrt(192.0), 0.144680, 1e-6);
}

TEST(SoftmaxFactor, IsOneWithoutStretchOrKey) {
  EXPECT_EQ(softmax_factor({{"rope_type", "default"}, {"mscale_all_dim", 1.0}}), 1);
  EXPECT_EQ(softmax_factor({{"rope_type", "yarn"}, {"factor", 40.0}, {"mscale", 1.0}}), 1);
  EXPECT_EQ(softmax_factor({{"rope_type", "yarn"}, {"factor", 0.5}, {"mscale_all_dim", 1.0}}), 1);
}

TEST(Rope, UnknownTypesAreNamed) {
  EXPECT_THROW(Rope({{"rope_type", "spiral"}, {"rope_theta", 1.0}}, 8, 16), ValueError);
}

}  // namespace
}  // namespace automoe::blocks
