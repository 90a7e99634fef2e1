// What a feed-forward layer does between its linear layers.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

#include "kernels/activation_args.h"

namespace automoe::kernels {

/// pre [R, num_inputs * I] -> [R, I], see Activation. Differentiable; keeps pre.
at::Tensor activate(const at::Tensor& pre, const Activation& activation);

/// silu(gate) * up for two tensors [..., I] of one float dtype -> [..., I]. Differentiable; keeps
/// its two inputs.
at::Tensor silu_mul(const at::Tensor& gate, const at::Tensor& up);

/// "silu_mul", "clamped_swiglu" or "relu_squared"; ValueError for another name.
Activation::Kind activation_kind(const std::string& name);

/// An activation as an autograd context can keep it, and back.
std::vector<double> packed(const Activation& activation);
Activation unpacked(const std::vector<double>& activation);

}  // namespace automoe::kernels
