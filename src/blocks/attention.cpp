#include "blocks/attention.h"

#include <cmath>

#include "kernels/attention.h"
#include "kernels/rope.h"

namespace automoe::blocks {

Attention::Attention(ParamScope scope, const Options& o)
    : options_(o),
      sinks_(o.sinks ? scope.declare("sinks", {o.heads}) : -1),
      q_proj_(scope.child("q_proj"), o.hidden, o.heads * o.head_dim, o.qkv_bias),
      k_proj_(scope.child("k_proj"), o.hidden, o.kv_heads * o.head_dim, o.qkv_bias),
      v_proj_(scope.child("v_proj"), o.hidden, o.kv_heads * o.head_dim, o.qkv_bias),
      o_proj_(scope.child("o_proj"), o.heads * o.head_dim, o.hidden, o.output_bias) {
  AUTOMOE_CHECK_VALUE(o.heads % o.kv_heads == 0, "[attention] num_attention_heads ", o.heads,
                      " must be a multiple of num_key_value_heads ", o.kv_heads);
  if (o.qk_norm == QkNorm::kNone) return;
  const bool all = o.qk_norm == QkNorm::kAllHeads;
  q_norm_.emplace(scope.child("q_norm"), all ? o.heads * o.head_dim : o.head_dim, o.eps);
  k_norm_.emplace(scope.child("k_norm"), all ? o.kv_heads * o.head_dim : o.head_dim, o.eps);
}

BlockOutput Attention::forward(const Context& context, const RmsNorm& norm, const Tensor& x) const {
  const Params& params = context.params;
  const Tensors qkv = norm.then_linear(
      context, x, {q_proj_.weights(params), k_proj_.weights(params), v_proj_.weights(params)});
  const auto heads = [&](const Tensor& t) { return t.view({t.size(0), -1, options_.head_dim}); };
  const auto normed = [&](const std::optional<RmsNorm>& qk_norm, const Tensor& t) {
    if (!qk_norm) return heads(t);
    return options_.qk_norm == QkNorm::kPerHead ? qk_norm->forward(params, heads(t))
                                                : heads(qk_norm->forward(params, t));
  };
  const auto clipped = [&](const Tensor& t) {
    return options_.clip > 0 ? t.clamp(-options_.clip, options_.clip) : t;
  };
  Tensor q = clipped(normed(q_norm_, qkv[0]));  // [T, Hq, D]
  Tensor k = clipped(normed(k_norm_, qkv[1]));  // [T, Hkv, D]
  const Tensor v = clipped(heads(qkv[2]));      // [T, Hkv, D]
  if (options_.rope) {
    q = kernels::apply_rope(q, context.rope.cos, context.rope.sin);
    k = kernels::apply_rope(k, context.rope.cos, context.rope.sin);
  }
  const Tensor out = kernels::attention(
      q, k, v, context.sequences.documents,
      {.scale = 1 / std::sqrt(static_cast<double>(options_.head_dim)), .window = options_.window},
      sinks_ < 0 ? Tensor() : params[sinks_]);
  return {linear(out.flatten(1), o_proj_.weights(params)), {}, {}};
}

}  // namespace automoe::blocks
