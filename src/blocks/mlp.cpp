#include "blocks/mlp.h"

#include "kernels/activation.h"

namespace automoe::blocks {

Mlp::Mlp(ParamScope scope, const Options& o)
    : gate_proj_(o.gated
                     ? std::optional<Linear>({scope.child("gate_proj"), o.hidden, o.width, o.bias})
                     : std::nullopt),
      up_proj_(scope.child("up_proj"), o.hidden, o.width, o.bias),
      down_proj_(scope.child("down_proj"), o.width, o.hidden, o.bias) {}

BlockOutput Mlp::forward(const Context& context, const RmsNorm& norm, const Tensor& x) const {
  return {down(context, norm.then_linear(context, x, inner(context.params))), {}, {}};
}

Tensor Mlp::forward(const Context& context, const Tensor& normed) const {
  Tensors pre_activations;
  for (const LinearWeights& layer : inner(context.params))
    pre_activations.push_back(linear(normed, layer));
  return down(context, pre_activations);
}

std::vector<LinearWeights> Mlp::inner(const Params& params) const {
  std::vector<LinearWeights> layers;
  if (gate_proj_) layers.push_back(gate_proj_->weights(params));
  layers.push_back(up_proj_.weights(params));
  return layers;
}

Tensor Mlp::down(const Context& context, const Tensors& pre_activations) const {
  const auto activation = [](const Tensors& in) {
    if (in.size() == 2) return kernels::silu_mul(in[0], in[1]);
    return kernels::activate(in[0], {.kind = kernels::Activation::kReluSquared});
  };
  return linear_after(activation, pre_activations, {down_proj_.weights(context.params)},
                      context.recompute)[0];
}

}  // namespace automoe::blocks
