// The state-space scan of Mamba-2 in its dual form (Dao and Gu 2024, arXiv 2405.21060, section 6):
// matrix products within chunks of tokens, a recurrence of states between them.
#pragma once

#include <ATen/core/Tensor.h>

#include "kernels/documents.h"

namespace automoe::kernels {

struct SsdScanOptions {
  int64_t chunk_size = 128;  // Q: changes the speed, and the result by rounding alone
  double min_step = 0;       // a smaller step size is raised to it
};

/// With step = max(softplus(dt + dt_bias), min_step), A = -exp(a_log), and g the group of head h
/// (heads / G neighbours share one), from a zero state at the start of each document:
///   S_t = exp(step_t A) S_{t-1} + step_t x_t b_t^T,   y_t = S_t c_t + d x_t
/// x [T, heads, P], dt [T, heads], b and c [T, G, N], a_log, d and dt_bias [heads] ->
/// y [T, heads, P] in x's dtype. Steps, decays and states are fp32 (double for double).
/// Differentiable; keeps its inputs and one state per few chunks. Time and memory grow with T.
at::Tensor ssd_scan(const at::Tensor& x, const at::Tensor& dt, const at::Tensor& b,
                    const at::Tensor& c, const at::Tensor& a_log, const at::Tensor& d,
                    const at::Tensor& dt_bias, const Documents& documents,
                    const SsdScanOptions& options = {});

}  // namespace automoe::kernels
