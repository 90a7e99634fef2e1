// The dense feed-forward part of a layer.
#pragma once

#include <optional>

#include "blocks/block.h"
#include "blocks/linear.h"

namespace automoe::blocks {

/// down(silu(gate(x)) * up(x)), as in Llama, Mistral, Qwen, DeepSeek; without a gate
/// down(max(up(x), 0)^2), as in Nemotron-H.
class Mlp : public Block {
 public:
  struct Options {
    int64_t hidden, width;
    bool bias = false;
    bool gated = true;
  };
  Mlp(ParamScope scope, const Options& options);
  BlockOutput forward(const Context& context, const RmsNorm& norm, const Tensor& x) const override;
  /// Of a tensor that is normed already: [T, H] -> [T, H].
  Tensor forward(const Context& context, const Tensor& normed) const;

 private:
  std::vector<LinearWeights> inner(const Params& params) const;  // gate, up
  Tensor down(const Context& context, const Tensors& pre_activations) const;

  std::optional<Linear> gate_proj_;  // [I, H]
  Linear up_proj_, down_proj_;       // [I, H], [H, I]
};

}  // namespace automoe::blocks
