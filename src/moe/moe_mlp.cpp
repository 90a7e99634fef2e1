#include "moe/moe_mlp.h"

#include "kernels/experts.h"

namespace automoe::moe {

MoeMlp::Experts::Experts(blocks::ParamScope scope, const Options& options)
    : gate_up_proj(
          scope.declare("gate_up_proj", {options.num_experts, 2 * options.width, options.hidden})),
      down_proj(scope.declare("down_proj", {options.num_experts, options.hidden, options.width})) {}

MoeMlp::MoeMlp(blocks::ParamScope scope, const Options& options) {
  if (!options.gate_first) experts_.emplace(scope.child("experts"), options);
  gate_ = options.router(scope.child("gate"));
  if (options.gate_first) experts_.emplace(scope.child("experts"), options);
}

blocks::BlockOutput MoeMlp::forward(const blocks::Context& context, const blocks::RmsNorm& norm,
                                    const Tensor& x) const {
  const blocks::Params& params = context.params;
  const Tensor normed = norm.forward(params, x);
  const Routing routing = gate_->forward(params, normed);
  const Tensor y =
      kernels::gated_experts(normed, routing.indices, routing.weights,
                             params[experts_->gate_up_proj], params[experts_->down_proj]);
  return {y, routing.logits, routing.indices};
}

}  // namespace automoe::moe
