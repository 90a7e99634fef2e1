#include "kernels/grad_norm.h"

#include <ATen/Parallel.h>
#include <torch/nn/utils/clip_grad.h>

#include "automoe/error.h"
#include "kernels/testing.h"

namespace automoe::kernels {
namespace {

using at::Tensor;

TEST(GradNorm, ClippedGradientsMatchTorchClipGradNorm) {
  for (const at::Device device : test_devices())
    for (const double max_norm : {0.5, 1e6}) {
      std::vector<Tensor> grads, parameters;
      for (const int64_t size : {1, 77, 40001}) {
        grads.push_back(random_tensor({size}, device, uint64_t(size)));
        parameters.push_back(at::zeros_like(grads.back()).requires_grad_(true));
        parameters.back().mutable_grad() = grads.back().clone();
      }
      const Tensor norm = grad_norm(grads);
      const double expected = torch::nn::utils::clip_grad_norm_(parameters, max_norm);
      EXPECT_NEAR(norm.item<double>(), expected, 1e-6 * expected);
      const Tensor coefficient = clip_coefficient(norm, max_norm);
      for (size_t i = 0; i < grads.size(); ++i)
        EXPECT_LT(relative_error(grads[i] * coefficient, parameters[i].grad()), 1e-6);
    }
}

TEST(GradNorm, HalfPrecisionStridedAndUndefinedGradientsCount) {
  for (const at::Device device : test_devices()) {
    const Tensor a = random_tensor({31, 17}, device, 1, at::kBFloat16).t(),
                 b = random_tensor({5}, device, 2);
    const double expected =
        at::cat({a.flatten().to(at::kDouble), b.to(at::kDouble)}).norm().item<double>();
    EXPECT_NEAR(grad_norm({a, Tensor(), b}).item<double>(), expected, 1e-6 * expected);
  }
  EXPECT_EQ(grad_norm({Tensor()}).item<double>(), 0.0);
}

TEST(GradNorm, BitsDoNotDependOnTheNumberOfThreads) {
  const int threads = at::get_num_threads();
  const Tensor grad = random_tensor({123457}, at::kCPU, 3);
  at::set_num_threads(1);
  const double one = grad_norm({grad}).item<double>();
  at::set_num_threads(3);
  const double three = grad_norm({grad}).item<double>();
  at::set_num_threads(threads);
  EXPECT_EQ(one, three);
}

TEST(GradNorm, ALargeGradientDoesNotOverflow) {
  const double norm = grad_norm({at::full({9}, 1e30)}).item<double>();
  EXPECT_NEAR(norm / 3e30, 1.0, 1e-6);
}

TEST(GradNorm, ANonPositiveLimitIsRefused) {
  EXPECT_THROW(clip_coefficient(at::ones({}), 0.0), ValueError);
}

}  // namespace
}  // namespace automoe::kernels
