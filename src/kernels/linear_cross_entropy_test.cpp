#include "kernels/linear_cross_entropy.h"

#include <cmath>

#include "automoe/error.h"
#include "kernels/testing.h"

namespace automoe::kernels {
namespace {

using at::Tensor;

// As Transformers: logits in the model dtype, widened, sum of the losses over the denominator.
TensorFunction formula(const Tensor& targets, const Tensor& denominator = {}) {
  return [=](const Tensors& in) {
    const Tensor logits = widened(at::linear(in[0], in[1]));
    const Tensor sum =
        at::cross_entropy_loss(logits, targets, {}, at::Reduction::Sum, kIgnoreIndex);
    return sum /
           (denominator.defined() ? denominator : targets.ne(kIgnoreIndex).sum().clamp_min(1));
  };
}

TensorFunction actual(const Tensor& targets, const Tensor& denominator = {}) {
  return
      [=](const Tensors& in) { return linear_cross_entropy(in[0], in[1], targets, denominator); };
}

struct Shape {
  int64_t tokens, vocab, hidden;
};

Tensors inputs(const Shape& s, at::Device device, at::ScalarType dtype = at::kFloat) {
  return {random_tensor({s.tokens, s.hidden}, device, 1, dtype),
          random_tensor({s.vocab, s.hidden}, device, 2, dtype) / std::sqrt(double(s.hidden))};
}

// Every third target ignored.
Tensor some_targets(const Shape& s, at::Device device) {
  Tensor targets = random_integers({s.tokens}, s.vocab, device, 3);
  targets.slice(0, 1, s.tokens, 3).fill_(kIgnoreIndex);
  return targets;
}

TEST(LinearCrossEntropy, ValueAndGradientsMatchTheFormula) {
  for (const at::Device device : test_devices())
    for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf})
      for (const Shape& s : {Shape{1, 1, 1}, Shape{1, 7, 3}, Shape{13, 64, 16},
                             Shape{130, 1003, 33}, Shape{5, 5000, 8}}) {
        SCOPED_TRACE(::testing::Message()
                     << device << " " << dtype << " T " << s.tokens << " V " << s.vocab);
        for (const Tensor& targets :
             {random_integers({s.tokens}, s.vocab, device, 3), some_targets(s, device)})
          expect_same_value_and_grads(actual(targets), formula(targets), inputs(s, device, dtype));
      }
}

TEST(LinearCrossEntropy, DividesByTheGivenDenominator) {
  const Shape s{17, 50, 8};
  for (const at::Device device : test_devices()) {
    const Tensor targets = some_targets(s, device);
    for (const Tensor& denominator : {at::tensor(100.0f), at::tensor(int64_t{3}), at::tensor(2.5)})
      expect_same_value_and_grads(actual(targets, denominator.to(device)),
                                  formula(targets, denominator.to(device, at::kFloat)),
                                  inputs(s, device));
  }
}

TEST(LinearCrossEntropy, AllTargetsIgnoredGivesZeroLossAndGradients) {
  const Shape s{9, 40, 8};
  for (const at::Device device : test_devices())
    for (const Tensor& denominator : {Tensor(), at::tensor(0), at::tensor(7.0f)}) {
      const Tensor targets =
          at::full({s.tokens}, kIgnoreIndex, at::device(device).dtype(at::kLong));
      const Tensors all = value_and_grads(actual(targets, denominator), inputs(s, device));
      for (const Tensor& result : all) EXPECT_EQ(result.abs().max().item<float>(), 0.0f);
      EXPECT_EQ(all[1].sizes(), (std::vector<int64_t>{9, 8}));
    }
}

TEST(LinearCrossEntropy, IgnoredRowsMayHoldAnything) {
  const Shape s{8, 30, 4};
  for (const at::Device device : test_devices()) {
    const Tensor targets = some_targets(s, device);
    Tensors in = inputs(s, device);
    const Tensor clean = actual(targets)(in);
    in[0][1].mul_(1e4);
    EXPECT_LT(relative_error(actual(targets)(in), clean), 1e-6);
    EXPECT_EQ(value_and_grads(actual(targets), in)[1][1].abs().max().item<float>(), 0.0f);
  }
}

TEST(LinearCrossEntropy, HugeLogitsStayFinite) {
  const Shape s{6, 40, 4};
  for (const at::Device device : test_devices()) {
    Tensors in = inputs(s, device);
    in[0].mul_(1e4);
    const Tensor targets = random_integers({s.tokens}, s.vocab, device, 3);
    expect_same_value_and_grads(actual(targets), formula(targets), in);
  }
}

TEST(LinearCrossEntropy, NeverHoldsAllLogitsOfALargeVocabulary) {
  const Shape s{64, 262144, 16};
  const Tensor targets = some_targets(s, at::kCPU);
  const Tensors in = inputs(s, at::kCPU);
  size_t largest = 0;
  Tensors a;
  {
    const LargestAllocation recorder;
    a = value_and_grads(actual(targets), in);
    largest = recorder.bytes();
  }
  EXPECT_GE(largest,
            sizeof(float) * s.vocab * s.hidden);  // the weight's gradient: the recorder sees all
  EXPECT_LT(largest, sizeof(float) * s.tokens * s.vocab);
  const Tensors truth = value_and_grads(formula(targets), in_double(in));
  for (size_t i = 0; i < a.size(); ++i)
    EXPECT_LT(relative_error(a[i], truth[i]), tolerance(at::kFloat)) << describe_result(i);
}

TEST(LinearCrossEntropy, ChunksAddUpToTheWhole) {
  const Shape s{300, 100003, 8};
  for (const at::Device device : test_devices()) {
    const Tensor targets = some_targets(s, device);
    expect_same_value_and_grads(actual(targets), formula(targets), inputs(s, device));
  }
}

TEST(LinearCrossEntropy, HalfPrecisionIsAsExactAsTheFormula) {
  const Shape s{200, 2000, 64};
  for (const at::Device device : test_devices()) {
    const Tensor targets = some_targets(s, device);
    const Tensors in = inputs(s, device, at::kBFloat16);
    expect_as_exact_as_formula(actual(targets), formula(targets), in);
  }
}

TEST(LinearCrossEntropy, TakesStridedInputs) {
  const Shape s{14, 30, 12};
  for (const at::Device device : test_devices()) {
    const Tensor targets = some_targets({14, 30, 12}, device).slice(0, 0, 14, 2);
    const auto on_views = [](TensorFunction f) {
      return [f](const Tensors& in) { return f({in[0].t().slice(0, 0, 14, 2), in[1].t()}); };
    };
    const Tensors base = inputs(s, device);
    expect_same_value_and_grads(on_views(actual(targets)), on_views(formula(targets)),
                                {base[0].t().contiguous(), base[1].t().contiguous()});
  }
}

TEST(LinearCrossEntropy, GivesGradientsOnlyWhereWanted) {
  const Shape s{12, 30, 8};
  for (const at::Device device : test_devices())
    for (const int wanted : {0, 1}) {
      const Tensor targets = some_targets(s, device);
      Tensors in = inputs(s, device), reference = inputs(s, device);
      in[wanted].requires_grad_(true);
      reference[wanted].requires_grad_(true);
      (actual(targets)(in) * 3).backward();
      (formula(targets)(reference) * 3).backward();
      EXPECT_FALSE(in[1 - wanted].grad().defined());
      EXPECT_LT(relative_error(in[wanted].grad(), reference[wanted].grad()), tolerance(at::kFloat));
    }
}

TEST(LinearCrossEntropy, AllocatesNoGradientsWithoutGradMode) {
  const Shape s{4, 20000, 16};
  Tensors in = inputs(s, at::kCPU);
  in[1].requires_grad_(true);
  const Tensor targets = random_integers({s.tokens}, s.vocab, at::kCPU, 3);
  const at::NoGradGuard no_grad;
  const LargestAllocation recorder;
  const Tensor loss = actual(targets)(in);
  EXPECT_FALSE(loss.requires_grad());
  EXPECT_LT(recorder.bytes(), sizeof(float) * s.vocab * s.hidden);
}

TEST(LinearCrossEntropy, AcceptsNoTokens) {
  for (const at::Device device : test_devices()) {
    const Tensor targets = at::empty({0}, at::device(device).dtype(at::kLong));
    const Tensors all = value_and_grads(actual(targets), inputs({0, 30, 8}, device));
    EXPECT_EQ(all[0].item<float>(), 0.0f);
    EXPECT_EQ(all[2].abs().max().item<float>(), 0.0f);
  }
}

TEST(LinearCrossEntropy, ARandomModelStartsNearTheLogarithmOfTheVocabulary) {
  const Shape s{500, 64, 16};
  Tensors in = inputs(s, at::kCPU);
  in[1].mul_(0.02);
  const Tensor targets = random_integers({s.tokens}, s.vocab, at::kCPU, 3);
  EXPECT_NEAR(actual(targets)(in).item<float>(), std::log(64.0), 0.05);
}

TEST(LinearCrossEntropy, RefusesShapesAndTargetsThatDoNotFit) {
  const Tensor hidden = at::zeros({4, 8}), weight = at::zeros({10, 8});
  const auto targets = [](std::vector<int64_t> values) { return at::tensor(values, at::kLong); };
  EXPECT_THROW(linear_cross_entropy(hidden, weight, targets({1, 2, 3})), ValueError);
  EXPECT_THROW(linear_cross_entropy(hidden, at::zeros({10, 7}), targets({1, 2, 3, 4})), ValueError);
  EXPECT_THROW(linear_cross_entropy(hidden, weight, targets({1, 2, 3, 10})), ValueError);
  EXPECT_THROW(linear_cross_entropy(hidden, weight, targets({1, 2, -1, 4})), ValueError);
}

}  // namespace
}  // namespace automoe::kernels
