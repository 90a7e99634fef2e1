#include "kernels/experts.h"

#include "automoe/error.h"
#include "kernels/testing.h"

namespace automoe::kernels {
namespace {

using at::Tensor;

// Expert by expert, slot by slot. in: x, weights, gate_up, down.
TensorFunction formula(const Tensor& indices) {
  return [=](const Tensors& in) {
    const Tensor &x = in[0], &weights = in[1], &gate_up = in[2], &down = in[3];
    const int64_t width = down.size(2);
    Tensor y = at::zeros(x.sizes(), x.options().dtype(widened(x).scalar_type()));
    for (int64_t e = 0; e < gate_up.size(0); ++e)
      for (int64_t k = 0; k < indices.size(1); ++k) {
        const Tensor tokens = indices.select(1, k).eq(e).nonzero().squeeze(1);
        const Tensor u = at::linear(x.index_select(0, tokens), gate_up[e]);
        const Tensor a = at::silu(u.narrow(1, 0, width)) * u.narrow(1, width, width);
        const Tensor o =
            at::linear(a, down[e]) * weights.index_select(0, tokens).select(1, k).unsqueeze(1);
        y = y.index_add(0, tokens, o.to(y.scalar_type()));
      }
    return y.to(x.scalar_type());
  };
}

TensorFunction actual(const Tensor& indices) {
  return [=](const Tensors& in) { return gated_experts(in[0], indices, in[1], in[2], in[3]); };
}

struct Shape {
  int64_t tokens, slots, experts, hidden, width;
};

Tensors inputs(const Shape& s, at::Device device, at::ScalarType dtype = at::kFloat,
               std::optional<at::ScalarType> weight_dtype = std::nullopt) {
  return {
      random_tensor({s.tokens, s.hidden}, device, 1, dtype),
      random_tensor({s.tokens, s.slots}, device, 2).softmax(1).to(weight_dtype.value_or(dtype)),
      random_tensor({s.experts, 2 * s.width, s.hidden}, device, 3, dtype) /
          std::sqrt(double(s.hidden)),
      random_tensor({s.experts, s.hidden, s.width}, device, 4, dtype) / std::sqrt(double(s.width))};
}

// K different experts a token, as a router picks them.
Tensor picks(const Shape& s, at::Device device) {
  return random_tensor({s.tokens, s.experts}, device, 5)
      .argsort(int64_t{1}, false)
      .narrow(1, 0, s.slots)
      .contiguous();
}

std::string describe(const Shape& s, at::Device device) {
  return text(device, " T ", s.tokens, " K ", s.slots, " E ", s.experts, " H ", s.hidden, " I ",
              s.width);
}

TEST(GatedExperts, ValueAndGradientsMatchTheFormula) {
  for (const at::Device device : test_devices())
    for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16})
      for (const Shape& s :
           {Shape{1, 1, 1, 8, 8}, Shape{1, 3, 5, 16, 8}, Shape{13, 2, 8, 32, 16},
            Shape{7, 4, 4, 24, 40}, Shape{3, 1, 30, 16, 16}, Shape{131, 8, 17, 72, 56}}) {
        SCOPED_TRACE(describe(s, device) + text(" ", dtype));
        const Tensor indices = picks(s, device);
        expect_same_value_and_grads(actual(indices), formula(indices), inputs(s, device, dtype));
      }
}

TEST(GatedExperts, TakesOddExtents) {
  for (const at::Device device : test_devices())
    for (const Shape& s : {Shape{5, 2, 3, 1, 1}, Shape{11, 3, 7, 33, 5}}) {
      SCOPED_TRACE(describe(s, device));
      const Tensor indices = picks(s, device);
      for (const at::ScalarType dtype : test_dtypes(device)) {
        SCOPED_TRACE(dtype);
        expect_same_value_and_grads(actual(indices), formula(indices), inputs(s, device, dtype));
      }
    }
}

TEST(GatedExperts, HalfPrecisionIsAsExactAsTheFormula) {
  const Shape s{300, 4, 8, 64, 48};
  for (const at::Device device : test_devices())
    for (const at::ScalarType weight_dtype : {at::kBFloat16, at::kFloat}) {
      SCOPED_TRACE(::testing::Message() << device << " weights " << weight_dtype);
      const Tensor indices = picks(s, device);
      expect_as_exact_as_formula(actual(indices), formula(indices),
                                 inputs(s, device, at::kBFloat16, weight_dtype));
    }
}

TEST(GatedExperts, KeepsTheDtypeOfXWithWiderWeights) {
  const Shape s{9, 2, 4, 16, 8};
  for (const at::Device device : test_devices()) {
    const Tensor indices = picks(s, device);
    const Tensors all =
        value_and_grads(actual(indices), inputs(s, device, at::kBFloat16, at::kFloat));
    EXPECT_EQ(all[0].scalar_type(), at::kBFloat16);
    EXPECT_EQ(all[2].scalar_type(), at::kFloat);
    EXPECT_EQ(all[3].scalar_type(), at::kBFloat16);
  }
}

TEST(GatedExperts, AllTokensMayGoToOneExpert) {
  const Shape s{21, 1, 6, 16, 24};
  for (const at::Device device : test_devices())
    for (const int64_t expert : {0, 3, 5}) {
      const Tensor indices = at::full({s.tokens, 1}, expert, at::device(device).dtype(at::kLong));
      const Tensors in = inputs(s, device);
      expect_same_value_and_grads(actual(indices), formula(indices), in);
      const Tensors all = value_and_grads(actual(indices), in);
      for (int64_t e = 0; e < s.experts; ++e)
        EXPECT_EQ(all[3][e].abs().max().item<float>() == 0.0f, e != expert);
    }
}

TEST(GatedExperts, SkipsSlotsWithoutAnExpert) {
  const Shape s{15, 3, 4, 16, 8};
  for (const at::Device device : test_devices())
    for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
      Tensor indices = picks(s, device);
      indices.select(1, 1).slice(0, 0, 9).fill_(s.experts);
      indices.select(1, 0).slice(0, 3, 15, 2).fill_(s.experts + 11);
      indices.select(0, 4).fill_(1 << 20);
      const Tensors in = inputs(s, device, dtype), all = value_and_grads(actual(indices), in);
      expect_same_value_and_grads(actual(indices), formula(indices), in);
      EXPECT_EQ(all[0][4].abs().max().item<float>(), 0.0f);
      EXPECT_EQ(all[1][4].abs().max().item<float>(), 0.0f);
      EXPECT_EQ(all[2].select(0, 4).abs().max().item<float>(), 0.0f);
    }
}

TEST(GatedExperts, SkippedSlotsNeverSpoilAResultWithNan) {
  const Shape s{40, 2, 4, 32, 16};
  for (const at::Device device : test_devices()) {
    Tensor indices = at::full({s.tokens, s.slots}, s.experts, at::device(device).dtype(at::kLong));
    Tensors in = inputs(s, device, at::kBFloat16);
    const Tensors all = value_and_grads(actual(indices), in);
    for (const Tensor& result : all) EXPECT_EQ(result.abs().max().item<float>(), 0.0f);
  }
}

TEST(GatedExperts, TakesStridedInputsAndGradients) {
  const Shape s{14, 2, 5, 16, 8};
  for (const at::Device device : test_devices()) {
    const Tensor wide = at::cat({picks(s, device), picks(s, device)}, 1);
    const Tensor indices = wide.slice(1, 0, 4, 2).slice(0, 0, 14, 2);
    const auto on_views = [](TensorFunction f) {
      return [f](const Tensors& in) {
        return f({in[0].t().slice(0, 0, 14, 2), in[1].slice(0, 0, 14, 2), in[2].transpose(1, 2),
                  in[3].transpose(1, 2)})
            .t();
      };
    };
    const Tensors base = inputs(s, device);
    const Tensors in{base[0].t().contiguous(), base[1], base[2].transpose(1, 2).contiguous(),
                     base[3].transpose(1, 2).contiguous()};
    expect_same_value_and_grads(on_views(actual(indices)), on_views(formula(indices)), in);
    const auto summed = [](TensorFunction f) {
      return [f](const Tensors& in) { return f(in).sum(0); };
    };
    expect_same_value_and_grads(summed(actual(picks(s, device))), summed(formula(picks(s, device))),
                                base);
  }
}

TEST(GatedExperts, GivesGradientsOnlyWhereWanted) {
  const Shape s{11, 2, 4, 16, 8};
  for (const at::Device device : test_devices())
    for (const size_t wanted : {0, 1, 2, 3}) {
      const Tensor indices = picks(s, device);
      Tensors in = inputs(s, device), reference = inputs(s, device);
      in[wanted].requires_grad_(true);
      reference[wanted].requires_grad_(true);
      actual(indices)(in).square().sum().backward();
      formula(indices)(reference).square().sum().backward();
      for (size_t i = 0; i < in.size(); ++i) EXPECT_EQ(in[i].grad().defined(), i == wanted);
      EXPECT_LT(relative_error(in[wanted].grad(), reference[wanted].grad()), tolerance(at::kFloat));
    }
}

TEST(GatedExperts, AcceptsNoTokens) {
  const Shape s{0, 2, 4, 16, 8};
  for (const at::Device device : test_devices())
    for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
      const Tensor indices = at::empty({0, 2}, at::device(device).dtype(at::kLong));
      const Tensors all = value_and_grads(actual(indices), inputs(s, device, dtype));
      EXPECT_EQ(all[0].sizes(), (std::vector<int64_t>{0, 16}));
      EXPECT_EQ(all[3].abs().max().item<float>(), 0.0f);
      EXPECT_EQ(all[4].abs().max().item<float>(), 0.0f);
    }
}

TEST(GatedExperts, RefusesShapesThatDoNotFit) {
  const Shape s{5, 2, 4, 16, 8};
  const Tensors in = inputs(s, at::kCPU);
  const Tensor indices = picks(s, at::kCPU);
  EXPECT_THROW(gated_experts(in[0], indices.slice(1, 0, 1), in[1], in[2], in[3]), ValueError);
  EXPECT_THROW(gated_experts(in[0].slice(0, 0, 4), indices, in[1], in[2], in[3]), ValueError);
  EXPECT_THROW(gated_experts(in[0], indices, in[1], in[2].slice(1, 0, 15), in[3]), ValueError);
  EXPECT_THROW(gated_experts(in[0], indices, in[1], in[2], in[3].slice(0, 0, 3)), ValueError);
}

}  // namespace
}  // namespace automoe::kernels
