// The language-model head and its loss in one op: logits exist for a few rows at a time only.
#pragma once

#include <ATen/core/Tensor.h>

namespace automoe::kernels {

constexpr int64_t kIgnoreIndex = -100;

/// sum over rows with target != -100 of cross_entropy(hidden W^T, target), divided by
/// `denominator`. hidden [T, H], weight [V, H] of one float dtype; targets [T] int64; denominator:
/// scalar tensor, or undefined for the number of such rows; 0 counts as 1 -> scalar fp32; 0 where
/// no row has a target. Logits are rounded to the dtype of hidden, then everything is fp32. The
/// gradients are made in the forward pass, chunk by chunk, and kept in fp32: [T, H] and [V, H]. A
/// target outside [0, V) throws ValueError on CPU; on CUDA, where the host does not wait for the
/// device, it makes the loss NaN.
at::Tensor linear_cross_entropy(const at::Tensor& hidden, const at::Tensor& weight,
                                const at::Tensor& targets, const at::Tensor& denominator = {});

}  // namespace automoe::kernels
