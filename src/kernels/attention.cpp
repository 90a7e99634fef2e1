#include "kernels/attention.h"

#include <ATen/ops/_flash_attention_backward.h>
#include <ATen/ops/_flash_attention_forward.h>
#include <ATen/ops/scaled_dot_product_attention.h>

#include "automoe/error.h"
#include "kernels/blockwise_attention.h"

namespace automoe::kernels {
namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

bool is_half(const Tensor& x) {
  return x.scalar_type() == at::kBFloat16 || x.scalar_type() == at::kHalf;
}

// What variable_length() takes.
bool fits_flash(const Tensor& q, const Tensor& v) {
  return q.is_cuda() && is_half(q) && q.size(2) == v.size(2) && q.size(2) % 8 == 0 &&
         q.size(2) <= 256;
}

// [documents * S, heads, D] -> [documents, heads, S, D]
Tensor per_document(const Tensor& x, int64_t length) {
  return x.view({-1, length, x.size(1), x.size(2)}).transpose(1, 2);
}

// Documents of one length, by the library's own choice of kernel.
Tensor equal_documents(const Tensor& q, const Tensor& k, const Tensor& v, int64_t length,
                       double scale) {
  // NOTE: in fp32 on CUDA the kernel with linear memory wants as many key heads as query heads.
  const int64_t ratio = q.size(1) / k.size(1);
  const bool repeat = ratio > 1 && q.is_cuda() && !is_half(q);
  const auto keys = [&](const Tensor& x) {
    return per_document(repeat ? x.repeat_interleave(ratio, 1) : x, length);
  };
  const Tensor out = at::scaled_dot_product_attention(per_document(q, length), keys(k), keys(v),
                                                      /*attn_mask=*/{}, /*dropout_p=*/0.0,
                                                      /*is_causal=*/true, scale,
                                                      /*enable_gqa=*/ratio > 1 && !repeat);
  return out.transpose(1, 2).reshape({q.size(0), q.size(1), v.size(2)});
}

Tensor one_by_one(const Tensor& q, const Tensor& k, const Tensor& v, const Documents& documents,
                  double scale) {
  std::vector<Tensor> parts;
  for (int64_t begin = 0; const int64_t end : documents.ends) {
    const auto part = [&](const Tensor& x) { return x.slice(0, begin, end); };
    parts.push_back(equal_documents(part(q), part(k), part(v), end - begin, scale));
    begin = end;
  }
  return at::cat(parts);
}

Tensor dense_rows(const Tensor& x) { return x.stride(2) == 1 ? x : x.contiguous(); }

// What flash attention is told of the keys that a query sees.
struct FlashWindow {
  std::optional<c10::SymInt> left, right;

  explicit FlashWindow(int64_t window) {
    if (window <= 0) return;
    left = window - 1;
    right = 0;
  }
};

// All documents in one launch, where fits_flash(): result and log-sum-exp [Hq, T]; differentiable
// without the latter.
std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> variable_length(
    const Tensor& q, const Tensor& k, const Tensor& v, const Documents& documents, int64_t longest,
    const AttentionOptions& options) {
  const FlashWindow window(options.window);
  return at::_flash_attention_forward_symint(
      dense_rows(q), dense_rows(k), dense_rows(v), documents.offsets, documents.offsets, longest,
      longest, /*dropout_p=*/0.0, /*is_causal=*/true, /*return_debug_mask=*/false, options.scale,
      window.left, window.right);
}

// Sinks need nothing from the library: they only add to the denominator. With s a head's sink and
// lse' = log(e^lse + e^s), result and log-sum-exp become out * e^(lse - lse') and lse'. Its
// backward pass takes these two: p = e^(score - lse') and sum_j p_j dp_j = <d_out, out'> hold as
// before.
struct FlashWithSinks : torch::autograd::Function<FlashWithSinks> {
  static Tensor forward(AutogradContext* ctx, const Tensor& q, const Tensor& k, const Tensor& v,
                        const Tensor& sinks, const Documents& documents,
                        const AttentionOptions& options) {
    // NOTE: for documents of one token the library regroups the heads, those of the lse otherwise.
    const int64_t longest = std::max<int64_t>(documents.longest, 2);
    auto [out, lse, rng, unused, mask] = variable_length(q, k, v, documents, longest, options);
    const Tensor with_sink = lse.logaddexp(sinks.to(at::kFloat).unsqueeze(1));  // [Hq, T]
    out.mul_(lse.sub(with_sink).exp_().t().unsqueeze(2));
    ctx->save_for_backward({q, k, v, sinks, out, with_sink, rng, unused, documents.offsets});
    ctx->saved_data["longest"] = longest;
    ctx->saved_data["scale"] = options.scale;
    ctx->saved_data["window"] = options.window;
    return out;
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const variable_list saved = ctx->get_saved_variables();
    const Tensor &sinks = saved[3], &out = saved[4], &lse = saved[5], &offsets = saved[8];
    const int64_t longest = ctx->saved_data["longest"].toInt();
    const FlashWindow window(ctx->saved_data["window"].toInt());
    const Tensor d_out = dense_rows(grads[0]);
    const auto [dq, dk, dv] = at::_flash_attention_backward_symint(
        d_out, dense_rows(saved[0]), dense_rows(saved[1]), dense_rows(saved[2]), out, lse, offsets,
        offsets, longest, longest, /*dropout_p=*/0.0, /*is_causal=*/true, saved[6], saved[7],
        ctx->saved_data["scale"].toDouble(), window.left, window.right);
    const Tensor delta = d_out.mul(out).sum(2, /*keepdim=*/false, at::kFloat);  // [T, Hq]
    const Tensor share = sinks.to(at::kFloat).unsqueeze(1).sub(lse).exp();      // [Hq, T]
    return {dq,       dk,      dv, share.mul(delta.t()).sum(1).neg().to(sinks.scalar_type()),
            Tensor(), Tensor()};
  }
};

}  // namespace

Tensor attention(const Tensor& q, const Tensor& k, const Tensor& v, const Documents& documents,
                 const AttentionOptions& options, const Tensor& sinks) {
  AUTOMOE_CHECK_VALUE(
      q.dim() == 3 && k.dim() == 3 && v.dim() == 3 && q.size(0) == k.size(0) &&
          v.size(0) == k.size(0) && v.size(1) == k.size(1) && q.size(2) == k.size(2) &&
          q.size(1) % k.size(1) == 0,
      "[attention] q [T, Hq, D], k [T, Hkv, D], v [T, Hkv, Dv] with Hq a multiple of Hkv "
      "expected, got ",
      q.sizes(), ", ", k.sizes(), ", ", v.sizes());
  AUTOMOE_CHECK_VALUE(documents.tokens() == q.size(0), "[attention] the documents hold ",
                      documents.tokens(), " tokens, q has ", q.size(0));
  AUTOMOE_CHECK_VALUE(!sinks.defined() || (sinks.dim() == 1 && sinks.size(0) == q.size(1)),
                      "[attention] one sink for each of the ", q.size(1), " heads expected, got ",
                      sinks.sizes());
  if (q.size(0) == 0) {
    const Tensor none = q.sum() + k.sum() + v.sum();
    return q.new_empty({0, q.size(1), v.size(2)}) * (sinks.defined() ? none + sinks.sum() : none);
  }
  const bool windowed = options.window > 0 && options.window < documents.longest;
  if (fits_flash(q, v) && sinks.defined())
    return FlashWithSinks::apply(q, k, v, sinks, documents, options);
  if (fits_flash(q, v) && (windowed || !documents.equal))
    return std::get<0>(variable_length(q, k, v, documents, documents.longest, options));
  if (windowed || sinks.defined()) return blockwise_attention(q, k, v, documents, options, sinks);
  if (documents.equal) return equal_documents(q, k, v, documents.longest, options.scale);
  return one_by_one(q, k, v, documents, options.scale);
}

}  // namespace automoe::kernels
