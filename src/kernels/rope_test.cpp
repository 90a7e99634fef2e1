#include "kernels/rope.h"

#include "automoe/error.h"
#include "kernels/testing.h"

namespace automoe::kernels {
namespace {

using at::Tensor;

// As Transformers writes it: x cos + rotate_half(x) sin, on d elements from `first`; pairs are
// sorted into halves and back. cos, sin [T, d/2].
TensorFunction formula(const Tensor& cos, const Tensor& sin, const RopeOptions& options = {}) {
  return [=](const Tensors& in) {
    const Tensor& x = in[0];
    const int64_t half = cos.size(1), end = options.first + 2 * half;
    const Tensor c = at::cat({cos, cos}, -1).unsqueeze(1).to(x.scalar_type());
    const Tensor s = at::cat({sin, sin}, -1).unsqueeze(1).to(x.scalar_type());
    const auto reordered = [&](const Tensor& t, int64_t rows, int64_t columns) {
      return options.pairs ? t.unflatten(-1, {rows, columns}).transpose(-1, -2).flatten(-2) : t;
    };
    const Tensor turning = reordered(x.slice(-1, options.first, end), half, 2);
    const auto halves = turning.chunk(2, -1);
    const Tensor turned = turning * c + at::cat({-halves[1], halves[0]}, -1) * s;
    return at::cat({x.slice(-1, 0, options.first), reordered(turned, 2, half), x.slice(-1, end)},
                   -1);
  };
}

TensorFunction actual(const Tensor& cos, const Tensor& sin, const RopeOptions& options = {}) {
  return [=](const Tensors& in) { return apply_rope(in[0], cos, sin, options); };
}

struct Table {
  Tensor cos, sin;  // [T, d/2]
};

Table table(int64_t tokens, int64_t half, at::Device device, at::ScalarType dtype) {
  const Tensor angles =
      at::arange(tokens, at::kFloat).unsqueeze(1) *
      at::pow(100.0, at::arange(half, at::kFloat) * (-1.0 / std::max<int64_t>(1, half)));
  return {angles.cos().to(device, dtype), angles.sin().to(device, dtype)};
}

TEST(Rope, ValueAndGradientMatchTheFormula) {
  struct Case {
    int64_t tokens, heads, dim, half, first = 0;
  };
  for (const at::Device device : test_devices())
    for (const Case& c :
         {Case{1, 1, 2, 1}, Case{7, 3, 16, 8}, Case{130, 5, 64, 32}, Case{9, 2, 128, 16},
          Case{11, 4, 10, 3}, Case{5, 2, 7, 3}, Case{33, 9, 128, 64}, Case{17, 3, 192, 32, 128},
          Case{6, 2, 40, 8, 16}, Case{5, 3, 11, 3, 4}})
      for (const bool pairs : {false, true})
        for (const at::ScalarType dtype : test_dtypes(device)) {
          SCOPED_TRACE(::testing::Message() << device << " T " << c.tokens << " heads " << c.heads
                                            << " D " << c.dim << " d/2 " << c.half << " from "
                                            << c.first << " pairs " << pairs << " " << dtype);
          const Table t = table(c.tokens, c.half, device, dtype);
          const RopeOptions options{pairs, c.first};
          expect_same_value_and_grads(
              actual(t.cos, t.sin, options), formula(t.cos, t.sin, options),
              {random_tensor({c.tokens, c.heads, c.dim}, device, 1, dtype)});
        }
}

TEST(Rope, HalfPrecisionIsAsExactAsTheFormula) {
  for (const at::Device device : test_devices())
    for (const at::ScalarType dtype : {at::kBFloat16, at::kHalf}) {
      const Table t = table(100, 32, device, dtype);
      expect_as_exact_as_formula(actual(t.cos, t.sin), formula(t.cos, t.sin),
                                 {random_tensor({100, 4, 64}, device, 1, dtype)});
    }
}

TEST(Rope, TakesStridedInputsAndGradients) {
  for (const at::Device device : test_devices()) {
    const Table t = table(9, 8, device, at::kFloat);
    const Tensors in{random_tensor({9, 40, 3}, device, 1)};
    const auto on_views = [](TensorFunction f) {  // the middle of a fused projection, transposed
      return [f](const Tensors& in) {
        return f({in[0].slice(1, 12, 28).transpose(1, 2)}).transpose(0, 2);
      };
    };
    expect_same_value_and_grads(on_views(actual(t.cos, t.sin)), on_views(formula(t.cos, t.sin)),
                                in);
    const auto shared_head = [](TensorFunction f) {
      return [f](const Tensors& in) {
        return f({in[0].slice(1, 0, 16).select(2, 0).unsqueeze(1).expand({9, 5, 16})}).sum(1);
      };
    };
    expect_same_value_and_grads(shared_head(actual(t.cos, t.sin)),
                                shared_head(formula(t.cos, t.sin)), in);
  }
}

TEST(Rope, TakesTablesWithStrides) {
  for (const at::Device device : test_devices()) {
    const Table t = table(9, 16, device, at::kFloat);
    const Tensor cos = t.cos.slice(1, 0, 16, 2), sin = t.sin.slice(1, 0, 16, 2);
    expect_same_value_and_grads(actual(cos, sin), formula(cos, sin),
                                {random_tensor({9, 2, 16}, device, 1)});
  }
}

TEST(Rope, PositionZeroIsTheIdentity) {
  const Table t = table(1, 4, at::kCPU, at::kFloat);
  const Tensor x = random_tensor({1, 3, 8}, at::kCPU, 1);
  EXPECT_TRUE(apply_rope(x, t.cos, t.sin).equal(x));
}

TEST(Rope, AcceptsNoTokens) {
  for (const at::Device device : test_devices()) {
    const Table t = table(0, 4, device, at::kFloat);
    EXPECT_EQ(value_and_grads(actual(t.cos, t.sin), {at::zeros({0, 3, 8}, at::device(device))})[0]
                  .numel(),
              0);
  }
}

TEST(Rope, RefusesTablesOfAnotherLengthOrWidth) {
  const Tensor x = at::zeros({5, 2, 8});
  EXPECT_THROW(apply_rope(x, at::zeros({4, 4}), at::zeros({4, 4})), ValueError);
  EXPECT_THROW(apply_rope(x, at::zeros({5, 5}), at::zeros({5, 5})), ValueError);
  EXPECT_THROW(apply_rope(x, at::zeros({5, 4}), at::zeros({5, 3})), ValueError);
  EXPECT_THROW(apply_rope(x, at::zeros({5, 3}), at::zeros({5, 3}), {.first = 3}), ValueError);
}

}  // namespace
}  // namespace automoe::kernels
