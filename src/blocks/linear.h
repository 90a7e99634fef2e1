// Declaration of a linear layer's parameters.
#pragma once

#include "blocks/params.h"
#include "blocks/recompute.h"

namespace automoe::blocks {

class Linear {
 public:
  Linear(ParamScope scope, int64_t in, int64_t out, bool bias)
      : weight_(scope.declare("weight", {out, in})),
        bias_(bias ? scope.declare("bias", {out}) : -1) {}
  LinearWeights weights(const Params& params) const {
    return {params[weight_], bias_ < 0 ? Tensor() : params[bias_]};
  }

 private:
  ParamId weight_, bias_;  // [out, in], [out]
};

}  // namespace automoe::blocks
