#include "moe/router.h"

#include <limits>

#include "automoe/error.h"

namespace automoe::moe {

SoftmaxRouter::SoftmaxRouter(blocks::ParamScope scope, const Options& options)
    : options_(options),
      weight_(scope.declare("weight", {options.num_experts, options.hidden})),
      bias_(options.bias ? scope.declare("bias", {options.num_experts}) : -1) {
  AUTOMOE_CHECK_VALUE(options.top_k >= 1 && options.top_k <= options.num_experts,
                      "[router] num_experts_per_tok must be between 1 and the ",
                      options.num_experts, " experts, got ", options.top_k);
}

Routing SoftmaxRouter::forward(const blocks::Params& params, const Tensor& x) const {
  const Tensor logits = blocks::linear(x, {params[weight_], bias_ < 0 ? Tensor() : params[bias_]});
  const Tensor probabilities = at::softmax(logits, /*dim=*/-1, at::kFloat);
  auto [weights, indices] = probabilities.topk(options_.top_k, /*dim=*/-1);
  if (options_.normalize) weights = weights / weights.sum(-1, /*keepdim=*/true);
  if (!options_.fp32_weights) weights = weights.to(logits.scalar_type());
  return {logits, indices, weights};
}

SigmoidRouter::SigmoidRouter(blocks::ParamScope scope, const Options& options)
    : options_(options),
      weight_(scope.declare(
          {.name = "weight", .shape = {options.num_experts, options.hidden}, .keep_fp32 = true})),
      bias_(scope.declare({.name = "e_score_correction_bias",
                           .shape = {options.num_experts},
                           .is_buffer = true,
                           .keep_fp32 = true})) {
  const int64_t groups = options.groups, kept = options.top_groups, experts = options.num_experts;
  AUTOMOE_CHECK_VALUE(groups >= 1 && experts % groups == 0 && experts / groups >= 2,
                      "[router] n_group must cut the ", experts,
                      " experts into equal groups of two or more, got ", groups);
  AUTOMOE_CHECK_VALUE(kept >= 1 && kept <= groups, "[router] topk_group must be between 1 and the ",
                      groups, " groups, got ", kept);
  AUTOMOE_CHECK_VALUE(options.top_k >= 1 && options.top_k <= experts / groups * kept,
                      "[router] num_experts_per_tok must be between 1 and the ",
                      experts / groups * kept, " experts of the chosen groups, got ",
                      options.top_k);
}

Tensor SigmoidRouter::choose(const Tensor& scores) const {
  const auto best = [](const Tensor& x, int64_t k) { return x.topk(k, /*dim=*/-1); };
  if (options_.groups == options_.top_groups) return std::get<1>(best(scores, options_.top_k));
  const Tensor grouped = scores.unflatten(-1, {options_.groups, -1});  // [T, groups, E / groups]
  const Tensor group_scores = std::get<0>(best(grouped, 2)).sum(-1);
  const Tensor kept = std::get<1>(best(group_scores, options_.top_groups));
  const Tensor dropped = at::ones_like(group_scores, at::kBool).scatter_(1, kept, false);
  const Tensor left =
      grouped.masked_fill(dropped.unsqueeze(-1), -std::numeric_limits<double>::infinity());
  return std::get<1>(best(left.flatten(1), options_.top_k));
}

Routing SigmoidRouter::forward(const blocks::Params& params, const Tensor& x) const {
  const at::ScalarType wide = x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  const Tensor logits = at::linear(x.to(wide), params[weight_].to(wide));
  const Tensor scores = logits.sigmoid();
  const Tensor indices = choose(scores.detach() + params[bias_]);
  Tensor weights = scores.gather(1, indices);
  if (options_.normalize) weights = weights / (weights.sum(-1, /*keepdim=*/true) + 1e-20);
  return {logits, indices, weights * options_.scale};
}

SigmoidRouter::Options SigmoidRouter::Options::read(const Json& config) {
  return {.hidden = require<int64_t>(config, "hidden_size"),
          .num_experts = require<int64_t>(config, "n_routed_experts"),
          .top_k = require<int64_t>(config, "num_experts_per_tok"),
          .groups = require<int64_t>(config, "n_group"),
          .top_groups = require<int64_t>(config, "topk_group"),
          .normalize = require<bool>(config, "norm_topk_prob"),
          .scale = require<double>(config, "routed_scaling_factor")};
}

RouterOf sigmoid_router(const SigmoidRouter::Options& options) {
  return [options](blocks::ParamScope scope) {
    return std::make_unique<SigmoidRouter>(scope, options);
  };
}

RouterOf softmax_router(const SoftmaxRouter::Options& options) {
  return [options](blocks::ParamScope scope) {
    return std::make_unique<SoftmaxRouter>(scope, options);
  };
}

Tensor count_tokens(const Tensor& indices, int64_t num_experts) {
  const Tensor flat = indices.flatten();
  return at::zeros({num_experts}, flat.options()).scatter_add_(0, flat, at::ones_like(flat));
}

}  // namespace automoe::moe
