// Causal self-attention with grouped queries, optional RoPE, biases, QK-norm, sliding
// window and sinks.
#pragma once

#include <optional>

#include "automoe/error.h"
#include "blocks/block.h"
#include "blocks/linear.h"

namespace automoe::blocks {

/// RMSNorm of queries and keys: of each head (Qwen3), or of all heads of a token at once (OLMoE).
enum class QkNorm { kNone, kPerHead, kAllHeads };

class Attention : public Block {
 public:
  struct Options {
    int64_t hidden, heads, kv_heads, head_dim;
    bool qkv_bias = false, output_bias = false;
    bool rope = true;
    QkNorm qk_norm = QkNorm::kNone;  // before RoPE
    double clip = 0;                 // q, k and v are cut to +-clip; 0: no limit
    double eps = 1e-6;               // of the QK-norm
    int64_t window = 0;  // 0: none; else a query sees itself and window - 1 keys before it
    bool sinks = false;  // a learned score per head that takes its share and adds no value
  };
  Attention(ParamScope scope, const Options& options);
  BlockOutput forward(const Context& context, const RmsNorm& norm, const Tensor& x) const override;

 private:
  Options options_;
  ParamId sinks_;                             // [Hq]
  Linear q_proj_, k_proj_, v_proj_, o_proj_;  // [Hq*D, H], [Hkv*D, H] twice, [H, Hq*D]
  std::optional<RmsNorm> q_norm_, k_norm_;    // [D], or of all heads
};

}  // namespace automoe::blocks
