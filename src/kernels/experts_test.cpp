#include "kernels/experts.h"

#include "automoe/error.h"
#include "kernels/testing.h"

namespace automoe::kernels {
namespace {

using at::Tensor;

// A kind of experts: the inputs are x, weights, up, down, and with `biases` up_bias, down_bias.
struct Kind {
  Activation activation{};
  bool biases = false;
};

const Kind kPlain{}, kGptOss{{Activation::kClampedSwiglu, 1.702, 2.0}, true},
    kNemotron{{Activation::kReluSquared}, false};
const std::vector<Kind> kKinds{kPlain, kGptOss, kNemotron, {{Activation::kSiluMul}, true}};

// Where a gradient jumps, rounding decides on which side a number is: limits out of reach for
// comparisons with double in half precision.
std::vector<Kind> kinds(at::ScalarType dtype) {
  std::vector<Kind> out = kKinds;
  if (c10::elementSize(dtype) < 4)
    for (Kind& kind : out) kind.activation.limit = 7.0;
  return out;
}

Tensor activation_formula(const Tensor& pre, const Activation& a) {
  if (a.kind == Activation::kReluSquared) return at::relu(pre).square();
  const int64_t width = pre.size(1) / 2;
  if (a.kind == Activation::kSiluMul)
    return at::silu(pre.narrow(1, 0, width)) * pre.narrow(1, width, width);
  const Tensor gate = pre.slice(1, 0, std::nullopt, 2).clamp_max(a.limit);
  const Tensor up = pre.slice(1, 1, std::nullopt, 2).clamp(-a.limit, a.limit);
  return (up + 1) * (gate * at::sigmoid(gate * a.alpha));
}

// Expert by expert, slot by slot.
TensorFunction formula(const Tensor& indices, const Kind& kind = kPlain) {
  return [=](const Tensors& in) {
    const Tensor &x = in[0], &weights = in[1], &up = in[2], &down = in[3];
    Tensor y = at::zeros(x.sizes(), x.options().dtype(widened(x).scalar_type()));
    for (int64_t e = 0; e < up.size(0); ++e)
      for (int64_t k = 0; k < indices.size(1); ++k) {
        const Tensor tokens = indices.select(1, k).eq(e).nonzero().squeeze(1);
        Tensor pre = at::linear(x.index_select(0, tokens), up[e]);
        if (kind.biases) pre = pre + in[4][e];
        Tensor o = at::linear(activation_formula(pre, kind.activation), down[e]);
        if (kind.biases) o = o + in[5][e];
        o = o * weights.index_select(0, tokens).select(1, k).unsqueeze(1);
        y = y.index_add(0, tokens, o.to(y.scalar_type()));
      }
    return y.to(x.scalar_type());
  };
}

TensorFunction actual(const Tensor& indices, const Kind& kind = kPlain) {
  return [=](const Tensors& in) {
    ExpertWeights weights{in[2], in[3]};
    if (kind.biases) {
      weights.up_bias = in[4];
      weights.down_bias = in[5];
    }
    return experts(in[0], indices, in[1], weights, kind.activation);
  };
}

struct Shape {
  int64_t tokens, slots, experts, hidden, width;
};

Tensors inputs(const Shape& s, at::Device device, at::ScalarType dtype = at::kFloat,
               std::optional<at::ScalarType> weight_dtype = std::nullopt,
               const Kind& kind = kPlain) {
  const int64_t rows = kind.activation.num_inputs() * s.width;
  Tensors in{
      random_tensor({s.tokens, s.hidden}, device, 1, dtype),
      random_tensor({s.tokens, s.slots}, device, 2).softmax(1).to(weight_dtype.value_or(dtype)),
      random_tensor({s.experts, rows, s.hidden}, device, 3, dtype) / std::sqrt(double(s.hidden)),
      random_tensor({s.experts, s.hidden, s.width}, device, 4, dtype) / std::sqrt(double(s.width))};
  if (kind.biases) {
    in.push_back(random_tensor({s.experts, rows}, device, 5, dtype));
    in.push_back(random_tensor({s.experts, s.hidden}, device, 6, dtype));
  }
  return in;
}

// K different experts a token, as a router picks them.
Tensor picks(const Shape& s, at::Device device) {
  return random_tensor({s.tokens, s.experts}, device, 5)
      .argsort(int64_t{1}, false)
      .narrow(1, 0, s.slots)
      .contiguous();
}

std::string describe(const Shape& s, at::Device device, const Kind& kind = kPlain) {
  return text(device, " activation ", int(kind.activation.kind), " biases ", kind.biases, " T ",
              s.tokens, " K ", s.slots, " E ", s.experts, " H ", s.hidden, " I ", s.width);
}

TEST(Experts, ValueAndGradientsMatchTheFormula) {
  for (const at::Device device : test_devices())
    for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16})
      for (const Kind& kind : kinds(dtype))
        for (const Shape& s :
             {Shape{1, 1, 1, 8, 8}, Shape{1, 3, 5, 16, 8}, Shape{13, 2, 8, 32, 16},
              Shape{7, 4, 4, 24, 40}, Shape{3, 1, 30, 16, 16}, Shape{131, 8, 17, 72, 56}}) {
          SCOPED_TRACE(describe(s, device, kind) + text(" ", dtype));
          const Tensor indices = picks(s, device);
          expect_same_value_and_grads(actual(indices, kind), formula(indices, kind),
                                      inputs(s, device, dtype, {}, kind));
        }
}

TEST(Experts, TakesOddExtents) {
  for (const at::Device device : test_devices())
    for (const at::ScalarType dtype : test_dtypes(device))
      for (const Kind& kind : kinds(dtype))
        for (const Shape& s : {Shape{5, 2, 3, 1, 1}, Shape{11, 3, 7, 33, 5}}) {
          SCOPED_TRACE(describe(s, device, kind) + text(" ", dtype));
          const Tensor indices = picks(s, device);
          expect_same_value_and_grads(actual(indices, kind), formula(indices, kind),
                                      inputs(s, device, dtype, {}, kind));
        }
}

TEST(Experts, HalfPrecisionIsAsExactAsTheFormula) {
  const Shape s{300, 4, 8, 64, 48};
  for (const at::Device device : test_devices())
    for (const at::ScalarType weight_dtype : {at::kBFloat16, at::kFloat})
      for (const Kind& kind : kKinds) {
        SCOPED_TRACE(describe(s, device, kind) + text(" weights ", weight_dtype));
        const Tensor indices = picks(s, device);
        expect_as_exact_as_formula(actual(indices, kind), formula(indices, kind),
                                   inputs(s, device, at::kBFloat16, weight_dtype, kind));
      }
}

TEST(Experts, KeepsTheDtypeOfXWithWiderWeights) {
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

TEST(Experts, AllTokensMayGoToOneExpert) {
  const Shape s{21, 1, 6, 16, 24};
  for (const at::Device device : test_devices())
    for (const int64_t expert : {0, 3, 5})
      for (const Kind& kind : kKinds) {
        const Tensor indices = at::full({s.tokens, 1}, expert, at::device(device).dtype(at::kLong));
        const Tensors in = inputs(s, device, at::kFloat, {}, kind);
        expect_same_value_and_grads(actual(indices, kind), formula(indices, kind), in);
        const Tensors all = value_and_grads(actual(indices, kind), in);
        for (size_t weight = 3; weight < all.size(); ++weight)
          for (int64_t e = 0; e < s.experts; ++e)
            EXPECT_EQ(all[weight][e].abs().max().item<float>() == 0.0f, e != expert);
      }
}

TEST(Experts, SkipsSlotsWithoutAnExpert) {
  const Shape s{15, 3, 4, 16, 8};
  for (const at::Device device : test_devices())
    for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16})
      for (const Kind& kind : kinds(dtype)) {
        SCOPED_TRACE(describe(s, device, kind));
        Tensor indices = picks(s, device);
        indices.select(1, 1).slice(0, 0, 9).fill_(s.experts);
        indices.select(1, 0).slice(0, 3, 15, 2).fill_(s.experts + 11);
        indices.select(0, 4).fill_(1 << 20);
        indices.select(0, 5).fill_(-1);
        const Tensors in = inputs(s, device, dtype, {}, kind);
        const Tensors all = value_and_grads(actual(indices, kind), in);
        expect_same_value_and_grads(actual(indices, kind), formula(indices, kind), in);
        for (const int64_t skipped : {4, 5})
          for (size_t i = 0; i < 3; ++i)
            EXPECT_EQ(all[i].select(0, skipped).abs().max().item<float>(), 0.0f);
      }
}

TEST(Experts, SkippedSlotsNeverSpoilAResultWithNan) {
  const Shape s{40, 2, 4, 32, 16};
  for (const at::Device device : test_devices()) {
    Tensor indices = at::full({s.tokens, s.slots}, s.experts, at::device(device).dtype(at::kLong));
    for (const Kind& kind : kKinds) {
      const Tensors in = inputs(s, device, at::kBFloat16, {}, kind);
      for (const Tensor& result : value_and_grads(actual(indices, kind), in))
        EXPECT_EQ(result.abs().max().item<float>(), 0.0f);
    }
  }
}

TEST(Experts, TakesStridedInputsAndGradients) {
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

TEST(Experts, GradientsLieLikeTheirWeightsAndCostNoCopy) {
  const Shape s{9, 2, 3, 96, 80};
  for (const at::Device device : test_devices())
    for (const Kind& kind : {kPlain, kGptOss}) {
      Tensors in = inputs(s, device, at::kFloat, {}, kind);
      for (const size_t weight : {2, 3})  // leaves [E, in, out], as GPT-OSS stores them
        in[weight] = in[weight].transpose(1, 2).contiguous();
      const auto on_views = [&](TensorFunction f) {
        return [f](Tensors in) {
          for (const size_t weight : {2, 3}) in[weight] = in[weight].transpose(1, 2);
          return f(in);
        };
      };
      const Tensor indices = picks(s, device);
      expect_same_value_and_grads(on_views(actual(indices, kind)), on_views(formula(indices, kind)),
                                  in);
      const Tensors all = value_and_grads(on_views(actual(indices, kind)), in);
      for (const size_t weight : {2, 3}) EXPECT_TRUE(all[weight + 1].is_contiguous());
    }
}

TEST(Experts, GivesGradientsOnlyWhereWanted) {
  const Shape s{11, 2, 4, 16, 8};
  for (const at::Device device : test_devices())
    for (const size_t wanted : {0, 1, 2, 3, 4, 5}) {
      const Tensor indices = picks(s, device);
      Tensors in = inputs(s, device, at::kFloat, {}, kGptOss),
              reference = inputs(s, device, at::kFloat, {}, kGptOss);
      in[wanted].requires_grad_(true);
      reference[wanted].requires_grad_(true);
      actual(indices, kGptOss)(in).square().sum().backward();
      formula(indices, kGptOss)(reference).square().sum().backward();
      for (size_t i = 0; i < in.size(); ++i) EXPECT_EQ(in[i].grad().defined(), i == wanted);
      EXPECT_LT(relative_error(in[wanted].grad(), reference[wanted].grad()), tolerance(at::kFloat));
    }
}

TEST(Experts, AcceptsNoTokens) {
  const Shape s{0, 2, 4, 16, 8};
  for (const at::Device device : test_devices())
    for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16})
      for (const Kind& kind : kKinds) {
        const Tensor indices = at::empty({0, 2}, at::device(device).dtype(at::kLong));
        const Tensors all =
            value_and_grads(actual(indices, kind), inputs(s, device, dtype, {}, kind));
        EXPECT_EQ(all[0].sizes(), (std::vector<int64_t>{0, 16}));
        for (size_t weight = 3; weight < all.size(); ++weight)
          EXPECT_EQ(all[weight].abs().max().item<float>(), 0.0f);
      }
}

TEST(Experts, RefusesShapesAndDtypesThatDoNotFit) {
  const Shape s{5, 2, 4, 16, 8};
  const Tensors in = inputs(s, at::kCPU, at::kFloat, {}, kGptOss);
  const Tensor indices = picks(s, at::kCPU);
  const ExpertWeights fits{in[2], in[3], in[4], in[5]};
  EXPECT_NO_THROW(experts(in[0], indices, in[1], fits));
  EXPECT_THROW(experts(in[0], indices.slice(1, 0, 1), in[1], fits), ValueError);
  EXPECT_THROW(experts(in[0].slice(0, 0, 4), indices, in[1], fits), ValueError);
  EXPECT_THROW(experts(in[0], indices, in[1], fits, {Activation::kReluSquared}), ValueError);
  const auto refused = [&](Tensor ExpertWeights::*which, const Tensor& instead) {
    ExpertWeights wrong = fits;
    wrong.*which = instead;
    EXPECT_THROW(experts(in[0], indices, in[1], wrong), ValueError);
  };
  refused(&ExpertWeights::up, in[2].slice(1, 0, 15));
  refused(&ExpertWeights::down, in[3].slice(0, 0, 3));
  refused(&ExpertWeights::up_bias, in[4].slice(1, 0, 8));
  refused(&ExpertWeights::down_bias, in[5][0]);
  refused(&ExpertWeights::down_bias, in[5].to(at::kDouble));
}

}  // namespace
}  // namespace automoe::kernels
