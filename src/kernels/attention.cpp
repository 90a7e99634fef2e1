#include "kernels/attention.h"

#include <ATen/ops/_flash_attention_forward.h>
#include <ATen/ops/scaled_dot_product_attention.h>

#include "automoe/error.h"

namespace automoe::kernels {
namespace {

using at::Tensor;

bool is_half(const Tensor& x) {
  return x.scalar_type() == at::kBFloat16 || x.scalar_type() == at::kHalf;
}

// What variable_length() takes.
bool fits_flash(const Tensor& q, const Tensor& v) {
  return q.is_cuda() && is_half(q) && q.size(2) == v.size(2) && q.size(2) % 8 == 0 &&
         q.size(2) <= 256;
}

// [S, S] bool, true where the query (row) sees the key: j <= i and j > i - window.
Tensor window_mask(int64_t length, int64_t window, at::Device device) {
  const Tensor ones =
      at::ones({length, length}, at::TensorOptions().dtype(at::kBool).device(device));
  return ones.tril().logical_and(ones.triu(1 - window));
}

// [documents * S, heads, D] -> [documents, heads, S, D]
Tensor per_document(const Tensor& x, int64_t length) {
  return x.view({-1, length, x.size(1), x.size(2)}).transpose(1, 2);
}

// Documents of one length, by the library's own choice of kernel.
Tensor equal_documents(const Tensor& q, const Tensor& k, const Tensor& v, int64_t length,
                       const AttentionOptions& options) {
  const bool windowed = options.window > 0 && options.window < length;
  std::optional<Tensor> mask;
  if (windowed) mask = window_mask(length, options.window, q.device());
  // NOTE: in fp32 on CUDA the kernel with linear memory wants as many key heads as query heads.
  const int64_t ratio = q.size(1) / k.size(1);
  const bool repeat = ratio > 1 && q.is_cuda() && !is_half(q);
  const auto keys = [&](const Tensor& x) {
    return per_document(repeat ? x.repeat_interleave(ratio, 1) : x, length);
  };
  const Tensor out =
      at::scaled_dot_product_attention(per_document(q, length), keys(k), keys(v), mask,
                                       /*dropout_p=*/0.0, /*is_causal=*/!windowed, options.scale,
                                       /*enable_gqa=*/ratio > 1 && !repeat);
  return out.transpose(1, 2).reshape({q.size(0), q.size(1), v.size(2)});
}

Tensor one_by_one(const Tensor& q, const Tensor& k, const Tensor& v, const Documents& documents,
                  const AttentionOptions& options) {
  std::vector<Tensor> parts;
  for (int64_t begin = 0; const int64_t end : documents.ends) {
    const auto part = [&](const Tensor& x) { return x.slice(0, begin, end); };
    parts.push_back(equal_documents(part(q), part(k), part(v), end - begin, options));
    begin = end;
  }
  return at::cat(parts);
}

// All documents in one launch, where fits_flash().
Tensor variable_length(const Tensor& q, const Tensor& k, const Tensor& v,
                       const Documents& documents, const AttentionOptions& options) {
  const std::optional<c10::SymInt> left =
      options.window > 0 ? std::optional<c10::SymInt>(options.window - 1) : std::nullopt;
  const std::optional<c10::SymInt> right =
      options.window > 0 ? std::optional<c10::SymInt>(0) : std::nullopt;
  const auto rows = [](const Tensor& x) { return x.stride(2) == 1 ? x : x.contiguous(); };
  return std::get<0>(
      at::_flash_attention_forward_symint(rows(q), rows(k), rows(v), documents.offsets,
                                          documents.offsets, documents.longest, documents.longest,
                                          /*dropout_p=*/0.0, /*is_causal=*/true,
                                          /*return_debug_mask=*/false, options.scale, left, right));
}

}  // namespace

Tensor attention(const Tensor& q, const Tensor& k, const Tensor& v, const Documents& documents,
                 const AttentionOptions& options) {
  AUTOMOE_CHECK_VALUE(
      q.dim() == 3 && k.dim() == 3 && v.dim() == 3 && q.size(0) == k.size(0) &&
          v.size(0) == k.size(0) && v.size(1) == k.size(1) && q.size(2) == k.size(2) &&
          q.size(1) % k.size(1) == 0,
      "[attention] q [T, Hq, D], k [T, Hkv, D], v [T, Hkv, Dv] with Hq a multiple of Hkv "
      "expected, got ",
      q.sizes(), ", ", k.sizes(), ", ", v.sizes());
  AUTOMOE_CHECK_VALUE(documents.tokens() == q.size(0), "[attention] the documents hold ",
                      documents.tokens(), " tokens, q has ", q.size(0));
  if (q.size(0) == 0) return q.new_empty({0, q.size(1), v.size(2)}) * (q.sum() + k.sum() + v.sum());
  const bool windowed = options.window > 0 && options.window < documents.longest;
  if (fits_flash(q, v) && (windowed || !documents.equal))
    return variable_length(q, k, v, documents, options);
  if (documents.equal) return equal_documents(q, k, v, documents.longest, options);
  return one_by_one(q, k, v, documents, options);
}

}  // namespace automoe::kernels
