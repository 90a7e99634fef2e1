// Which experts a token goes to, and with what weight.
#pragma once

#include <functional>
#include <memory>

#include "blocks/context.h"

namespace automoe::moe {

using at::Tensor;

struct Routing {
  Tensor logits;   // [T, E] in the model's dtype
  Tensor indices;  // [T, K] int64
  Tensor weights;  // [T, K]
};

class Router {
 public:
  virtual ~Router() = default;
  virtual Routing forward(const blocks::Params& params, const Tensor& x) const = 0;  // [T, H]
};

/// Softmax over all experts in fp32, then the K largest, as in Qwen3-MoE and Mixtral.
class SoftmaxRouter : public Router {
 public:
  struct Options {
    int64_t hidden, num_experts, top_k;
    bool normalize;     // the chosen weights are divided by their sum
    bool fp32_weights;  // weights stay fp32 (Mixtral), or are rounded to the logits' dtype
                        // (Qwen3-MoE)
  };
  SoftmaxRouter(blocks::ParamScope scope, const Options& options);
  Routing forward(const blocks::Params& params, const Tensor& x) const override;

 private:
  Options options_;
  blocks::ParamId weight_;  // [E, H]
};

/// What MoeMlp takes: makes the router in the scope it is given.
using RouterOf = std::function<std::unique_ptr<Router>(blocks::ParamScope scope)>;
RouterOf softmax_router(const SoftmaxRouter::Options& options);

/// Tokens per expert: indices [T, K] -> [E] int64. No gradient, no host synchronisation.
Tensor count_tokens(const Tensor& indices, int64_t num_experts);

}  // namespace automoe::moe
