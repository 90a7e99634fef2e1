// A block on its own: what it declares, random tensors for that, and the context that it sees.
#pragma once

#include <ATen/ATen.h>

#include "blocks/block.h"
#include "kernels/testing.h"

namespace automoe::blocks {

/// A tensor for each parameter that was declared; norms lie around 1.
inline Tensors random_parameters(const std::vector<ParameterSpec>& specs, uint64_t seed) {
  Tensors tensors;
  for (const ParameterSpec& spec : specs) {
    const Tensor noise = kernels::random_tensor(spec.shape, at::kCPU, seed++);
    const double width = static_cast<double>(spec.shape.back());
    tensors.push_back(spec.is_norm ? 1 + 0.2 * noise : noise / std::sqrt(width));
  }
  return tensors;
}

/// Documents of these lengths in one row.
inline Sequences documents_of(const std::vector<int64_t>& lengths) {
  Tensors positions;
  for (const int64_t length : lengths) positions.push_back(at::arange(length));
  const Tensor row = at::cat(positions).unsqueeze(0);
  return Sequences::from({.input_ids = at::zeros_like(row), .position_ids = row});
}

}  // namespace automoe::blocks
