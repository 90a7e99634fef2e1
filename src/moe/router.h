// Which experts a token goes to, and with what weight.
#pragma once

#include "blocks/context.h"

namespace automoe::moe {

using at::Tensor;

struct Routing {
  Tensor logits;   // [T, E] in the model's dtype
  Tensor indices;  // [T, K] int64
  Tensor weights;  // [T, K]
};

/// Softmax over all experts in fp32, then the K largest, as in Qwen3-MoE and Mixtral.
class SoftmaxRouter {
 public:
  struct Options {
    int64_t num_experts, top_k;
    bool normalize;     // the chosen weights are divided by their sum
    bool fp32_weights;  // weights stay fp32 (Mixtral), or are rounded to the logits' dtype
                        // (Qwen3-MoE)
  };
  SoftmaxRouter(blocks::ParamScope scope, int64_t hidden, const Options& options);
  Routing forward(const blocks::Params& params, const Tensor& x) const;  // x [T, H], normed

 private:
  Options options_;
  blocks::ParamId weight_;  // [E, H]
};

/// Tokens per expert: indices [T, K] -> [E] int64. No gradient, no host synchronisation.
Tensor count_tokens(const Tensor& indices, int64_t num_experts);

}  // namespace automoe::moe
