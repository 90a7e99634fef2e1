// What kernel tests share: the devices there are, seeded random tensors, comparison of values and
// gradients.
#pragma once

#include <ATen/ATen.h>
#include <c10/core/CPUAllocator.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <atomic>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace automoe::kernels {

using Tensors = std::vector<at::Tensor>;
using TensorFunction = std::function<at::Tensor(const Tensors&)>;

inline std::vector<at::Device> test_devices() {
  std::vector<at::Device> devices{at::kCPU};
#ifdef AUTOMOE_WITH_CUDA
  if (at::hasCUDA() && at::detail::getCUDAHooks().deviceCount() > 0) devices.push_back(at::kCUDA);
#endif
  return devices;
}

/// The dtypes that elementwise kernels have there.
inline std::vector<at::ScalarType> test_dtypes(at::Device device) {
  std::vector<at::ScalarType> dtypes{at::kFloat, at::kBFloat16, at::kHalf};
  if (device.is_cpu()) dtypes.push_back(at::kDouble);
  return dtypes;
}

/// Standard normal, the same numbers on every device.
inline at::Tensor random_tensor(at::IntArrayRef shape, at::Device device, uint64_t seed,
                                at::ScalarType dtype = at::kFloat) {
  const at::Generator generator = at::detail::createCPUGenerator(seed);
  return at::randn(shape, generator, at::kFloat).to(device, dtype);
}

/// Uniform integers in [0, high).
inline at::Tensor random_integers(at::IntArrayRef shape, int64_t high, at::Device device,
                                  uint64_t seed) {
  const at::Generator generator = at::detail::createCPUGenerator(seed);
  return at::randint(high, shape, generator, at::kLong).to(device);
}

/// Relative error ||a - b|| / ||b||, in double; the plain norm of the difference where b is 0.
inline double relative_error(const at::Tensor& a, const at::Tensor& b) {
  const at::Tensor x = a.detach().to(at::kCPU, at::kDouble),
                   y = b.detach().to(at::kCPU, at::kDouble);
  const double scale = y.norm().item<double>(), error = (x - y).norm().item<double>();
  return scale > 0 ? error / scale : error;
}

/// The tolerance of every kernel test, by dtype.
inline double tolerance(at::ScalarType dtype) {
  return dtype == at::kFloat ? 1e-5 : dtype == at::kDouble ? 1e-12 : 1e-2;
}

/// The output of f at copies of `inputs`, then the gradients of the floating-point ones of them for
/// one random upstream gradient. Undefined gradients are returned as such.
inline Tensors value_and_grads(const TensorFunction& f, const Tensors& inputs) {
  Tensors leaves, wanted;
  for (const at::Tensor& input : inputs) {
    leaves.push_back(input.detach().clone());
    if (input.is_floating_point()) wanted.push_back(leaves.back().requires_grad_(true));
  }
  const at::Tensor out = f(leaves);
  const at::Tensor upstream =
      random_tensor(out.sizes(), out.device(), 99, at::kBFloat16).to(out.scalar_type());
  Tensors all = torch::autograd::grad({out}, wanted, {upstream}, /*retain_graph=*/false,
                                      /*create_graph=*/false, /*allow_unused=*/true);
  all.insert(all.begin(), out.detach());
  return all;
}

inline std::string describe_result(size_t i) {
  return i == 0 ? "value" : "gradient of floating-point input " + std::to_string(i - 1);
}

inline Tensors in_double(const Tensors& inputs) {
  Tensors out;
  for (const at::Tensor& input : inputs)
    out.push_back(input.is_floating_point() ? input.to(at::kDouble) : input);
  return out;
}

/// Output and gradients of `actual` are finite, have the shapes and dtypes of those of `formula`,
/// and agree with the formula in double to the tolerance of the coarsest dtype among the inputs.
inline void expect_same_value_and_grads(const TensorFunction& actual, const TensorFunction& formula,
                                        const Tensors& inputs) {
  const Tensors a = value_and_grads(actual, inputs), b = value_and_grads(formula, inputs);
  const Tensors truth = value_and_grads(formula, in_double(inputs));
  double allowed = 0;
  for (const at::Tensor& input : inputs)
    if (input.is_floating_point()) allowed = std::max(allowed, tolerance(input.scalar_type()));
  for (size_t i = 0; i < a.size(); ++i) {
    SCOPED_TRACE(describe_result(i));
    ASSERT_EQ(a[i].defined(), b[i].defined());
    if (!a[i].defined()) continue;
    EXPECT_EQ(a[i].sizes(), b[i].sizes());
    EXPECT_EQ(a[i].scalar_type(), b[i].scalar_type());
    EXPECT_TRUE(a[i].isfinite().all().item<bool>());
    EXPECT_LT(relative_error(a[i], truth[i]), allowed);
  }
}

/// `actual` at half-precision inputs is no further from the formula in double than the formula
/// itself is when it runs in half precision. 3 %: two different sequences of roundings of equal
/// quality.
inline void expect_as_exact_as_formula(const TensorFunction& actual, const TensorFunction& formula,
                                       const Tensors& inputs) {
  const Tensors a = value_and_grads(actual, inputs), b = value_and_grads(formula, inputs);
  const Tensors truth = value_and_grads(formula, in_double(inputs));
  for (size_t i = 0; i < a.size(); ++i) {
    SCOPED_TRACE(describe_result(i));
    EXPECT_EQ(a[i].scalar_type(), b[i].scalar_type());
    EXPECT_LE(relative_error(a[i], truth[i]), 1.03 * relative_error(b[i], truth[i]));
  }
}

/// fp32, or double where the inputs are: what statistics are computed in.
inline at::Tensor widened(const at::Tensor& x) {
  return x.to(at::promote_types(x.scalar_type(), at::kFloat));
}

/// While alive, remembers the largest single CPU allocation.
class LargestAllocation {
 public:
  LargestAllocation() : recorder_(c10::GetCPUAllocator()) {
    c10::SetCPUAllocator(&recorder_, kPriority);
  }
  ~LargestAllocation() { c10::SetCPUAllocator(recorder_.wrapped, kPriority); }
  LargestAllocation(const LargestAllocation&) = delete;
  LargestAllocation& operator=(const LargestAllocation&) = delete;
  size_t bytes() const { return recorder_.largest; }

 private:
  static constexpr uint8_t kPriority = 100;

  struct Recorder final : c10::Allocator {
    explicit Recorder(c10::Allocator* wrapped) : wrapped(wrapped) {}
    c10::DataPtr allocate(size_t bytes) override {
      size_t seen = largest;
      while (seen < bytes && !largest.compare_exchange_weak(seen, bytes)) {
      }
      return wrapped->allocate(bytes);
    }
    c10::DeleterFnPtr raw_deleter() const override { return wrapped->raw_deleter(); }
    void copy_data(void* to, const void* from, std::size_t bytes) const override {
      default_copy_data(to, from, bytes);
    }
    c10::Allocator* wrapped;
    std::atomic<size_t> largest{0};
  };

  Recorder recorder_;
};

}  // namespace automoe::kernels
