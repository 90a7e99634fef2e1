#include "kernels/activation.h"

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

const std::vector<Activation> kActivations{{Activation::kSiluMul},
                                           {Activation::kClampedSwiglu, 1.702, 7.0},
                                           {Activation::kClampedSwiglu, 0.6, 1.5},
                                           {Activation::kReluSquared}};

// As a model's code spells it, by kind.
TensorFunction formula_of(const Activation& a) {
  return [a](const Tensors& in) {
    const Tensor& pre = in[0];
    if (a.kind == Activation::kReluSquared) return at::relu(pre).square();
    if (a.kind == Activation::kSiluMul)
      return formula(
          {pre.narrow(1, 0, pre.size(1) / 2), pre.narrow(1, pre.size(1) / 2, pre.size(1) / 2)});
    const Tensor gate = pre.slice(1, 0, std::nullopt, 2).clamp_max(a.limit);
    const Tensor up = pre.slice(1, 1, std::nullopt, 2).clamp(-a.limit, a.limit);
    return (up + 1) * (gate * at::sigmoid(gate * a.alpha));
  };
}

TensorFunction activate_by(const Activation& a) {
  return [a](const Tensors& in) { return activate(in[0], a); };
}

TEST(Activation, ValueAndGradientMatchTheFormulaOfEachKind) {
  for (const at::Device device : test_devices())
    for (const Activation& a : kActivations)
      for (const auto& [rows, width] :
           {std::pair{1, 1}, std::pair{7, 33}, std::pair{130, 768}, std::pair{5, 8}})
        for (const at::ScalarType dtype : test_dtypes(device)) {
          SCOPED_TRACE(text(device, " kind ", int(a.kind), " ", rows, "x", width, " ", dtype));
          const Tensor pre = random_tensor({rows, a.num_inputs() * width}, device, 1, dtype) * 3;
          expect_same_value_and_grads(activate_by(a), formula_of(a), {pre});
        }
}

TEST(Activation, HalfPrecisionIsAsExactAsTheFormulaOfEachKind) {
  for (const at::Device device : test_devices())
    for (const Activation& a : kActivations)
      for (const at::ScalarType dtype : {at::kBFloat16, at::kHalf}) {
        SCOPED_TRACE(text(device, " kind ", int(a.kind), " ", dtype));
        const Tensor pre = random_tensor({100, a.num_inputs() * 333}, device, 1, dtype) * 3;
        expect_as_exact_as_formula(activate_by(a), formula_of(a), {pre});
      }
}

TEST(Activation, TheGradientPassesAtTheLimitsAndEndsBeyond) {
  const Activation a{Activation::kClampedSwiglu, 1.702, 7.0};
  const float beyond = std::nextafter(7.0f, 8.0f);
  for (const at::Device device : test_devices()) {
    const Tensor gate_up =
        at::tensor({7.0f, 7.0f, beyond, beyond, -9.0f, -7.0f, 2.0f, -beyond}).view({4, 2});
    const Tensors all = value_and_grads(activate_by(a), {gate_up.to(device)});
    const Tensor passes = all[1].ne(0).cpu();
    EXPECT_TRUE(passes.equal(at::tensor({1, 1, 0, 0, 1, 1, 1, 0}).view({4, 2}).to(at::kBool)))
        << all[1];
    expect_same_value_and_grads(activate_by(a), formula_of(a), {gate_up.to(device)});
  }
}

TEST(Activation, TakesStridedInputsAndGradientsAndNoRows) {
  for (const at::Device device : test_devices())
    for (const Activation& a : kActivations) {
      const auto transposed = [](TensorFunction f) {
        return [f](const Tensors& in) { return f({in[0].t()}).t(); };
      };
      expect_same_value_and_grads(transposed(activate_by(a)), transposed(formula_of(a)),
                                  {random_tensor({26, 9}, device, 1)});
      EXPECT_EQ(activate(at::zeros({0, 6}, device), a).sizes(),
                (std::vector<int64_t>{0, 6 / a.num_inputs()}));
    }
}

TEST(Activation, KeepsNan) {
  for (const at::Device device : test_devices())
    for (const Activation& a : kActivations) {
      const Tensor pre = at::full({1, a.num_inputs() * 3}, NAN, at::device(device));
      EXPECT_TRUE(activate(pre, a).isnan().all().item<bool>()) << int(a.kind);
    }
}

TEST(Activation, RefusesHalfAPair) {
  EXPECT_THROW(activate(at::zeros({3, 5}), {Activation::kClampedSwiglu}), ValueError);
}

}  // namespace
}  // namespace automoe::kernels
