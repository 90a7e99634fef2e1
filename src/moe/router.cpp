#include "moe/router.h"

#include "automoe/error.h"

namespace automoe::moe {

SoftmaxRouter::SoftmaxRouter(blocks::ParamScope scope, const Options& options)
    : options_(options), weight_(scope.declare("weight", {options.num_experts, options.hidden})) {
  AUTOMOE_CHECK_VALUE(options.top_k >= 1 && options.top_k <= options.num_experts,
                      "[router] num_experts_per_tok must be between 1 and the ",
                      options.num_experts, " experts, got ", options.top_k);
}

Routing SoftmaxRouter::forward(const blocks::Params& params, const Tensor& x) const {
  const Tensor logits = at::linear(x, params[weight_]);
  const Tensor probabilities = at::softmax(logits, /*dim=*/-1, at::kFloat);
  auto [weights, indices] = probabilities.topk(options_.top_k, /*dim=*/-1);
  if (options_.normalize) weights = weights / weights.sum(-1, /*keepdim=*/true);
  if (!options_.fp32_weights) weights = weights.to(logits.scalar_type());
  return {logits, indices, weights};
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
