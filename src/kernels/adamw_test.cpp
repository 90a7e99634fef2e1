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

// bf16 weights of 1 and their bf16 moments, without master.
struct RoundedAtRandom {
  Tensor parameter, exp_avg, exp_avg_sq;

  RoundedAtRandom(int64_t size, at::Device device)
      : parameter(at::ones({size}, at::TensorOptions(device).dtype(at::kBFloat16))),
        exp_avg(at::zeros_like(parameter)),
        exp_avg_sq(at::zeros_like(parameter)) {}

  void update(const Tensor& grad, const AdamWOptions& options) {
    adamw_(parameter, {}, exp_avg, exp_avg_sq, grad, {}, options);
  }
  double mean_movement() const { return (1 - parameter.to(at::kDouble)).mean().item<double>(); }
};

TEST(AdamW, StochasticRoundingKeepsUpdatesFarBelowTheSpacingOfBf16) {
  for (const at::Device device : test_devices()) {
    RoundedAtRandom pulled(4096, device), decayed(4096, device);
    const Tensor zero = at::zeros_like(pulled.parameter), one = at::ones_like(zero);
    for (int64_t step = 1; step <= 1000; ++step) {
      const AdamWOptions options{.learning_rate = 1e-5, .step = step, .seed = uint64_t(step)};
      pulled.update(one, options);
      AdamWOptions decay = options;
      decay.weight_decay = 0.1;
      decayed.update(zero, decay);
    }
    EXPECT_NEAR(pulled.mean_movement(), 0.01, 0.001);
    EXPECT_NEAR(decayed.mean_movement(), 0.001, 0.0001);
  }
}

TEST(AdamW, MomentsRoundedAtRandomFollowTheFp32Ones) {
  for (const at::Device device : test_devices()) {
    RoundedAtRandom rounded(4099, device);
    Slot exact(at::ones({4099}, device));
    for (int64_t step = 1; step <= 300; ++step) {
      const Tensor grad = 1 + 0.1 * random_tensor({4099}, device, uint64_t(step));
      rounded.update(grad, {.learning_rate = 1e-4, .step = step, .seed = uint64_t(7 * step)});
      exact.update(grad, {.learning_rate = 1e-4, .step = step});
    }
    const auto mean = [](const Tensor& t) { return t.to(at::kDouble).mean().item<double>(); };
    EXPECT_NEAR(mean(rounded.exp_avg) / mean(exact.exp_avg), 1, 1e-3);
    EXPECT_NEAR(mean(rounded.exp_avg_sq) / mean(exact.exp_avg_sq), 1, 2e-3);
    EXPECT_NEAR(rounded.mean_movement(), 1 - mean(exact.parameter), 1e-3);
  }
}

TEST(AdamW, RoundingIsAFunctionOfSeedAndPosition) {
  for (const at::Device device : test_devices()) {
    const Tensor grad = random_tensor({1029}, device, 4);
    RoundedAtRandom first(1029, device), again(1029, device), other(1029, device);
    first.update(grad, {.learning_rate = 1e-3, .seed = 1});
    again.update(grad, {.learning_rate = 1e-3, .seed = 1});
    other.update(grad, {.learning_rate = 1e-3, .seed = 2});
    EXPECT_TRUE(first.parameter.equal(again.parameter));
    EXPECT_FALSE(first.parameter.equal(other.parameter));
    EXPECT_TRUE((first.parameter != 1).any().item<bool>());
  }
}

TEST(AdamW, InfinitiesAndNanAreKept) {
  for (const at::Device device : test_devices()) {
    const double infinity = std::numeric_limits<double>::infinity();
    for (const double bad : {infinity, -infinity, std::nan("")}) {
      RoundedAtRandom slot(33, device);
      slot.parameter.fill_(bad);
      slot.update(at::zeros_like(slot.parameter), {.seed = 5});
      EXPECT_TRUE(std::isnan(bad) ? slot.parameter.isnan().all().item<bool>()
                                  : slot.parameter.eq(bad).all().item<bool>());
    }
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
  slot.master = Tensor();
  EXPECT_THROW(slot.update(at::ones({4}), {.step = 1}), ValueError);
}

}  // namespace
}  // namespace automoe::kernels
