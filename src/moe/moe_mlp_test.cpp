#include "moe/moe_mlp.h"

#include "blocks/testing.h"

namespace automoe::moe {
namespace {

constexpr int64_t kHidden = 7, kWidth = 5, kExperts = 4;

MoeMlp::Options options_with(int64_t shared_width) {
  return {.hidden = kHidden,
          .width = kWidth,
          .num_experts = kExperts,
          .router = softmax_router({.hidden = kHidden,
                                    .num_experts = kExperts,
                                    .top_k = 2,
                                    .normalize = true,
                                    .fp32_weights = true}),
          .gate_first = false,
          .shared_width = shared_width};
}

// What the routed experts and a shared MLP give apart, the latter scaled by a gate where there is
// one.
void expect_sum_of_parts(bool gated) {
  std::vector<ParameterSpec> specs, others;
  const blocks::RmsNorm norm(blocks::ParamScope(specs, "norm."), kHidden, 1e-6);
  MoeMlp::Options options = options_with(9);
  options.shared_gate = gated;
  const MoeMlp whole(blocks::ParamScope(specs, "mlp."), options);
  const blocks::RmsNorm norm_again(blocks::ParamScope(others, "norm."), kHidden, 1e-6);
  const MoeMlp routed(blocks::ParamScope(others, "mlp."), options_with(0));
  const blocks::Mlp shared(blocks::ParamScope(others, "mlp.shared_experts."), {kHidden, 9});
  if (gated) blocks::ParamScope(others, "mlp.shared_experts_gate.").declare("weight", {1, kHidden});
  ASSERT_EQ(specs.size(), others.size());
  for (size_t i = 0; i < specs.size(); ++i) EXPECT_EQ(specs[i].name, others[i].name);

  blocks::Tensors inputs = blocks::random_parameters(specs, /*seed=*/3);
  inputs.insert(inputs.begin(), kernels::random_tensor({11, kHidden}, at::kCPU, 1));
  const blocks::Sequences sequences = blocks::documents_of({11});
  const auto with_context = [&](const blocks::Tensors& in, auto body) {
    const blocks::Params params(blocks::Tensors(in.begin() + 1, in.end()));
    const blocks::RopeTables rope;
    return body(blocks::Context{params, sequences, rope});
  };
  kernels::expect_same_value_and_grads(
      [&](const blocks::Tensors& in) {
        return with_context(in, [&](const blocks::Context& context) {
          return whole.forward(context, norm, in[0]).y;
        });
      },
      [&](const blocks::Tensors& in) {
        return with_context(in, [&](const blocks::Context& context) {
          Tensor added = shared.forward(context, norm_again, in[0]).y;
          const Tensor normed = norm_again.forward(context.params, in[0]);
          if (gated) added = added * at::linear(normed, in.back()).sigmoid();
          return routed.forward(context, norm_again, in[0]).y + added;
        });
      },
      inputs);
}

TEST(MoeMlp, SharedExpertsAreAddedToWhatTheRoutedOnesGive) { expect_sum_of_parts(false); }

TEST(MoeMlp, AGateScalesTheSharedExperts) { expect_sum_of_parts(true); }

}  // namespace
}  // namespace automoe::moe
