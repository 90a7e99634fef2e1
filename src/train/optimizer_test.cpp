#include "train/optimizer.h"

#include "train/test_support.h"

namespace automoe::train {
namespace {

at::Tensor leaf(const at::Tensor& tensor) { return tensor.clone().requires_grad_(true); }

void set_grad(const at::Tensor& parameter, double value) {
  parameter.mutable_grad() = at::full_like(parameter.detach(), value);
}

double mean_movement(const at::Tensor& from_one) {
  return (1.0 - from_one.to(at::kDouble)).mean().item<double>();
}

at::Tensor state_named(const Optimizer& optimizer, const std::string& name) {
  for (const NamedTensor& entry : optimizer.state())
    if (entry.name == name) return entry.tensor;
  return {};
}

TEST(Optimizer, Bf16WeightsMoveUnderALearningRateTooSmallForBf16) {
  const at::Tensor weights = leaf(at::ones({64, 64}, at::kBFloat16));
  Optimizer optimizer({{"w", weights}}, {});
  for (int step = 0; step < 1000; ++step) {
    set_grad(weights, 1.0);
    optimizer.step(1e-5, {});
  }
  EXPECT_NEAR(mean_movement(state_named(optimizer, "master.w")), 0.01, 0.001);
  EXPECT_LT(weights.to(at::kFloat).max().item<double>(), 1.0);
}

TEST(Optimizer, OnlyMatricesDecayNotNormsNorBiasesThoseOfExpertsIncluded) {
  const at::Tensor matrix = leaf(at::ones({3, 5})), norm = leaf(at::ones({5})),
                   biases = leaf(at::ones({3, 5}));
  Optimizer optimizer(
      {{"experts.down_proj", matrix}, {"norm.weight", norm}, {"experts.down_proj_bias", biases}},
      {.weight_decay = 0.1});
  for (const at::Tensor& parameter : {matrix, norm, biases}) set_grad(parameter, 0.0);
  optimizer.step(0.5, {});
  EXPECT_LT(matrix.max().item<double>(), 0.99);
  EXPECT_TRUE(norm.eq(1).all().item<bool>() && biases.eq(1).all().item<bool>());
}

TEST(Optimizer, Bf16WeightsDecayUnderALearningRateTooSmallForBf16) {
  const at::Tensor weights = leaf(at::ones({64, 64}, at::kBFloat16));
  Optimizer optimizer({{"w", weights}}, {.weight_decay = 0.1});
  for (int step = 0; step < 1000; ++step) {
    set_grad(weights, 0.0);
    optimizer.step(1e-5, {});
  }
  EXPECT_NEAR(mean_movement(state_named(optimizer, "master.w")), 0.001, 0.0001);
}

TEST(Optimizer, StochasticRoundingNeedsNoMasterAndTwoBytesAMoment) {
  const at::Tensor weights = leaf(at::ones({64, 64}, at::kBFloat16)), adapter = leaf(at::ones({8}));
  Optimizer optimizer({{"w", weights}, {"a", adapter}}, {.stochastic_rounding = true, .seed = 3});
  for (int step = 0; step < 1000; ++step) {
    set_grad(weights, 1.0);
    optimizer.step(1e-5, {});
  }
  EXPECT_NEAR(mean_movement(weights), 0.01, 0.001);
  EXPECT_FALSE(state_named(optimizer, "master.w").defined());
  EXPECT_EQ(state_named(optimizer, "exp_avg.w").scalar_type(), at::kBFloat16);
  EXPECT_EQ(state_named(optimizer, "exp_avg.a").scalar_type(), at::kFloat);
}

TEST(Optimizer, AnFp32ParameterHasNoSecondCopy) {
  const at::Tensor weights = leaf(at::ones({3, 5}));
  const Optimizer optimizer({{"w", weights}}, {});
  EXPECT_EQ(optimizer.state().size(), 2u);
  EXPECT_FALSE(state_named(optimizer, "master.w").defined());
}

TEST(Optimizer, NormsAndBiasesTakeNoDecayAndParametersWithoutGradientStay) {
  const at::Tensor matrix = leaf(at::ones({2, 3})), vector = leaf(at::ones({3})),
                   unused = leaf(at::ones({2, 3}));
  Optimizer optimizer({{"m", matrix}, {"v", vector}, {"u", unused}}, {.weight_decay = 0.5});
  set_grad(matrix, 0.0);
  set_grad(vector, 0.0);
  optimizer.step(0.1, {});
  EXPECT_FLOAT_EQ(matrix.max().item<float>(), 0.95f);
  EXPECT_EQ(vector.min().item<float>(), 1.0f);
  EXPECT_EQ(unused.min().item<float>(), 1.0f);
}

TEST(Optimizer, ClearedGradientsAreFreed) {
  const at::Tensor weights = leaf(at::ones({2, 2}));
  Optimizer optimizer({{"w", weights}}, {});
  set_grad(weights, 1.0);
  EXPECT_TRUE(optimizer.grads()[0].defined());
  optimizer.clear_grads();
  EXPECT_FALSE(weights.grad().defined());
}

TEST(Optimizer, ADoubleParameterIsRefusedByName) {
  EXPECT_SAYS(message_of([] {
                Optimizer({{"w", at::ones({2}, at::kDouble)}}, {});
              }),
              "w is Double");
}

}  // namespace
}  // namespace automoe::train
