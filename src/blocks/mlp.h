// The dense feed-forward part of a layer.
#pragma once

#include "blocks/block.h"
#include "blocks/linear.h"

namespace automoe::blocks {

/// down(silu(gate(x)) * up(x)), as in Llama, Mistral, Qwen, DeepSeek.
class GatedMlp : public Block {
 public:
  struct Options {
    int64_t hidden, width;
    bool bias = false;
  };
  GatedMlp(ParamScope scope, const Options& options);
  BlockOutput forward(const Context& context, const RmsNorm& norm, const Tensor& x) const override;
  /// Of a tensor that is normed already: [T, H] -> [T, H].
  Tensor forward(const Context& context, const Tensor& normed) const;

 private:
  Tensor down(const Context& context, const Tensors& gate_up) const;

  Linear gate_proj_, up_proj_;  // [I, H]
  Linear down_proj_;            // [H, I]
};

}  // namespace automoe::blocks
