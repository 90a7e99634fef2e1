// The global gradient norm and the factor that clips it.
#pragma once

#include <ATen/core/Tensor.h>

namespace automoe::kernels {

/// L2 norm over the elements of all `grads` together: a scalar on their device, fp64 on the CPU and
/// fp32 elsewhere. The same bits on every call, on the CPU for every number of threads too. No host
/// synchronisation. Undefined tensors are skipped; all of them undefined: 0 on the CPU.
at::Tensor grad_norm(at::TensorList grads);

/// min(1, max_norm / (norm + 1e-6)), as torch.nn.utils.clip_grad_norm_ has it; a scalar like
/// `norm`.
at::Tensor clip_coefficient(const at::Tensor& norm, double max_norm);

}  // namespace automoe::kernels
