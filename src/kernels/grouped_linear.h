// One matrix product per group of rows: the rows of expert e times the weights of expert e.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace automoe::kernels {

/// Rows sorted by group. Groups may be empty. Rows at ends[G-1] and beyond belong to no group: they
/// are not read, and their results are left as allocated.
struct RowGroups {
  at::Tensor ends;                 // [G] int32 on the rows' device, ascending
  std::vector<int64_t> host_ends;  // the same on the host; empty where grouped_on_device()

  int64_t count() const { return ends.size(0); }
};

/// In all three the weight [G, N, K] may lie in memory as [G, N, K] or as [G, K, N] (a transposed
/// view): neither is copied.

/// x [R, K], weight [G, N, K], bias [G, N] or undefined -> [R, N]: row r of group g times
/// weight[g]^T, plus bias[g]. Not differentiable.
at::Tensor grouped_linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                          const RowGroups& groups);

/// dy [R, N], weight [G, N, K] -> dx [R, K].
at::Tensor grouped_linear_dx(const at::Tensor& dy, const at::Tensor& weight,
                             const RowGroups& groups);

/// dy [R, N], x [R, K] -> dweight [G, N, K], in memory like `weight`; exact zeros for empty groups.
at::Tensor grouped_linear_dweight(const at::Tensor& dy, const at::Tensor& x,
                                  const at::Tensor& weight, const RowGroups& groups);

/// dy [R, N] -> dbias [G, N]; exact zeros for empty groups.
at::Tensor grouped_linear_dbias(const at::Tensor& dy, const RowGroups& groups);

/// Whether the device multiplies all groups in one launch, without looking at `host_ends`. The
/// launch wants bf16 and rows of whole 16 bytes.
bool grouped_on_device(const at::Tensor& x, const at::Tensor& weight);

}  // namespace automoe::kernels
