#include "kernels/attention.h"

#include "automoe/error.h"
#include "kernels/testing.h"

namespace automoe::kernels {
namespace {

using at::Tensor;

// softmax(scale q k^T + mask) v with every score spelled out; documents and window become one mask.
// A fourth input is the sinks: one more score of each row, without a value.
TensorFunction formula(const Documents& documents, const AttentionOptions& options) {
  return [=](const Tensors& in) {
    const Tensor &q = in[0], &k = in[1], &v = in[2];
    const int64_t tokens = q.size(0), ratio = q.size(1) / k.size(1);
    const Tensor keys = k.repeat_interleave(ratio, 1), values = v.repeat_interleave(ratio, 1);
    Tensor seen = at::zeros({tokens, tokens}, at::kBool);
    for (int64_t begin = 0; const int64_t end : documents.ends) {
      for (int64_t i = begin; i < end; ++i) {
        const int64_t first = options.window > 0 ? std::max(begin, i - options.window + 1) : begin;
        seen[i].slice(0, first, i + 1).fill_(true);
      }
      begin = end;
    }
    const Tensor scores = at::einsum("ihd,jhd->hij", {widened(q), widened(keys)}) * options.scale;
    Tensor all = scores.masked_fill(seen.logical_not().to(q.device()), -INFINITY);
    if (in.size() > 3)
      all = at::cat({all, widened(in[3]).view({-1, 1, 1}).expand({-1, tokens, 1})}, 2);
    const Tensor p = all.softmax(-1).narrow(2, 0, tokens);
    return at::einsum("hij,jhd->ihd", {p, widened(values)}).to(q.scalar_type());
  };
}

TensorFunction actual(const Documents& documents, const AttentionOptions& options) {
  return [=](const Tensors& in) {
    return attention(in[0], in[1], in[2], documents, options, in.size() > 3 ? in[3] : Tensor());
  };
}

struct Heads {
  int64_t query, key, dim;
};

Tensors inputs(int64_t tokens, Heads heads, at::Device device, at::ScalarType dtype = at::kFloat) {
  return {random_tensor({tokens, heads.query, heads.dim}, device, 1, dtype),
          random_tensor({tokens, heads.key, heads.dim}, device, 2, dtype),
          random_tensor({tokens, heads.key, heads.dim}, device, 3, dtype)};
}

Tensors with_sinks(Tensors in, at::ScalarType dtype = at::kFloat) {
  in.push_back(random_tensor({in[0].size(1)}, in[0].device(), 4, dtype) * 2);
  return in;
}

const std::vector<std::vector<int64_t>> kPackings{{1},         {13},        {1, 2, 3},
                                                  {7, 14, 21}, {4, 13, 14}, {1, 18, 40}};

// Compares with the formula for every packing and window, on what `complete` makes of q, k and v.
template <typename F>
void expect_formula_everywhere(F&& complete) {
  for (const at::Device device : test_devices())
    for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16})
      for (const std::vector<int64_t>& ends : kPackings)
        for (const int64_t window : {0, 1, 2, 5, 100}) {
          SCOPED_TRACE(::testing::Message() << device << " " << dtype << " ends "
                                            << at::IntArrayRef(ends) << " window " << window);
          const Documents documents = Documents::from_ends(ends, device);
          const AttentionOptions options{.scale = 0.3, .window = window};
          expect_same_value_and_grads(
              actual(documents, options), formula(documents, options),
              complete(inputs(documents.tokens(), {4, 2, 16}, device, dtype)));
        }
}

TEST(Attention, ValueAndGradientsMatchTheFormulaForEveryPackingAndWindow) {
  expect_formula_everywhere([](const Tensors& in) { return in; });
}

TEST(Attention, SinksMatchTheFormulaForEveryPackingAndWindow) {
  expect_formula_everywhere([](const Tensors& in) { return with_sinks(in, in[0].scalar_type()); });
}

TEST(Attention, SinksAndWindowsReachAcrossBlocksOfQueries) {
  for (const at::Device device : test_devices())
    for (const int64_t window : {0, 7, 130, 200}) {
      SCOPED_TRACE(text(device, " window ", window));
      const Documents documents = Documents::from_ends({131, 420}, device);
      const AttentionOptions options{.scale = 0.3, .window = window};
      const Tensors in = inputs(420, {3, 1, 8}, device);
      expect_same_value_and_grads(actual(documents, options), formula(documents, options), in);
      expect_same_value_and_grads(actual(documents, options), formula(documents, options),
                                  with_sinks(in));
    }
}

TEST(Attention, SinksOfAnyHeadWidthAndDtypeOfTheirOwn) {
  for (const at::Device device : test_devices())
    for (const auto& [dim, value_dim] : {std::pair{20, 20}, std::pair{24, 16}, std::pair{7, 5}}) {
      const Documents documents = Documents::from_ends({4, 13, 14}, device);
      Tensors in = inputs(14, {4, 2, dim}, device, at::kBFloat16);
      in[2] = random_tensor({14, 2, value_dim}, device, 3, at::kBFloat16);
      expect_same_value_and_grads(actual(documents, {0.3, 3}), formula(documents, {0.3, 3}),
                                  with_sinks(in, at::kFloat));
    }
}

TEST(Attention, ASinkTakesItsShareAndNoneAtMinusInfinity) {
  for (const at::Device device : test_devices())
    for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
      const Documents documents = Documents::from_ends({1, 17}, device);
      const Tensors in = inputs(17, {4, 2, 16}, device, dtype);
      const auto with = [&](double sink) {
        return attention(in[0], in[1], in[2], documents, {0.25, 0}, at::full({4}, sink, device));
      };
      const Tensor without = attention(in[0], in[1], in[2], documents, {0.25, 0});
      EXPECT_LT(relative_error(with(-1e4), without), tolerance(dtype));
      EXPECT_EQ(with(1e4).abs().max().item<float>(), 0.0f);
    }
}

TEST(Attention, MemoryGrowsWithTokensNotWithTheirSquare) {
  const int64_t tokens = 3000;
  const Documents documents = Documents::from_ends({tokens}, at::kCPU);
  for (const int64_t window : {0, 50}) {
    const Tensors in = with_sinks(inputs(tokens, {2, 1, 8}, at::kCPU));
    const LargestAllocation allocation;
    value_and_grads(actual(documents, {0.3, window}), in);
    EXPECT_LT(allocation.bytes(), tokens * tokens * sizeof(float) / 2);
  }
}

TEST(Attention, GivesTheGradientOfASinkAlone) {
  for (const at::Device device : test_devices())
    for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
      const Documents documents = Documents::from_ends({5, 14}, device);
      Tensors in = with_sinks(inputs(14, {4, 2, 16}, device, dtype), dtype);
      in[3].requires_grad_(true);
      const Tensor out = actual(documents, {0.3, 4})(in),
                   expected = formula(documents, {0.3, 4})(in);
      const Tensor upstream = random_tensor(out.sizes(), device, 9, dtype);
      const Tensor grad = torch::autograd::grad({out}, {in[3]}, {upstream})[0];
      const Tensor truth = torch::autograd::grad({expected}, {in[3]}, {upstream})[0];
      EXPECT_LT(relative_error(grad, truth), tolerance(dtype));
    }
}

TEST(Attention, GroupsQueryHeads) {
  for (const at::Device device : test_devices())
    for (const std::vector<int64_t>& ends : {std::vector<int64_t>{19}, std::vector<int64_t>{4, 19}})
      for (const Heads heads :
           {Heads{3, 3, 8}, Heads{8, 2, 32}, Heads{8, 1, 64}, Heads{9, 3, 64}}) {
        SCOPED_TRACE(::testing::Message() << device << " " << heads.query << "/" << heads.key);
        const Documents documents = Documents::from_ends(ends, device);
        const AttentionOptions options{.scale = 0.2};
        expect_same_value_and_grads(actual(documents, options), formula(documents, options),
                                    inputs(19, heads, device));
      }
}

TEST(Attention, TakesHeadsOfAnyWidthAndValuesOfAnother) {
  for (const at::Device device : test_devices())
    for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16})
      for (const auto& [dim, value_dim] : {std::pair{20, 20}, std::pair{24, 16}, std::pair{7, 5}})
        for (const int64_t window : {0, 3}) {
          SCOPED_TRACE(text(device, " ", dtype, " D ", dim, " Dv ", value_dim, " window ", window));
          const Documents documents = Documents::from_ends({4, 13, 14}, device);
          const AttentionOptions options{.scale = 0.3, .window = window};
          Tensors in = inputs(14, {4, 2, dim}, device, dtype);
          in[2] = random_tensor({14, 2, value_dim}, device, 3, dtype);
          expect_same_value_and_grads(actual(documents, options), formula(documents, options), in);
        }
}

TEST(Attention, PackedDocumentsEqualDocumentsAlone) {
  for (const at::Device device : test_devices())
    for (const int64_t window : {0, 3}) {
      const AttentionOptions options{.scale = 0.25, .window = window};
      const Tensors in = inputs(14, {4, 2, 16}, device);
      const Tensor packed =
          attention(in[0], in[1], in[2], Documents::from_ends({4, 13, 14}, device), options);
      for (const auto& [begin, end] : {std::pair{0, 4}, std::pair{4, 13}, std::pair{13, 14}}) {
        const auto part = [b = begin, e = end](const Tensor& x) { return x.slice(0, b, e); };
        const Tensor alone = attention(part(in[0]), part(in[1]), part(in[2]),
                                       Documents::from_ends({end - begin}, device), options);
        EXPECT_LT(relative_error(part(packed), alone), tolerance(at::kFloat));
      }
    }
}

TEST(Attention, NothingLeaksAcrossDocuments) {
  for (const at::Device device : test_devices()) {
    const Documents documents = Documents::from_ends({6, 17}, device);
    Tensors in = inputs(17, {4, 2, 16}, device);
    const Tensor before = attention(in[0], in[1], in[2], documents, {});
    for (Tensor& x : in) x.slice(0, 0, 6).mul_(7).add_(1);
    const Tensor after = attention(in[0], in[1], in[2], documents, {});
    EXPECT_TRUE(after.slice(0, 6).equal(before.slice(0, 6)));
    EXPECT_FALSE(after.slice(0, 0, 6).equal(before.slice(0, 0, 6)));
  }
}

TEST(Attention, TakesSlicesOfAFusedProjection) {
  for (const at::Device device : test_devices())
    for (const std::vector<int64_t>& ends :
         {std::vector<int64_t>{22}, std::vector<int64_t>{5, 22}}) {
      const Documents documents = Documents::from_ends(ends, device);
      const auto split = [](TensorFunction f) {
        return [f](const Tensors& in) {
          const auto parts = in[0].view({22, 8, 16}).split_with_sizes({4, 2, 2}, 1);
          return f({parts[0], parts[1], parts[2]}).transpose(0, 1);
        };
      };
      const Tensors in{random_tensor({22, 128}, device, 1)};
      expect_same_value_and_grads(split(actual(documents, {0.25, 0})),
                                  split(formula(documents, {0.25, 0})), in);
      expect_same_value_and_grads(split(actual(documents, {0.25, 4})),
                                  split(formula(documents, {0.25, 4})), in);
    }
}

TEST(Attention, HalfPrecisionStaysNearTheFormulaInDouble) {
  for (const at::Device device : test_devices()) {
    const Documents documents = Documents::from_ends({40, 97}, device);
    const Tensors in = inputs(97, {4, 2, 64}, device, at::kBFloat16);
    Tensors exact;
    for (const Tensor& x : in) exact.push_back(x.to(at::kDouble));
    const Tensors a = value_and_grads(actual(documents, {0.125, 0}), in);
    const Tensors truth = value_and_grads(formula(documents, {0.125, 0}), exact);
    for (size_t i = 0; i < a.size(); ++i)
      EXPECT_LT(relative_error(a[i], truth[i]), 6e-3) << describe_result(i);
  }
}

TEST(Attention, AcceptsNoTokens) {
  for (const at::Device device : test_devices()) {
    const Documents none = Documents::from_ends({}, device);
    const Tensors all = value_and_grads(actual(none, {}), inputs(0, {4, 2, 16}, device));
    EXPECT_EQ(all[0].sizes(), (std::vector<int64_t>{0, 4, 16}));
    const Tensors sinks =
        value_and_grads(actual(none, {}), with_sinks(inputs(0, {4, 2, 16}, device)));
    EXPECT_EQ(sinks[4].abs().max().item<float>(), 0.0f);
  }
}

TEST(Attention, RefusesShapesThatDoNotFit) {
  const Documents documents = Documents::from_ends({5}, at::kCPU);
  const auto x = [](int64_t tokens, int64_t heads, int64_t dim) {
    return at::zeros({tokens, heads, dim});
  };
  EXPECT_THROW(attention(x(5, 3, 8), x(5, 2, 8), x(5, 2, 8), documents, {}), ValueError);
  EXPECT_THROW(attention(x(5, 4, 8), x(5, 2, 4), x(5, 2, 4), documents, {}), ValueError);
  EXPECT_THROW(attention(x(5, 4, 8), x(5, 2, 8), x(5, 1, 8), documents, {}), ValueError);
  EXPECT_THROW(attention(x(6, 4, 8), x(6, 2, 8), x(6, 2, 8), documents, {}), ValueError);
  EXPECT_THROW(attention(x(5, 4, 8), x(5, 2, 8), x(5, 2, 8), documents, {}, at::zeros({2})),
               ValueError);
}

}  // namespace
}  // namespace automoe::kernels
