#include "moe/router.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "automoe/error.h"
#include "kernels/testing.h"

namespace automoe::moe {
namespace {

using kernels::random_tensor;

TEST(SoftmaxRouter, CountsSumToTokensTimesTopKAndRenormalisedWeightsToOne) {
  std::vector<ParameterSpec> specs;
  const SoftmaxRouter router(
      blocks::ParamScope(specs, ""),
      {.hidden = 6, .num_experts = 5, .top_k = 3, .normalize = true, .fp32_weights = false});
  const blocks::Params params({random_tensor({5, 6}, at::kCPU, 3)});
  const Routing routing = router.forward(params, random_tensor({11, 6}, at::kCPU, 4));
  EXPECT_EQ(count_tokens(routing.indices, 5).sum().item<int64_t>(), 33);
  EXPECT_LT((routing.weights.sum(1) - 1).abs().max().item<double>(), 1e-6);
}

TEST(SoftmaxRouter, NormalisedItIsTheSoftmaxOverTheLargestLogitsBiasIncluded) {
  std::vector<ParameterSpec> specs;
  const SoftmaxRouter router(blocks::ParamScope(specs, "router."), {.hidden = 6,
                                                                    .num_experts = 5,
                                                                    .top_k = 3,
                                                                    .normalize = true,
                                                                    .fp32_weights = false,
                                                                    .bias = true});
  ASSERT_EQ(specs.size(), 2u);
  EXPECT_EQ(specs[1].name, "router.bias");
  const Tensor x = random_tensor({11, 6}, at::kCPU, 4), weight = random_tensor({5, 6}, at::kCPU, 3);
  const Tensor bias = random_tensor({5}, at::kCPU, 5) * 3;
  const Routing routing = router.forward(blocks::Params({weight, bias}), x);
  const Tensor logits = at::linear(x, weight, bias);
  const auto [largest, indices] = logits.topk(3);
  EXPECT_TRUE(routing.logits.equal(logits));
  EXPECT_TRUE(routing.indices.equal(indices));
  EXPECT_LT(kernels::relative_error(routing.weights, largest.softmax(-1)), 1e-6);
}

TEST(SoftmaxRouter, ImpossibleTopKIsNamed) {
  std::vector<ParameterSpec> specs;
  const SoftmaxRouter::Options options{
      .hidden = 6, .num_experts = 4, .top_k = 5, .normalize = true, .fp32_weights = false};
  EXPECT_THROW(SoftmaxRouter(blocks::ParamScope(specs, ""), options), ValueError);
}

constexpr SigmoidRouter::Options kOptions{.hidden = 7,
                                          .num_experts = 12,
                                          .top_k = 3,
                                          .groups = 4,
                                          .top_groups = 2,
                                          .normalize = true,
                                          .scale = 2.5};

Routing run(const SigmoidRouter::Options& options, const Tensor& x, const Tensor& weight,
            const Tensor& bias) {
  std::vector<ParameterSpec> specs;
  const SigmoidRouter router(blocks::ParamScope(specs, "gate."), options);
  return router.forward(blocks::Params({weight, bias}), x);
}

// Numbers of the `count` largest of values, in ascending order.
std::vector<int64_t> largest(const std::vector<double>& values, int64_t count) {
  std::vector<int64_t> order(values.size());
  std::iota(order.begin(), order.end(), 0);
  std::ranges::sort(order, [&](int64_t a, int64_t b) { return values[a] > values[b]; });
  order.resize(count);
  std::ranges::sort(order);
  return order;
}

// The experts of one token by the paper's words. biased: one score an expert.
std::vector<int64_t> chosen_by_definition(std::vector<double> biased,
                                          const SigmoidRouter::Options& o) {
  const auto size = static_cast<int64_t>(biased.size()) / o.groups;
  std::vector<double> group_scores;
  for (int64_t g = 0; g < o.groups; ++g) {
    std::vector<double> group(biased.begin() + g * size, biased.begin() + (g + 1) * size);
    std::ranges::sort(group, std::greater<>());
    group_scores.push_back(group[0] + group[1]);
  }
  const std::vector<int64_t> kept = largest(group_scores, o.top_groups);
  for (size_t e = 0; e < biased.size(); ++e)
    if (std::ranges::find(kept, static_cast<int64_t>(e) / size) == kept.end())
      biased[e] = -std::numeric_limits<double>::infinity();
  return largest(biased, o.top_k);
}

std::vector<double> list(const Tensor& x) {
  const Tensor flat = x.to(at::kDouble).contiguous();
  return {flat.data_ptr<double>(), flat.data_ptr<double>() + flat.numel()};
}

TEST(SigmoidRouter, ChoiceAndWeightsAreThoseOfTheDefinition) {
  struct Case {
    int64_t tokens, groups, top_groups, top_k;
  };
  for (const at::Device device : kernels::test_devices())
    for (const Case& c : {Case{9, 4, 2, 3}, Case{1, 4, 1, 2}, Case{5, 1, 1, 12}, Case{31, 6, 5, 7},
                          Case{8, 3, 3, 1}})
      for (const bool normalize : {true, false}) {
        SCOPED_TRACE(::testing::Message() << c.tokens << " tokens, " << c.top_groups << " of "
                                          << c.groups << " groups, top " << c.top_k);
        SigmoidRouter::Options options = kOptions;
        options.groups = c.groups;
        options.top_groups = c.top_groups;
        options.top_k = c.top_k;
        options.normalize = normalize;
        const Tensor x = random_tensor({c.tokens, 7}, device, 1),
                     weight = random_tensor({12, 7}, device, 2),
                     bias = random_tensor({12}, device, 3);
        const Routing routing = run(options, x, weight, bias);
        const Tensor scores = at::linear(x, weight).to(at::kCPU, at::kDouble).sigmoid();
        for (int64_t t = 0; t < c.tokens; ++t) {
          const auto expected = chosen_by_definition(list(scores[t] + bias.cpu()), options);
          std::vector<int64_t> found;
          double sum = 0;
          for (const int64_t e : expected) sum += scores[t][e].item<double>();
          for (int64_t k = 0; k < c.top_k; ++k) {
            const auto e = routing.indices[t][k].item<int64_t>();
            found.push_back(e);
            const double score = scores[t][e].item<double>();
            EXPECT_NEAR(routing.weights[t][k].item<double>(), 2.5 * score / (normalize ? sum : 1.0),
                        1e-5);
          }
          std::ranges::sort(found);
          EXPECT_EQ(found, expected);
        }
      }
}

TEST(SigmoidRouter, NegativeScoresInAKeptGroupBeatWhateverWasDropped) {
  Tensor bias = at::full({12}, -9.0);
  bias.slice(0, 0, 3).fill_(-5.0);
  bias.slice(0, 3, 6).fill_(-4.0);  // groups 0 and 1 are kept, all their scores are negative
  const Routing routing =
      run(kOptions, random_tensor({5, 7}, at::kCPU, 1), random_tensor({12, 7}, at::kCPU, 2), bias);
  EXPECT_TRUE(routing.indices.lt(6).all().item<bool>());
}

TEST(SigmoidRouter, TheBiasTakesNoGradientAndTheGateOnlyThatOfTheChosenScores) {
  SigmoidRouter::Options options = kOptions;
  options.normalize = false;
  const Tensor x = random_tensor({4, 7}, at::kCPU, 1);
  const Tensor weight = random_tensor({12, 7}, at::kCPU, 2).requires_grad_(true);
  const Tensor bias = random_tensor({12}, at::kCPU, 3).requires_grad_(true);
  const Routing routing = run(options, x, weight, bias);
  routing.weights.sum().backward();
  EXPECT_FALSE(bias.grad().defined());
  const Tensor score = routing.logits.detach().sigmoid();
  const Tensor was_chosen =
      at::zeros({4, 12}).scatter_(1, routing.indices, 2.5);  // d weight / d score
  const Tensor expected = (was_chosen * score * (1 - score)).t().mm(x);
  EXPECT_LT(kernels::relative_error(weight.grad(), expected), 1e-5);
}

TEST(SigmoidRouter, ComputesInFp32WhateverTheModelsDtype) {
  const Tensor x = random_tensor({6, 7}, at::kCPU, 1, at::kBFloat16),
               weight = random_tensor({12, 7}, at::kCPU, 2), bias = at::zeros({12});
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    const Routing routing = run(kOptions, x, weight.to(dtype), bias.to(dtype));
    EXPECT_EQ(routing.weights.scalar_type(), at::kFloat);
    EXPECT_EQ(routing.logits.scalar_type(), at::kFloat);
    EXPECT_TRUE(
        at::equal(routing.logits, at::linear(x.to(at::kFloat), weight.to(dtype).to(at::kFloat))));
  }
}

TEST(SigmoidRouter, TheBiasIsABufferAndBothStayFp32) {
  std::vector<ParameterSpec> specs;
  const SigmoidRouter router(blocks::ParamScope(specs, "gate."), kOptions);
  ASSERT_EQ(specs.size(), 2);
  EXPECT_EQ(specs[1].name, "gate.e_score_correction_bias");
  EXPECT_TRUE(specs[1].is_buffer && specs[1].keep_fp32 && specs[0].keep_fp32);
  EXPECT_FALSE(specs[0].is_buffer);
}

TEST(SigmoidRouter, OptionsThatMakeNoSenseAreErrors) {
  const auto make = [](auto change) {
    SigmoidRouter::Options options = kOptions;
    change(options);
    std::vector<ParameterSpec> specs;
    SigmoidRouter(blocks::ParamScope(specs, "gate."), options);
  };
  EXPECT_THROW(make([](auto& o) { o.groups = 5; }), ValueError);
  EXPECT_THROW(make([](auto& o) { o.groups = 12; }), ValueError);  // the two best of one?
  EXPECT_THROW(make([](auto& o) { o.top_groups = 5; }), ValueError);
  EXPECT_THROW(make([](auto& o) { o.top_k = 7; }), ValueError);  // two groups of three
  EXPECT_THROW(make([](auto& o) { o.top_k = 0; }), ValueError);
}

}  // namespace
}  // namespace automoe::moe
