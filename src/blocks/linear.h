// Declaration of a linear layer's parameters.
#pragma once

#include "blocks/params.h"
#include "blocks/recompute.h"

namespace automoe::blocks {

class Linear {
 public:
  /// `adaptable`: LoRA may adapt it.
  Linear(ParamScope scope, int64_t in, int64_t out, bool bias, bool adaptable = true)
      : weight_(adaptable ? scope.declare_linear(in, out) : scope.declare("weight", {out, in})),
        bias_(bias ? scope.declare("bias", {out}) : -1) {}
  LinearWeights weights(const Params& params) const {
    LinearWeights weights{params[weight_], bias_ < 0 ? Tensor() : params[bias_]};
    if (const Adapter* adapter = params.adapter_of(weight_)) {
      weights.lora_a = params[adapter->a];
      weights.lora_b = params[adapter->b];
      weights.lora_scale = adapter->scale;
    }
    return weights;
  }

 private:
  ParamId weight_, bias_;  // [out, in], [out]
};

}  // namespace automoe::blocks
