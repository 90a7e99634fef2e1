#include "blocks/rms_norm.h"

namespace automoe::blocks {

RmsNorm::RmsNorm(ParamScope scope, int64_t width, double eps, Rounding rounding)
    : weight_(scope.declare("weight", {width}, /*is_norm=*/true)), eps_(eps), rounding_(rounding) {}

Tensor RmsNorm::forward(const Params& params, const Tensor& x) const {
  return kernels::rms_norm(x, params[weight_], eps_, rounding_);
}

Tensors RmsNorm::then_linear(const Context& context, const Tensor& x,
                             const std::vector<LinearWeights>& weights) const {
  const auto norm = [eps = eps_, rounding = rounding_](const Tensors& in) {
    return kernels::rms_norm(in[0], in[1], eps, rounding);
  };
  return linear_after(norm, {x, context.params[weight_]}, weights, context.recompute);
}

}  // namespace automoe::blocks
