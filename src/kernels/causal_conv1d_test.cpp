#include "kernels/causal_conv1d.h"

#include "automoe/error.h"
#include "kernels/testing.h"

namespace automoe::kernels {
namespace {

using at::Tensor;
using Ends = std::vector<int64_t>;

// Document by document through the library's convolution. in: x, weight and, with three, bias.
TensorFunction formula(const Ends& ends) {
  return [=](const Tensors& in) {
    const Tensor &x = in[0], &weight = in[1];
    const int64_t channels = weight.size(0), taps = weight.size(1);
    Tensors parts;
    for (int64_t begin = 0; const int64_t end : ends) {
      const Tensor rows = x.slice(0, begin, end).t().unsqueeze(0);  // [1, C, T]
      const Tensor sum = at::conv1d(at::constant_pad_nd(rows, {taps - 1, 0}), weight.unsqueeze(1),
                                    in.size() > 2 ? std::optional<Tensor>(in[2]) : std::nullopt, 1,
                                    at::IntArrayRef{0}, 1, channels);
      parts.push_back(at::silu(sum).squeeze(0).t());
      begin = end;
    }
    return at::cat(parts);
  };
}

TensorFunction actual(const Ends& ends) {
  return [=](const Tensors& in) {
    return causal_conv1d(in[0], in[1], in.size() > 2 ? in[2] : Tensor(),
                         Documents::from_ends(ends, in[0].device()));
  };
}

Tensors inputs(int64_t tokens, int64_t channels, int64_t taps, at::Device device,
               at::ScalarType dtype = at::kFloat) {
  return {random_tensor({tokens, channels}, device, 1, dtype),
          random_tensor({channels, taps}, device, 2, dtype),
          random_tensor({channels}, device, 3, dtype)};
}

TEST(CausalConv1d, ValueAndGradientsMatchTheFormula) {
  struct Case {
    Ends ends;
    int64_t channels;
  };
  for (const at::Device device : test_devices())
    for (const Case& c : {Case{{1}, 1}, Case{{2}, 3}, Case{{35}, 130}, Case{{1, 2, 5, 40, 41}, 16},
                          Case{{31, 33, 64, 67, 130}, 264}})
      for (const int64_t taps : {1, 2, 3, 4})
        for (const at::ScalarType dtype : test_dtypes(device)) {
          SCOPED_TRACE(::testing::Message() << device << " T " << c.ends.back() << " C "
                                            << c.channels << " K " << taps << " " << dtype);
          expect_same_value_and_grads(actual(c.ends), formula(c.ends),
                                      inputs(c.ends.back(), c.channels, taps, device, dtype));
        }
}

TEST(CausalConv1d, NeedsNoBias) {
  for (const at::Device device : test_devices()) {
    Tensors in = inputs(9, 5, 4, device);
    in.pop_back();
    expect_same_value_and_grads(actual({4, 9}), formula({4, 9}), in);
  }
}

TEST(CausalConv1d, HalfPrecisionIsAsExactAsTheFormula) {
  for (const at::Device device : test_devices())
    for (const at::ScalarType dtype : {at::kBFloat16, at::kHalf})
      expect_as_exact_as_formula(actual({50, 300}), formula({50, 300}),
                                 inputs(300, 72, 4, device, dtype));
}

TEST(CausalConv1d, SeesNeitherTheFutureNorAnotherDocument) {
  for (const at::Device device : test_devices()) {
    const Tensors in = inputs(40, 24, 4, device);
    const Tensor before = actual({17, 40})(in);
    for (const int64_t changed : {5, 16, 17, 39}) {
      Tensors other = in;
      other[0] = in[0].clone();
      other[0].select(0, changed).add_(1);
      const Tensor moved = actual({17, 40})(other).ne(before).any(1);
      for (int64_t t = 0; t < 40; ++t) {
        const bool sees = t >= changed && t < changed + 4 && (t < 17) == (changed < 17);
        EXPECT_EQ(moved[t].item<bool>(), sees) << changed << " -> " << t;
      }
    }
  }
}

TEST(CausalConv1d, TakesSlicesOfAFusedProjection) {
  const auto on_slice = [](TensorFunction f) {
    return [f](const Tensors& in) {
      return f({in[0].slice(1, 8, 24), in[1], in[2]}).t().slice(0, 1, 15);
    };
  };
  for (const at::Device device : test_devices()) {
    Tensors in = inputs(22, 16, 4, device);
    in[0] = random_tensor({22, 40}, device, 1);
    expect_same_value_and_grads(on_slice(actual({22})), on_slice(formula({22})), in);
    in[0] = random_tensor({22, 41}, device, 1);
    expect_same_value_and_grads(on_slice(actual({22})), on_slice(formula({22})), in);
  }
}

TEST(CausalConv1d, AcceptsNoTokens) {
  for (const at::Device device : test_devices()) {
    const Tensors all = value_and_grads(actual({}), inputs(0, 8, 4, device));
    EXPECT_EQ(all[0].sizes(), (Ends{0, 8}));
    EXPECT_EQ(all[2].abs().max().item<float>(), 0.0f);
  }
}

TEST(CausalConv1d, RefusesShapesThatDoNotFit) {
  const Tensors in = inputs(6, 5, 4, at::kCPU);
  const Documents documents = Documents::from_ends({6}, at::kCPU);
  EXPECT_THROW(causal_conv1d(in[0], in[1].slice(0, 1), in[2], documents), ValueError);
  EXPECT_THROW(causal_conv1d(in[0], in[1], in[2].slice(0, 1), documents), ValueError);
  EXPECT_THROW(causal_conv1d(in[0].slice(0, 1), in[1], in[2], documents), ValueError);
  EXPECT_THROW(causal_conv1d(in[0], at::zeros({5, 5}), in[2], documents), ValueError);
}

}  // namespace
}  // namespace automoe::kernels
