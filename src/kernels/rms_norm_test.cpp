#include "kernels/rms_norm.h"

#include "automoe/error.h"
#include "kernels/testing.h"

namespace automoe::kernels {
namespace {

using at::Tensor;

constexpr double kEps = 1e-6;

// As Transformers writes it for Llama, with ordinary autograd.
Tensor formula(const Tensors& in) {
  const Tensor wide = widened(in[0]);
  const Tensor normed = wide * at::rsqrt(wide.square().mean(-1, true) + kEps);
  return in[1] * normed.to(in[0].scalar_type());
}

Tensor actual(const Tensors& in) { return rms_norm(in[0], in[1], kEps); }

Tensors inputs(at::IntArrayRef shape, at::Device device, at::ScalarType dtype = at::kFloat) {
  return {random_tensor(shape, device, 1, dtype), random_tensor({shape.back()}, device, 2, dtype)};
}

TEST(RmsNorm, ValueAndGradientsMatchTheFormula) {
  for (const at::Device device : test_devices())
    for (const std::vector<int64_t>& shape : std::vector<std::vector<int64_t>>{
             {1, 3}, {7, 33}, {3, 5, 64}, {130, 2880}, {9}, {2, 3, 4, 16}, {3, 5001}, {2, 20000}})
      for (const at::ScalarType dtype : test_dtypes(device)) {
        SCOPED_TRACE(::testing::Message()
                     << device << " " << at::IntArrayRef(shape) << " " << dtype);
        expect_same_value_and_grads(actual, formula, inputs(shape, device, dtype));
      }
}

TEST(RmsNorm, HalfPrecisionIsAsExactAsTheFormula) {
  for (const at::Device device : test_devices())
    for (const at::ScalarType dtype : {at::kBFloat16, at::kHalf})
      expect_as_exact_as_formula(actual, formula, inputs({257, 576}, device, dtype));
}

// As Transformers writes it for GPT-OSS.
Tensor rounded_once(const Tensors& in) {
  const Tensor wide = widened(in[0]);
  const Tensor normed = wide * at::rsqrt(wide.square().mean(-1, true) + kEps);
  return (in[1] * normed).to(in[0].scalar_type());
}

Tensor actual_rounded_once(const Tensors& in) {
  return rms_norm(in[0], in[1], kEps, NormRounding::kResultOnly);
}

TEST(RmsNorm, RoundsTheResultAloneWhereAskedTo) {
  for (const at::Device device : test_devices())
    for (const at::ScalarType dtype : {at::kBFloat16, at::kHalf}) {
      const Tensors in = inputs({257, 576}, device, dtype);
      expect_same_value_and_grads(actual_rounded_once, rounded_once, in);
      expect_as_exact_as_formula(actual_rounded_once, rounded_once, in);
      const Tensor twice = actual(in), once = actual_rounded_once(in);
      EXPECT_GT(once.ne(twice).sum().item<int64_t>(), once.numel() / 20);
      // Statistics differ by their order of summation: few results, by one step.
      EXPECT_LT(once.ne(rounded_once(in)).sum().item<int64_t>(), once.numel() / 500);
    }
  for (const at::Device device : test_devices())
    for (const std::vector<int64_t>& shape : std::vector<std::vector<int64_t>>{{7, 33}, {3, 5001}})
      expect_same_value_and_grads(actual_rounded_once, rounded_once, inputs(shape, device));
}

TEST(RmsNorm, AWiderWeightIsUsedAsItIsWhereTheResultAloneIsRounded) {
  for (const at::Device device : test_devices()) {
    const Tensors in{random_tensor({11, 40}, device, 1, at::kBFloat16),
                     random_tensor({40}, device, 2)};
    EXPECT_EQ(actual_rounded_once(in).scalar_type(), at::kBFloat16);
    expect_same_value_and_grads(actual_rounded_once, rounded_once, in);
  }
}

TEST(RmsNorm, AWiderWeightWidensTheResult) {
  for (const at::Device device : test_devices()) {
    const Tensors in{random_tensor({11, 40}, device, 1, at::kBFloat16),
                     random_tensor({40}, device, 2)};
    EXPECT_EQ(actual(in).scalar_type(), at::kFloat);
    expect_same_value_and_grads(actual, formula, in);
  }
}

TEST(RmsNorm, TakesStridedInputsAndGradients) {
  for (const at::Device device : test_devices()) {
    const Tensors in = inputs({10, 7, 24}, device);
    const auto on_views = [](TensorFunction f) {
      return [f](const Tensors& in) {
        const Tensor x = in[0].transpose(0, 1).slice(/*dim=*/0, 1, 7, /*step=*/2);
        return f({x.slice(-1, 0, 24, 3), in[1].slice(0, 0, 24, 3)}).transpose(0, 2);
      };
    };
    expect_same_value_and_grads(on_views(actual), on_views(formula), in);
    const auto summed = [](TensorFunction f) {
      return [f](const Tensors& in) {
        return f({in[0].expand({3, 10, 7, 24}), in[1]}).sum(at::IntArrayRef{0, 1});
      };
    };
    expect_same_value_and_grads(summed(actual), summed(formula), in);
  }
}

TEST(RmsNorm, GivesGradientsOnlyWhereWanted) {
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
  EXPECT_FALSE(actual(inputs({5, 12}, at::kCPU)).requires_grad());
}

TEST(RmsNorm, ZerosStayZeroAndHugeValuesFinite) {
  for (const at::Device device : test_devices()) {
    Tensors in = inputs({3, 8}, device);
    in[0][0].zero_();
    in[0][1].mul_(1e18);
    const Tensors all = value_and_grads(actual, in);
    EXPECT_EQ(all[0][0].abs().max().item<float>(), 0.0f);
    for (const Tensor& result : all) EXPECT_TRUE(result.isfinite().all().item<bool>());
  }
}

TEST(RmsNorm, AcceptsNoRows) {
  for (const at::Device device : test_devices()) {
    const Tensors all = value_and_grads(actual, inputs({0, 16}, device));
    EXPECT_EQ(all[0].sizes(), (std::vector<int64_t>{0, 16}));
    EXPECT_EQ(all[2].abs().max().item<float>(), 0.0f);
  }
}

// in: x, residual, weight. Both results take part in the gradient.
Tensor add_formula(const Tensors& in) {
  const Tensor sum = in[0] + in[1];
  return at::cat({sum, formula({sum, in[2]})}, -1);
}

Tensor add_actual(const Tensors& in) {
  const auto [sum, normed] = add_rms_norm(in[0], in[1], in[2], kEps);
  return at::cat({sum, normed}, -1);
}

Tensors add_inputs(at::IntArrayRef shape, at::Device device, at::ScalarType dtype) {
  return {random_tensor(shape, device, 1, dtype), random_tensor(shape, device, 2, dtype),
          random_tensor({shape.back()}, device, 3, dtype)};
}

TEST(AddRmsNorm, ValueAndGradientsMatchTheFormula) {
  for (const at::Device device : test_devices())
    for (const std::vector<int64_t>& shape : std::vector<std::vector<int64_t>>{
             {1, 3}, {7, 33}, {3, 5, 64}, {130, 2880}, {3, 5001}, {0, 16}})
      for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
        SCOPED_TRACE(::testing::Message()
                     << device << " " << at::IntArrayRef(shape) << " " << dtype);
        expect_same_value_and_grads(add_actual, add_formula, add_inputs(shape, device, dtype));
      }
}

TEST(AddRmsNorm, HalfPrecisionIsAsExactAsTheFormula) {
  for (const at::Device device : test_devices())
    expect_as_exact_as_formula(add_actual, add_formula,
                               add_inputs({257, 576}, device, at::kBFloat16));
}

TEST(AddRmsNorm, EitherResultMayBeLeftOutOfTheGradient) {
  for (const at::Device device : test_devices()) {
    const Tensors in = add_inputs({9, 24}, device, at::kFloat);
    for (const int part : {0, 1}) {
      const auto half = [part](TensorFunction f) {
        return [=](const Tensors& in) { return f(in).narrow(-1, 24 * part, 24); };
      };
      const auto actual_part = [part](const Tensors& in) {
        const auto [sum, normed] = add_rms_norm(in[0], in[1], in[2], kEps);
        return part == 0 ? sum * 1 : normed;
      };
      const Tensors a = value_and_grads(actual_part, in),
                    b = value_and_grads(half(add_formula), in);
      for (size_t i = 0; i < a.size(); ++i) {
        if (a[i].defined())
          EXPECT_LT(relative_error(a[i], b[i]), tolerance(at::kFloat)) << describe_result(i);
        else
          EXPECT_EQ(b[i].abs().max().item<float>(), 0.0f);
      }
    }
  }
}

TEST(AddRmsNorm, AWiderWeightWidensTheNormAlone) {
  Tensors in = add_inputs({4, 16}, at::kCPU, at::kBFloat16);
  const auto [sum, normed] = add_rms_norm(in[0], in[1], in[2].to(at::kFloat), kEps);
  EXPECT_EQ(sum.scalar_type(), at::kBFloat16);
  EXPECT_EQ(normed.scalar_type(), at::kFloat);
}

TEST(RmsNorm, RefusesAWeightOfAnotherWidth) {
  EXPECT_THROW(rms_norm(at::zeros({3, 8}), at::zeros({4}), kEps), ValueError);
  EXPECT_THROW(add_rms_norm(at::zeros({3, 8}), at::zeros({3, 4}), at::zeros({8}), kEps),
               ValueError);
}

}  // namespace
}  // namespace automoe::kernels
