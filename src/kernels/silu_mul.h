// silu(gate) * up, the activation of SwiGLU (Shazeer 2020, arXiv 2002.05202).
#pragma once

#include <ATen/core/Tensor.h>

#include <tuple>

namespace automoe::kernels {

/// gate, up [..., I] of one float dtype -> [..., I]. Differentiable; keeps its two inputs.
at::Tensor silu_mul(const at::Tensor& gate, const at::Tensor& up);

/// The same for the two halves of gate_up [R, 2I] (gate first), not differentiable.
at::Tensor silu_mul_halves(const at::Tensor& gate_up);

/// Gradient of silu_mul_halves: d_activation [R, I] -> [R, 2I].
at::Tensor silu_mul_halves_backward(const at::Tensor& d_activation, const at::Tensor& gate_up);

}  // namespace automoe::kernels
