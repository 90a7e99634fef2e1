// A norm layer, and the pair "input and its norm" that linear layers take, so that the normed
// tensor need not be kept.
#pragma once

#include "blocks/context.h"
#include "kernels/rms_norm.h"

namespace automoe::blocks {

class RmsNorm {
 public:
  using Rounding = kernels::NormRounding;
  RmsNorm(ParamScope scope, int64_t width, double eps, Rounding rounding = Rounding::kNormalised);
  Tensor forward(const Params& params, const Tensor& x) const;  // [..., H] -> [..., H]
  /// norm(x) W_i^T + b_i for each layer: [T, H] -> [T, out_i].
  Tensors then_linear(const Context& context, const Tensor& x,
                      const std::vector<LinearWeights>& weights) const;

 private:
  ParamId weight_;  // [H]
  double eps_;
  Rounding rounding_;
};

}  // namespace automoe::blocks
