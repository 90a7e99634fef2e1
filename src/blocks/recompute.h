// What a backward pass computes again instead of keeping.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <vector>

#include "automoe/model.h"

namespace automoe::blocks {

using at::Tensor;
using Tensors = std::vector<Tensor>;

struct LinearWeights {
  Tensor weight;                    // [out, in]
  Tensor bias = {};                 // [out] or undefined
  Tensor lora_a = {}, lora_b = {};  // [r, in], [out, r] in any float dtype, or undefined
  double lora_scale = 0;
};

/// x W^T + b, and with an adapter + scale (x A^T) B^T, computed in x's dtype: [..., in] -> [...,
/// out].
Tensor linear(const Tensor& x, const LinearWeights& layer);

/// y_i = f(inputs) W_i^T + b_i for a cheap f. With kNone autograd keeps f's result; otherwise only
/// `inputs` are kept and f runs again in the backward pass. f: tensors -> [T, in], differentiable.
Tensors linear_after(std::function<Tensor(const Tensors&)> f, const Tensors& inputs,
                     const std::vector<LinearWeights>& weights, Recompute recompute);

/// f(inputs), keeping only `inputs`; f runs again in the backward pass (Chen et al. 2016, arXiv
/// 1604.06174). Everything that needs a gradient must come in through `inputs`.
Tensors checkpoint(std::function<Tensors(const Tensors&)> f, const Tensors& inputs);

}  // namespace automoe::blocks
