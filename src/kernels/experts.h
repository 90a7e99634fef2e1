// The expert layer of a Mixture of Experts: every token goes through K small MLPs.
#pragma once

#include <ATen/core/Tensor.h>

#include "kernels/activation_args.h"

namespace automoe::kernels {

/// Weights of E experts, of x's dtype. A matrix may lie in memory as its shape says or transposed
/// (a transposed view of [E, in, out]): neither is copied, and its gradient lies like it.
struct ExpertWeights {
  at::Tensor up;           // [E, N, H], N = I * activation.num_inputs()
  at::Tensor down;         // [E, H, I]
  at::Tensor up_bias{};    // [E, N] or undefined
  at::Tensor down_bias{};  // [E, H] or undefined
};

/// y[t] = sum_k weights[t, k] * (down[e] activate(up[e] x[t] + up_bias[e]) + down_bias[e]),
/// e = indices[t, k].
/// x [T, H]; indices [T, K] int64, an index outside [0, E) is skipped; weights [T, K], float of x's
/// dtype or fp32 -> [T, H] in x's dtype. The weighted sum over the slots is kept in fp32 and
/// rounded once, that of the down biases after it. Differentiable in x, weights and the experts'
/// weights. Keeps x, the rows' pre-activations [T*K, N] and the routing; the activation is computed
/// again in the backward pass. No host synchronisation on CUDA in bf16.
at::Tensor experts(const at::Tensor& x, const at::Tensor& indices, const at::Tensor& weights,
                   const ExpertWeights& experts, const Activation& activation = {});

}  // namespace automoe::kernels
