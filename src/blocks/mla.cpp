#include "blocks/mla.h"

#include "kernels/attention.h"
#include "kernels/rope.h"

namespace automoe::blocks {
namespace {

int64_t query_width(const LatentAttention::Options& o) {
  return o.heads * (o.plain_dim + o.rotary_dim);
}

}  // namespace

LatentAttention::LatentQuery::LatentQuery(ParamScope scope, const Options& o)
    : a_proj(scope.child("q_a_proj"), o.hidden, o.query_rank, o.bias),
      a_layernorm(scope.child("q_a_layernorm"), o.query_rank, o.eps),
      b_proj(scope.child("q_b_proj"), o.query_rank, query_width(o), /*bias=*/false) {}

LatentAttention::LatentAttention(ParamScope scope, const Options& o)
    : options_(o),
      latent_query_(o.query_rank > 0 ? std::make_optional<LatentQuery>(scope, o) : std::nullopt),
      q_proj_(o.query_rank > 0 ? std::nullopt
                               : std::make_optional<Linear>(scope.child("q_proj"), o.hidden,
                                                            query_width(o), /*bias=*/false)),
      kv_a_proj_with_mqa_(scope.child("kv_a_proj_with_mqa"), o.hidden,
                          o.key_value_rank + o.rotary_dim, o.bias),
      kv_a_layernorm_(scope.child("kv_a_layernorm"), o.key_value_rank, o.eps),
      kv_b_proj_(scope.child("kv_b_proj"), o.key_value_rank, o.heads * (o.plain_dim + o.value_dim),
                 /*bias=*/false),
      o_proj_(scope.child("o_proj"), o.heads * o.value_dim, o.hidden, o.bias) {}

BlockOutput LatentAttention::forward(const Context& context, const RmsNorm& norm,
                                     const Tensor& x) const {
  const Params& params = context.params;
  const Options& o = options_;
  const Linear& first = latent_query_ ? latent_query_->a_proj : *q_proj_;
  const Tensors from_stream =
      norm.then_linear(context, x, {first.weights(params), kv_a_proj_with_mqa_.weights(params)});
  Tensor q = from_stream[0];
  if (latent_query_)
    q = latent_query_->a_layernorm.then_linear(context, q,
                                               {latent_query_->b_proj.weights(params)})[0];
  const Tensors latent = from_stream[1].split_with_sizes({o.key_value_rank, o.rotary_dim}, 1);
  const Tensor keys_values =
      kv_a_layernorm_.then_linear(context, latent[0], {kv_b_proj_.weights(params)})[0];

  const auto heads = [&](const Tensor& t) { return t.view({t.size(0), o.heads, -1}); };
  const auto& [cos, sin] = context.rope;
  q = kernels::apply_rope(heads(q), cos, sin, {.pairs = o.pairs, .first = o.plain_dim});
  const Tensor shared = kernels::apply_rope(latent[1].unsqueeze(1), cos, sin, {.pairs = o.pairs});
  const Tensors kv = heads(keys_values).split_with_sizes({o.plain_dim, o.value_dim}, 2);
  const Tensor k = at::cat({kv[0], shared.expand({-1, o.heads, -1})}, 2);  // [T, Hq, N+R]
  const Tensor out =
      kernels::attention(q, k, kv[1], context.sequences.documents, {.scale = o.scale});
  return {linear(out.flatten(1), o_proj_.weights(params)), {}, {}};
}

}  // namespace automoe::blocks
