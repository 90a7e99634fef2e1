// Which experts a token goes to, and with what weight.
#pragma once

#include <functional>
#include <memory>

#include "blocks/context.h"
#include "core/json.h"

namespace automoe::moe {

using at::Tensor;

struct Routing {
  Tensor logits;   // [T, E] in the dtype in which the router computes them
  Tensor indices;  // [T, K] int64
  Tensor weights;  // [T, K]
};

class Router {
 public:
  virtual ~Router() = default;
  virtual Routing forward(const blocks::Params& params, const Tensor& x) const = 0;  // [T, H]
};

/// Softmax over all experts in fp32, then the K largest, as in Qwen3-MoE and Mixtral. Normalised,
/// it is the softmax over the K largest logits, as GPT-OSS has it.
class SoftmaxRouter : public Router {
 public:
  struct Options {
    int64_t hidden, num_experts, top_k;
    bool normalize;     // the chosen weights are divided by their sum
    bool fp32_weights;  // weights stay fp32 (Mixtral), or are rounded to the logits' dtype
                        // (Qwen3-MoE)
    bool bias = false;
  };
  SoftmaxRouter(blocks::ParamScope scope, const Options& options);
  Routing forward(const blocks::Params& params, const Tensor& x) const override;

 private:
  Options options_;
  blocks::ParamId weight_, bias_;  // [E, H], [E]
};

/// The router of DeepSeek-V3 (arXiv 2412.19437, eq. 12-16), all in fp32: scores are sigmoids; a
/// bias, which takes no gradient, has a say in the choice and none in the weights; only experts of
/// the groups whose two best add up to most are chosen. Weights stay fp32.
class SigmoidRouter : public Router {
 public:
  struct Options {
    int64_t hidden, num_experts, top_k;
    int64_t groups, top_groups;
    bool normalize;  // the chosen scores are divided by their sum
    double scale;    // of the weights

    static Options read(const Json& config);  // the keys of DeepSeek-V3's configs, all of them
  };
  SigmoidRouter(blocks::ParamScope scope, const Options& options);
  Routing forward(const blocks::Params& params, const Tensor& x) const override;

 private:
  Tensor choose(const Tensor& scores) const;  // biased scores [T, E] -> [T, K]

  Options options_;
  blocks::ParamId weight_, bias_;  // [E, H], [E]
};

/// What MoeMlp takes: makes the router in the scope it is given.
using RouterOf = std::function<std::unique_ptr<Router>(blocks::ParamScope scope)>;
RouterOf softmax_router(const SoftmaxRouter::Options& options);
RouterOf sigmoid_router(const SigmoidRouter::Options& options);

/// Tokens per expert: indices [T, K] -> [E] int64. No gradient, no host synchronisation.
Tensor count_tokens(const Tensor& indices, int64_t num_experts);

}  // namespace automoe::moe
