#include "kernels/silu_mul.h"

#include "automoe/error.h"
#include "kernels/testing.h"

namespace automoe::kernels {
namespace {

using at::Tensor;

Tensor formula(const Tensors& in) { return at::silu(in[0]) * in[1]; }
Tensor actual(const Tensors& in) { return silu_mul(in[0], in[1]); }

Tensors inputs(at::IntArrayRef shape, at::Device device, at::ScalarType dtype = at::kFloat) {
  return {random_tensor(shape, device, 1, dtype) * 3, random_tensor(shape, device, 2, dtype)};
}

TEST(SiluMul, ValueAndGradientsMatchTheFormula) {
  for (const at::Device device : test_devices())
    for (const std::vector<int64_t>& shape :
         std::vector<std::vector<int64_t>>{{1, 1}, {7, 33}, {2, 3, 5}, {130, 1536}, {19}})
      for (const at::ScalarType dtype : test_dtypes(device)) {
        SCOPED_TRACE(::testing::Message()
                     << device << " " << at::IntArrayRef(shape) << " " << dtype);
        expect_same_value_and_grads(actual, formula, inputs(shape, device, dtype));
      }
}

TEST(SiluMul, HalfPrecisionIsAsExactAsTheFormula) {
  for (const at::Device device : test_devices())
    for (const at::ScalarType dtype : {at::kBFloat16, at::kHalf})
      expect_as_exact_as_formula(actual, formula, inputs({100, 333}, device, dtype));
}

TEST(SiluMul, HalvesMatchTheFormulaForwardAndBackward) {
  for (const at::Device device : test_devices())
    for (const auto& [rows, width] :
         {std::pair{1, 1}, std::pair{7, 33}, std::pair{130, 768}, std::pair{0, 8}})
      for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
        SCOPED_TRACE(::testing::Message() << device << " " << rows << "x" << width << " " << dtype);
        const Tensor gate_up = random_tensor({rows, 2 * width}, device, 1, dtype);
        const Tensor upstream = random_tensor({rows, width}, device, 2, dtype);
        const Tensor leaf = gate_up.clone().requires_grad_(true);
        const Tensor expected = formula({leaf.narrow(1, 0, width), leaf.narrow(1, width, width)});
        const Tensor d_expected = torch::autograd::grad({expected}, {leaf}, {upstream})[0];
        EXPECT_LT(relative_error(silu_mul_halves(gate_up), expected),
                  tolerance(dtype) + (rows == 0));
        EXPECT_LT(relative_error(silu_mul_halves_backward(upstream, gate_up), d_expected),
                  tolerance(dtype) + (rows == 0));
      }
}

TEST(SiluMul, TakesStridedInputsAndGradients) {
  for (const at::Device device : test_devices()) {
    const Tensors halves{random_tensor({9, 26}, device, 1)};
    const auto of_halves = [](TensorFunction f) {
      return [f](const Tensors& in) {
        return f({in[0].narrow(1, 0, 13), in[0].narrow(1, 13, 13)}).t();
      };
    };
    expect_same_value_and_grads(of_halves(actual), of_halves(formula), halves);
    const auto mixed = [](TensorFunction f) {
      return [f](const Tensors& in) {
        return f({in[0].t(), in[1].slice(0, 0, 26, 2).expand({9, 13})}).sum(0);
      };
    };
    expect_same_value_and_grads(
        mixed(actual), mixed(formula),
        {random_tensor({13, 9}, device, 1), random_tensor({26}, device, 2)});
  }
}

TEST(SiluMul, LargeInputsSaturateWithoutNan) {
  for (const at::Device device : test_devices()) {
    const Tensor gate =
        at::tensor({-200.0f, -90.0f, -1e30f, 90.0f, 200.0f, 1e30f, 0.0f}).to(device);
    const Tensors all = value_and_grads(actual, {gate, at::ones_like(gate)});
    for (const Tensor& result : all) EXPECT_TRUE(result.isfinite().all().item<bool>());
    EXPECT_LT(relative_error(all[0], gate.clamp_min(0)), 1e-6);
  }
}

TEST(SiluMul, GivesGradientsOnlyWhereWanted) {
  for (const at::Device device : test_devices())
    for (const int wanted : {0, 1}) {
      Tensors in = inputs({5, 12}, device), reference = inputs({5, 12}, device);
      in[wanted].requires_grad_(true);
      reference[wanted].requires_grad_(true);
      actual(in).sum().backward();
      formula(reference).sum().backward();
      EXPECT_FALSE(in[1 - wanted].grad().defined());
      EXPECT_LT(relative_error(in[wanted].grad(), reference[wanted].grad()), tolerance(at::kFloat));
    }
}

TEST(SiluMul, RefusesUnequalShapes) {
  EXPECT_THROW(silu_mul(at::zeros({3, 8}), at::zeros({3, 4})), ValueError);
}

}  // namespace
}  // namespace automoe::kernels
