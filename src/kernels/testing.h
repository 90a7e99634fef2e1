// What kernel tests share: the devices there are, seeded random tensors, comparison of value and gradients.
#pragma once

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <vector>

namespace automoe::kernels {

inline std::vector<at::Device> test_devices() {
  std::vector<at::Device> devices{at::kCPU};
  if (at::hasCUDA() && at::globalContext().hasCUDA() && at::detail::getCUDAHooks().deviceCount() > 0)
    devices.push_back(at::kCUDA);
  return devices;
}

inline at::Tensor random_tensor(at::IntArrayRef shape, at::Device device, uint64_t seed,
                                at::ScalarType dtype = at::kFloat) {
  const at::Generator generator = at::detail::createCPUGenerator(seed);
  return at::randn(shape, generator, at::kFloat).to(device, dtype);
}

/// Relative error ||a - b|| / ||b||, in double; the plain norm of the difference where b is 0.
inline double relative_error(const at::Tensor& a, const at::Tensor& b) {
  const at::Tensor x = a.detach().to(at::kCPU, at::kDouble), y = b.detach().to(at::kCPU, at::kDouble);
  const double scale = y.norm().item<double>(), error = (x - y).norm().item<double>();
  return scale > 0 ? error / scale : error;
}

/// The tolerance of every kernel test, by dtype.
inline double tolerance(at::ScalarType dtype) {
  return dtype == at::kFloat ? 1e-5 : dtype == at::kDouble ? 1e-12 : 1e-2;
}

/// Runs both functions on copies of `inputs` that require gradients and compares outputs and gradients for
/// one random upstream gradient.
template <typename F, typename G>
void expect_same_value_and_grads(F&& actual, G&& expected, const std::vector<at::Tensor>& inputs) {
  const auto run = [&](auto&& f) {
    std::vector<at::Tensor> leaves;
    for (const at::Tensor& input : inputs) {
      leaves.push_back(input.detach().clone());
      if (input.is_floating_point()) leaves.back().requires_grad_(true);
    }
    const at::Tensor out = f(leaves);
    const at::Tensor upstream = random_tensor(out.sizes(), out.device(), 99, out.scalar_type());
    std::vector<at::Tensor> wanted;
    for (const at::Tensor& leaf : leaves)
      if (leaf.requires_grad()) wanted.push_back(leaf);
    std::vector<at::Tensor> all = torch::autograd::grad({out}, wanted, {upstream});
    all.insert(all.begin(), out);
    return all;
  };
  const std::vector<at::Tensor> a = run(actual), b = run(expected);
  for (size_t i = 0; i < a.size(); ++i)
    EXPECT_LT(relative_error(a[i], b[i]), tolerance(a[i].scalar_type()))
        << (i == 0 ? "value" : "gradient of input ") << (i == 0 ? "" : std::to_string(i - 1));
}

}  // namespace automoe::kernels
