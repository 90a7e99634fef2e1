#include "blocks/mlp.h"

#include "kernels/activation.h"

namespace automoe::blocks {

GatedMlp::GatedMlp(ParamScope scope, const Options& options)
    : gate_proj_(scope.child("gate_proj"), options.hidden, options.width, options.bias),
      up_proj_(scope.child("up_proj"), options.hidden, options.width, options.bias),
      down_proj_(scope.child("down_proj"), options.width, options.hidden, options.bias) {}

BlockOutput GatedMlp::forward(const Context& context, const RmsNorm& norm, const Tensor& x) const {
  const Params& params = context.params;
  return {down(context, norm.then_linear(context, x,
                                         {gate_proj_.weights(params), up_proj_.weights(params)})),
          {},
          {}};
}

Tensor GatedMlp::forward(const Context& context, const Tensor& normed) const {
  const Params& params = context.params;
  return down(context, {linear(normed, gate_proj_.weights(params)),
                        linear(normed, up_proj_.weights(params))});
}

Tensor GatedMlp::down(const Context& context, const Tensors& gate_up) const {
  const auto activation = [](const Tensors& in) { return kernels::silu_mul(in[0], in[1]); };
  return linear_after(activation, gate_up, {down_proj_.weights(context.params)},
                      context.recompute)[0];
}

}  // namespace automoe::blocks
