#include "kernels/adamw.h"

#include <ATen/Parallel.h>
#include <torch/optim/adamw.h>

#include "automoe/error.h"
#include "kernels/testing.h"

namespace automoe::kernels {
namespace {

using at::Tensor;

// The state of one parameter, all zeros but for the weights.
struct Slot {
  Tensor parameter, master, exp_avg, exp_avg_sq;

  explicit Slot(const Tensor& weights)
      : parameter(weights.clone()),
        master(weights.scalar_type() == at::kFloat ? parameter : weights.to(at::kFloat)),
        exp_avg(at::zeros_like(master)),
        exp_avg_sq(at::zeros_like(master)) {}

  void update(const Tensor& grad, const AdamWOptions& options, const Tensor& scale = {}) {
    adamw_(parameter, master, exp_avg, exp_avg_sq, grad, scale, options);
  }
};

TEST(AdamW, TwentyStepsMatchTorchOptimAdamW) {
  for (const at::Device device : test_devices())
    for (const int64_t size : {1, 33, 17 * 1024 + 5}) {
      SCOPED_TRACE(text(device, " ", size));
      const Tensor start = random_tensor({size}, device, 1);
      Slot slot(start);
      Tensor expected = start.clone().requires_grad_(true);
      torch::optim::AdamW reference(
          std::vector<Tensor>{expected},
          torch::optim::AdamWOptions(3e-2).betas({0.8, 0.95}).eps(1e-6).weight_decay(0.1));
      for (int64_t step = 1; step <= 20; ++step) {
        const Tensor grad =
            random_tensor({size}, device, 100 + step) * (step % 3 == 0 ? 1e-3 : 1.0);
        expected.mutable_grad() = grad.clone();
        reference.step();
        slot.update(grad, {.learning_rate = 3e-2,
                           .beta1 = 0.8,
                           .beta2 = 0.95,
                           .epsilon = 1e-6,
                           .weight_decay = 0.1,
                           .step = step});
        const Tensor error = (slot.parameter - expected).abs() / expected.abs().clamp_min(1.0);
        ASSERT_LT(error.max().item<double>(), 1e-6) << "step " << step;
      }
    }
}

TEST(AdamW, AHalfPrecisionParameterIsTheRoundedMaster) {
  for (const at::Device device : test_devices())
    for (const at::ScalarType dtype : {at::kBFloat16, at::kHalf}) {
      const Tensor start = random_tensor({3, 347}, device, 2, dtype);
      Slot half(start), wide(start.to(at::kFloat));
      for (int64_t step = 1; step <= 5; ++step) {
        const Tensor grad = random_tensor({3, 347}, device, 10 + step, dtype);
        half.update(grad, {.learning_rate = 1e-2, .weight_decay = 0.01, .step = step});
        wide.update(grad.to(at::kFloat),
                    {.learning_rate = 1e-2, .weight_decay = 0.01, .step = step});
      }
      EXPECT_TRUE(half.master.equal(wide.parameter));
      EXPECT_TRUE(half.parameter.equal(wide.parameter.to(dtype)));
      EXPECT_FALSE(half.parameter.to(at::kFloat).equal(half.master));
    }
}

TEST(AdamW, TheGradientScaleMultipliesTheGradientAndLeavesItUnchanged) {
  for (const at::Device device : test_devices()) {
    const Tensor start = random_tensor({1029}, device, 3), grad = random_tensor({1029}, device, 4);
    const Tensor before = grad.clone();
    Slot scaled(start), plain(start);
    scaled.update(grad, {.step = 1},
                  at::scalar_tensor(0.25, at::TensorOptions(device).dtype(at::kFloat)));
    plain.update(grad * 0.25, {.step = 1});
    EXPECT_TRUE(scaled.parameter.equal(plain.parameter));
    EXPECT_TRUE(scaled.exp_avg_sq.equal(plain.exp_avg_sq));
    EXPECT_TRUE(grad.equal(before));
  }
}

TEST(AdamW, BitsDoNotDependOnTheNumberOfThreads) {
  const int threads = at::get_num_threads();
  const Tensor start = random_tensor({70001}, at::kCPU, 5),
               grad = random_tensor({70001}, at::kCPU, 6);
  Slot one(start), all(start);
  at::set_num_threads(1);
  one.update(grad, {.step = 1});
  at::set_num_threads(3);
  all.update(grad, {.step = 1});
  at::set_num_threads(threads);
  EXPECT_TRUE(one.parameter.equal(all.parameter));
}

TEST(AdamW, WrongShapesAndDtypesAreNamed) {
  Slot slot(at::ones({4}));
  EXPECT_THROW(slot.update(at::ones({5}), {.step = 1}), ValueError);
  EXPECT_THROW(slot.update(at::ones({4}, at::kDouble), {.step = 1}), ValueError);
  EXPECT_THROW(slot.update(at::ones({4}), {.step = 0}), ValueError);
  Slot apart(at::ones({4}));
  apart.master = apart.master.clone();
  EXPECT_THROW(apart.update(at::ones({4}), {.step = 1}), ValueError);
  slot.exp_avg = slot.exp_avg.to(at::kBFloat16);
  EXPECT_THROW(slot.update(at::ones({4}), {.step = 1}), ValueError);
}

}  // namespace
}  // namespace automoe::kernels
