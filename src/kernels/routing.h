// Moves rows from tokens to experts and back. A pair is one (token, slot) of T tokens with K slots
// each. Not differentiable: experts.cpp puts the pieces together.
#pragma once

#include <ATen/core/Tensor.h>

namespace automoe::kernels {

/// The T*K pairs sorted by expert. R = T*K rows; those of skipped pairs come last and are never
/// touched.
struct Routing {
  at::Tensor pair;      // [R] int32: row r holds pair[r] = token * K + slot
  at::Tensor position;  // [T, K] int32: the row of each pair
  at::Tensor ends;      // [E] int32: the rows of expert e end at ends[e]

  int64_t tokens() const { return position.size(0); }
  int64_t slots() const { return position.size(1); }
  int64_t rows() const { return pair.size(0); }
  const int32_t* used() const { return ends.const_data_ptr<int32_t>() + ends.size(0) - 1; }
};

/// indices [T, K] int64, outside [0, E): skipped. Stable. No host synchronisation.
Routing sort_pairs(const at::Tensor& indices, int64_t num_experts);

/// x [T, N] -> [R, N], row r being the token of pair r. Rows of skipped pairs are left as
/// allocated.
at::Tensor gather_rows(const at::Tensor& x, const Routing& routing);

/// rows [R, N] -> [T, N]: the sum of each token's rows times their score, kept in fp32 until it is
/// whole. score [T, K] fp32 (double for double), undefined for ones. Skipped pairs add nothing.
at::Tensor combine_rows(const at::Tensor& rows, const Routing& routing, const at::Tensor& score);

}  // namespace automoe::kernels
