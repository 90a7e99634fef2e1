// The expert layer of a Mixture of Experts: every token goes through K gated MLPs.
#pragma once

#include <ATen/core/Tensor.h>

namespace automoe::kernels {

/// y[t] = sum_k weights[t, k] * down[e](silu(gate[e](x[t])) * up[e](x[t])), e = indices[t, k].
/// x [T, H]; indices [T, K] int64, an index outside [0, E) is skipped; weights [T, K], float of x's
/// dtype or fp32; gate_up [E, 2I, H], gate rows first; down [E, H, I] -> [T, H] in x's dtype. The
/// weighted sum is kept in fp32 and rounded once. Differentiable in x, weights, gate_up and down.
/// Keeps x, the rows' pre-activations [T*K, 2I] and the routing; the activation is computed again
/// in the backward pass. No host synchronisation on CUDA in bf16.
at::Tensor gated_experts(const at::Tensor& x, const at::Tensor& indices, const at::Tensor& weights,
                         const at::Tensor& gate_up, const at::Tensor& down);

}  // namespace automoe::kernels
