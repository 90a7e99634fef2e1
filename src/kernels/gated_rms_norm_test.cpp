#include "kernels/gated_rms_norm.h"

#include "automoe/error.h"
#include "kernels/testing.h"

namespace automoe::kernels {
namespace {

using at::Tensor;

// As Transformers writes it, but rounded once. in: x, gate, weight.
TensorFunction formula(int64_t groups, double eps = 1e-5) {
  return [=](const Tensors& in) {
    const Tensor gated = (widened(in[0]) * at::silu(widened(in[1]))).unflatten(1, {groups, -1});
    const Tensor normed = gated * at::rsqrt(gated.square().mean(-1, /*keepdim=*/true) + eps);
    return (widened(in[2]) * normed.flatten(1)).to(in[0].scalar_type());
  };
}

TensorFunction actual(int64_t groups, double eps = 1e-5) {
  return [=](const Tensors& in) { return gated_rms_norm(in[0], in[1], in[2], groups, eps); };
}

Tensors inputs(int64_t tokens, int64_t width, at::Device device,
               at::ScalarType dtype = at::kFloat) {
  return {random_tensor({tokens, width}, device, 1, dtype),
          random_tensor({tokens, width}, device, 2, dtype),
          random_tensor({width}, device, 3, dtype)};
}

TEST(GatedRmsNorm, ValueAndGradientsMatchTheFormula) {
  struct Case {
    int64_t tokens, groups, width;
  };
  for (const at::Device device : test_devices())
    for (const Case& c : {Case{1, 1, 3}, Case{7, 1, 33}, Case{5, 3, 11}, Case{130, 2, 64},
                          Case{67, 8, 512}, Case{3, 4, 1000}})
      for (const at::ScalarType dtype : test_dtypes(device)) {
        SCOPED_TRACE(::testing::Message() << device << " T " << c.tokens << " G " << c.groups
                                          << " width " << c.width << " " << dtype);
        expect_same_value_and_grads(actual(c.groups), formula(c.groups),
                                    inputs(c.tokens, c.groups * c.width, device, dtype));
      }
}

TEST(GatedRmsNorm, HalfPrecisionIsAsExactAsTheFormula) {
  for (const at::Device device : test_devices())
    for (const at::ScalarType dtype : {at::kBFloat16, at::kHalf})
      expect_as_exact_as_formula(actual(4), formula(4), inputs(100, 256, device, dtype));
}

TEST(GatedRmsNorm, GroupsDoNotMix) {
  for (const at::Device device : test_devices()) {
    Tensors in = inputs(3, 20, device);
    const Tensor before = actual(4)(in);
    in[0].slice(1, 5, 10).mul_(3).add_(1);
    const Tensor moved = actual(4)(in).ne(before).any(0);
    EXPECT_FALSE(moved.slice(0, 0, 5).any().item<bool>());
    EXPECT_TRUE(moved.slice(0, 5, 10).all().item<bool>());
    EXPECT_FALSE(moved.slice(0, 10).any().item<bool>());
  }
}

TEST(GatedRmsNorm, EpsKeepsAZeroRowFinite) {
  for (const at::Device device : test_devices()) {
    Tensors in = inputs(3, 16, device);
    in[0].zero_();
    for (const Tensor& each : value_and_grads(actual(2), in))
      EXPECT_TRUE(each.isfinite().all().item<bool>());
    in[0].fill_(1e-3);
    expect_same_value_and_grads(actual(2, 1e-2), formula(2, 1e-2), in);
  }
}

TEST(GatedRmsNorm, TakesTheGateOutOfAFusedProjection) {
  for (const at::Device device : test_devices())
    for (const int64_t extra : {16, 9}) {
      const auto on_slice = [&](TensorFunction f) {
        return [f, extra](const Tensors& in) {
          return f({in[0].t(), in[1].slice(1, extra, extra + 32), in[2]}).t();
        };
      };
      expect_same_value_and_grads(
          on_slice(actual(4)), on_slice(formula(4)),
          {random_tensor({32, 10}, device, 1), random_tensor({10, 32 + extra}, device, 2),
           random_tensor({32}, device, 3)});
    }
}

TEST(GatedRmsNorm, KeepsTheDtypeOfXWithAWiderWeight) {
  for (const at::Device device : test_devices()) {
    Tensors in = inputs(5, 16, device, at::kBFloat16);
    in[2] = in[2].to(at::kFloat);
    const Tensors all = value_and_grads(actual(2), in);
    EXPECT_EQ(all[0].scalar_type(), at::kBFloat16);
    EXPECT_EQ(all[3].scalar_type(), at::kFloat);
    expect_same_value_and_grads(actual(2), formula(2), in);
  }
}

TEST(GatedRmsNorm, AcceptsNoTokens) {
  for (const at::Device device : test_devices()) {
    const Tensors all = value_and_grads(actual(2), inputs(0, 16, device));
    EXPECT_EQ(all[0].sizes(), (std::vector<int64_t>{0, 16}));
    EXPECT_EQ(all[3].abs().max().item<float>(), 0.0f);
  }
}

TEST(GatedRmsNorm, RefusesShapesThatDoNotFit) {
  const Tensors in = inputs(4, 12, at::kCPU);
  EXPECT_THROW(gated_rms_norm(in[0], in[1].slice(0, 1), in[2], 3, 0), ValueError);
  EXPECT_THROW(gated_rms_norm(in[0], in[1], in[2].slice(0, 1), 3, 0), ValueError);
  EXPECT_THROW(gated_rms_norm(in[0], in[1].to(at::kHalf), in[2], 3, 0), ValueError);
  EXPECT_THROW(gated_rms_norm(in[0], in[1], in[2], 5, 0), ValueError);
}

}  // namespace
}  // namespace automoe::kernels
