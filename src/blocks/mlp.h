// The feed-forward part of a layer: a gated MLP, or whatever else implements Mlp.
#pragma once

#include "blocks/linear.h"
#include "blocks/rms_norm.h"

namespace automoe::blocks {

struct MlpOutput {
  Tensor y;              // [T, H]
  Tensor router_logits;  // [T, E]; undefined without experts
  Tensor indices;        // [T, K] int64, the experts chosen; undefined without experts
};

class Mlp {
 public:
  virtual ~Mlp() = default;
  /// mlp(norm(x)): [T, H] -> [T, H]
  virtual MlpOutput forward(const Context& context, const RmsNorm& norm, const Tensor& x) const = 0;
};

/// down(silu(gate(x)) * up(x)), as in Llama, Mistral, Qwen, DeepSeek.
class GatedMlp : public Mlp {
 public:
  struct Options {
    int64_t hidden, width;
    bool bias = false;
  };
  GatedMlp(ParamScope scope, const Options& options);
  MlpOutput forward(const Context& context, const RmsNorm& norm, const Tensor& x) const override;

 private:
  Linear gate_proj_, up_proj_;  // [I, H]
  Linear down_proj_;            // [H, I]
};

}  // namespace automoe::blocks
