#include "kernels/blockwise_attention.h"

#include "kernels/tensor_args.h"

namespace automoe::kernels {
namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr int64_t kBlock = 128;  // queries

// The queries [first, last) of a document, and the keys [key, last) that some of them see.
struct Block {
  int64_t first, last, key;

  Tensor queries(const Tensor& x) const { return x.slice(1, first, last); }
  Tensor keys(const Tensor& x) const { return x.slice(1, key, last); }
};

// Calls f for all blocks of all documents.
template <typename F>
void for_each_block(const std::vector<int64_t>& ends, int64_t window, F&& f) {
  for (int64_t begin = 0; const int64_t end : ends) {
    for (int64_t first = begin; first < end; first += kBlock) {
      const int64_t key = window > 0 ? std::max(begin, first - window + 1) : begin;
      f(Block{first, std::min(end, first + kBlock), key});
    }
    begin = end;
  }
}

// [T, heads, D] -> [Hkv, T, heads / Hkv, D] in the dtype of sums: queries beside their keys.
Tensor by_key_head(const Tensor& x, int64_t kv_heads) {
  return x.to(wide_type(x)).view({x.size(0), kv_heads, -1, x.size(2)}).transpose(0, 1);
}

// [Hkv, n, ratio, D] -> [Hkv, n * ratio, D]
Tensor rows(const Tensor& x) { return x.flatten(1, 2); }

// Scores of a block: [Hkv, queries * ratio, keys], -inf where a query does not see a key.
Tensor block_scores(const Block& block, const Tensor& q, const Tensor& k,
                    const AttentionOptions& options) {
  const auto positions = q.options().dtype(at::kLong);
  const Tensor query = at::arange(block.first, block.last, positions).unsqueeze(1);
  const Tensor key = at::arange(block.key, block.last, positions);
  Tensor unseen = key.gt(query);  // [queries, keys]
  if (options.window > 0) unseen = unseen.logical_or(key.le(query - options.window));
  const Tensor scores = at::bmm(rows(block.queries(q)), rows(block.keys(k)).transpose(1, 2));
  return scores.mul(options.scale).masked_fill_(unseen.repeat_interleave(q.size(2), 0), -INFINITY);
}

struct Blockwise : torch::autograd::Function<Blockwise> {
  static Tensor forward(AutogradContext* ctx, const Tensor& q, const Tensor& k, const Tensor& v,
                        const std::optional<Tensor>& sinks, const std::vector<int64_t>& ends,
                        const AttentionOptions& options) {
    const int64_t kv_heads = k.size(1);
    const Tensor wide_q = by_key_head(q, kv_heads), wide_k = by_key_head(k, kv_heads),
                 wide_v = by_key_head(v, kv_heads);
    const auto wide = wide_q.options();
    Tensor out = at::empty({kv_heads, q.size(0), wide_q.size(2), v.size(2)}, wide);
    Tensor lse = at::empty({kv_heads, q.size(0), wide_q.size(2)}, wide);
    for_each_block(ends, options.window, [&](const Block& block) {
      const Tensor scores = block_scores(block, wide_q, wide_k, options);
      Tensor sum = scores.logsumexp(2).view({kv_heads, -1, wide_q.size(2)});
      if (sinks) sum = sum.logaddexp(sinks->to(wide.dtype()).view({kv_heads, 1, -1}));
      block.queries(lse).copy_(sum);
      const Tensor p = scores.sub(rows(sum.unsqueeze(3))).exp();
      block.queries(out).copy_(at::bmm(p, rows(block.keys(wide_v))).view_as(block.queries(out)));
    });
    const Tensor result =
        out.transpose(0, 1).reshape({q.size(0), q.size(1), v.size(2)}).to(q.dtype());
    ctx->save_for_backward({q, k, v, result, lse, sinks.value_or(Tensor())});
    ctx->saved_data["ends"] = ends;
    ctx->saved_data["scale"] = options.scale;
    ctx->saved_data["window"] = options.window;
    return result;
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const variable_list saved = ctx->get_saved_variables();
    const Tensor &q = saved[0], &k = saved[1], &v = saved[2], &lse = saved[4], &sinks = saved[5];
    const AttentionOptions options{ctx->saved_data["scale"].toDouble(),
                                   ctx->saved_data["window"].toInt()};
    const int64_t kv_heads = k.size(1);
    const Tensor wide_q = by_key_head(q, kv_heads), wide_k = by_key_head(k, kv_heads),
                 wide_v = by_key_head(v, kv_heads), d_out = by_key_head(grads[0], kv_heads);
    // A row's sum of p * dp, over all its scores: the sink's own adds no value.
    const Tensor delta = (d_out * by_key_head(saved[3], kv_heads)).sum(3);  // [Hkv, T, ratio]
    Tensor dq = at::empty_like(wide_q), dk = at::zeros_like(wide_k), dv = at::zeros_like(wide_v);
    for_each_block(ctx->saved_data["ends"].toIntVector(), options.window, [&](const Block& block) {
      const Tensor p = block_scores(block, wide_q, wide_k, options)
                           .sub_(rows(block.queries(lse).unsqueeze(3)))
                           .exp_();
      const Tensor dy = rows(block.queries(d_out));
      rows_add(block.keys(dv), at::bmm(p.transpose(1, 2), dy));
      const Tensor ds = at::bmm(dy, rows(block.keys(wide_v)).transpose(1, 2))
                            .sub_(rows(block.queries(delta).unsqueeze(3)))
                            .mul_(p)
                            .mul_(options.scale);
      block.queries(dq).copy_(at::bmm(ds, rows(block.keys(wide_k))).view_as(block.queries(dq)));
      rows_add(block.keys(dk), at::bmm(ds.transpose(1, 2), rows(block.queries(wide_q))));
    });
    Tensor d_sinks;
    if (sinks.defined()) {
      const Tensor p = sinks.to(lse.dtype()).view({kv_heads, 1, -1}).sub(lse).exp();
      d_sinks = p.mul(delta).sum(1).neg().view_as(sinks).to(sinks.dtype());
    }
    const auto like = [](const Tensor& grad, const Tensor& x) {
      return grad.transpose(0, 1).reshape_as(x).to(x.dtype());
    };
    return {like(dq, q), like(dk, k), like(dv, v), d_sinks, Tensor(), Tensor()};
  }

 private:
  static void rows_add(const Tensor& to, const Tensor& rows) { to.add_(rows.view_as(to)); }
};

}  // namespace

Tensor blockwise_attention(const Tensor& q, const Tensor& k, const Tensor& v,
                           const Documents& documents, const AttentionOptions& options,
                           const Tensor& sinks) {
  return Blockwise::apply(q, k, v, sinks.defined() ? std::optional<Tensor>(sinks) : std::nullopt,
                          documents.ends, options);
}

}  // namespace automoe::kernels
