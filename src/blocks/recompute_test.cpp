#include "blocks/recompute.h"

#include <gtest/gtest.h>

#include "kernels/testing.h"

namespace automoe::blocks {
namespace {

using kernels::expect_same_value_and_grads;
using kernels::random_tensor;

Tensor square_mean(const Tensors& in) { return in[0] * in[0] + in[1]; }

TEST(LinearAfter, EveryPolicyGivesTheValueAndGradientsOfPlainAutograd) {
  for (const at::Device device : kernels::test_devices()) {
    const std::vector<Tensor> inputs{
        random_tensor({7, 5}, device, 1), random_tensor({5}, device, 2),
        random_tensor({3, 5}, device, 3), random_tensor({3}, device, 4),
        random_tensor({2, 5}, device, 5)};
    const auto plain = [](const std::vector<Tensor>& in) {
      const Tensor x = square_mean({in[0], in[1]});
      return at::cat({at::linear(x, in[2], in[3]), at::linear(x, in[4])}, 1);
    };
    for (const Recompute policy : {Recompute::kNone, Recompute::kNorms, Recompute::kLayer})
      expect_same_value_and_grads(
          [&](const std::vector<Tensor>& in) {
            return at::cat(
                linear_after(square_mean, {in[0], in[1]}, {{in[2], in[3]}, {in[4], {}}}, policy),
                1);
          },
          plain, inputs);
  }
}

TEST(LinearAfter, AnAdapterAddsItsProductUnderEveryPolicy) {
  for (const at::Device device : kernels::test_devices()) {
    const std::vector<Tensor> inputs{
        random_tensor({7, 5}, device, 1), random_tensor({5}, device, 2),
        random_tensor({3, 5}, device, 3), random_tensor({2, 5}, device, 4),
        random_tensor({3, 2}, device, 5), random_tensor({4, 5}, device, 6)};
    const auto plain = [](const std::vector<Tensor>& in) {
      const Tensor x = square_mean({in[0], in[1]});
      return at::cat({at::linear(x, in[2] + 0.7 * at::mm(in[4], in[3])), at::linear(x, in[5])}, 1);
    };
    for (const Recompute policy : {Recompute::kNone, Recompute::kNorms, Recompute::kLayer})
      expect_same_value_and_grads(
          [&](const std::vector<Tensor>& in) {
            const LinearWeights adapted{
                .weight = in[2], .lora_a = in[3], .lora_b = in[4], .lora_scale = 0.7};
            return at::cat(linear_after(square_mean, {in[0], in[1]}, {adapted, {in[5]}}, policy),
                           1);
          },
          plain, inputs);
  }
}

TEST(LinearAfter, Fp32AdaptersOfBf16LayersGetFp32Gradients) {
  const Tensor x = random_tensor({4, 5}, at::kCPU, 1).to(at::kBFloat16);
  const Tensor weight = random_tensor({3, 5}, at::kCPU, 2).to(at::kBFloat16);
  const Tensor a = random_tensor({2, 5}, at::kCPU, 3).requires_grad_(true),
               b = random_tensor({3, 2}, at::kCPU, 4).requires_grad_(true);
  const auto same = [](const Tensors& in) { return in[0]; };
  const LinearWeights layer{.weight = weight, .lora_a = a, .lora_b = b, .lora_scale = 2};
  const Tensor y = linear_after(same, {x}, {layer}, Recompute::kNorms)[0];
  EXPECT_EQ(y.scalar_type(), at::kBFloat16);
  y.sum().backward();
  for (const Tensor& adapter : {a, b}) {
    EXPECT_EQ(adapter.grad().scalar_type(), at::kFloat);
    EXPECT_GT(adapter.grad().abs().max().item<double>(), 0);
  }
  EXPECT_FALSE(weight.grad().defined());
}

TEST(LinearAfter, RunsTheCheapFunctionAgainInsteadOfKeepingItsResult) {
  int calls = 0;
  const auto counted = [&](const Tensors& in) {
    ++calls;
    return in[0].sin();
  };
  const Tensor x = random_tensor({4, 3}, at::kCPU, 1).requires_grad_(true);
  const Tensor w = random_tensor({2, 3}, at::kCPU, 2).requires_grad_(true);
  linear_after(counted, {x}, {{w, {}}}, Recompute::kNorms)[0].sum().backward();
  EXPECT_EQ(calls, 2);
}

TEST(LinearAfter, FrozenPartsGetNoGradient) {
  const Tensor x = random_tensor({4, 3}, at::kCPU, 1);
  const Tensor w = random_tensor({2, 3}, at::kCPU, 2).requires_grad_(true),
               frozen = random_tensor({2, 3}, at::kCPU, 3);
  const auto same = [](const Tensors& in) { return in[0].sin(); };
  const Tensors y = linear_after(same, {x}, {{w, {}}, {frozen, {}}}, Recompute::kNorms);
  (y[0].sum() + y[1].sum()).backward();
  EXPECT_TRUE(w.grad().defined());
  EXPECT_FALSE(frozen.grad().defined());
}

TEST(Checkpoint, GivesTheGradientsOfPlainAutogradWhenAnOutputIsUnused) {
  const auto body = [](const Tensors& in) -> Tensors {
    return {at::mm(in[0], in[1]).tanh(), in[0].exp()};
  };
  expect_same_value_and_grads(
      [&](const std::vector<Tensor>& in) {
        return checkpoint(body, {in[0], in[1]})[0];
      },
      [&](const std::vector<Tensor>& in) {
        return body({in[0], in[1]})[0] + 0 * in[0].sum();
      },
      {random_tensor({4, 3}, at::kCPU, 1), random_tensor({3, 3}, at::kCPU, 2)});
}

}  // namespace
}  // namespace automoe::blocks
