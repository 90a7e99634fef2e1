#include "kernels/experts.h"

#include "automoe/error.h"
#include "kernels/grouped_linear.h"
#include "kernels/silu_mul.h"

namespace automoe::kernels {
namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// The T*K (token, slot) pairs, sorted by expert.
struct SortedPairs {
  Tensor token;    // [R] row of x, R = T*K
  Tensor position; // [T*K] where pair (t, k) stands among the sorted rows
  RowGroups groups;
};

SortedPairs sort_by_expert(const Tensor& indices, int64_t num_experts, bool on_device) {
  const Tensor flat = indices.flatten();
  const auto [experts, order] = flat.sort(/*stable=*/true, /*dim=*/0, /*descending=*/false);
  SortedPairs pairs;
  pairs.token = at::floor_divide(order, indices.size(1));
  pairs.position = at::empty_like(order).scatter_(0, order, at::arange(order.size(0), order.options()));
  pairs.groups.ends = at::searchsorted(experts, at::arange(num_experts, experts.options()),
                                       /*out_int32=*/true, /*right=*/true);
  if (!on_device) {
    const Tensor host = pairs.groups.ends.cpu();
    pairs.groups.host_ends.assign(host.data_ptr<int32_t>(), host.data_ptr<int32_t>() + num_experts);
  }
  return pairs;
}

// Rows [R, N] back at their tokens: [T, K, N].
Tensor at_tokens(const Tensor& rows, const SortedPairs& pairs, int64_t tokens) {
  return rows.index_select(0, pairs.position).view({tokens, -1, rows.size(1)});
}

struct GatedExperts : torch::autograd::Function<GatedExperts> {
  static Tensor forward(AutogradContext* ctx, const Tensor& x, const Tensor& indices, const Tensor& weights,
                        const Tensor& gate_up, const Tensor& down) {
    const SortedPairs pairs = sort_by_expert(indices, gate_up.size(0), grouped_on_device(x));
    const Tensor pre_activation =
        grouped_linear(x.index_select(0, pairs.token), gate_up, pairs.groups);           // [R, 2I]
    const Tensor out = grouped_linear(silu_mul_halves(pre_activation), down, pairs.groups);  // [R, H]
    ctx->save_for_backward({x, weights, gate_up, down, pre_activation, pairs.token, pairs.position,
                            pairs.groups.ends});
    ctx->saved_data["host_ends"] = pairs.groups.host_ends;
    const Tensor slots = at_tokens(out, pairs, x.size(0));                               // [T, K, H]
    return (slots * weights.unsqueeze(-1)).sum(1).to(x.scalar_type());
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const variable_list saved = ctx->get_saved_variables();
    const Tensor &x = saved[0], &weights = saved[1], &gate_up = saved[2], &down = saved[3], &pre = saved[4];
    SortedPairs pairs{saved[5], saved[6], {saved[7], ctx->saved_data["host_ends"].toIntVector()}};
    const int64_t tokens = x.size(0);
    const Tensor dy_rows = grads[0].index_select(0, pairs.token);                        // [R, H]
    // With o = a W^T, <dy, o> = <dy W, a>: the score's gradient needs no second look at o.
    const Tensor activation = silu_mul_halves(pre);                                      // [R, I]
    const Tensor d_unscaled = grouped_linear_dx(dy_rows, down, pairs.groups);            // [R, I]
    const Tensor score = at::empty_like(weights).flatten().scatter_(0, pairs.position, weights.flatten())
                             .unsqueeze(-1);                                             // [R, 1]
    const auto wide = at::promote_types(x.scalar_type(), weights.scalar_type());
    Tensor dx, dweights, d_gate_up, d_down;
    if (ctx->needs_input_grad(2)) {
      const Tensor row_sums = (d_unscaled.to(at::kFloat) * activation.to(at::kFloat)).sum(-1, true);
      dweights = at_tokens(row_sums, pairs, tokens).squeeze(-1).to(weights.scalar_type());
    }
    if (ctx->needs_input_grad(4)) {
      const Tensor scaled = (activation.to(wide) * score).to(x.scalar_type());
      d_down = grouped_linear_dweight(dy_rows, scaled, pairs.groups);
    }
    const Tensor d_activation = (d_unscaled.to(wide) * score).to(x.scalar_type());
    const Tensor d_pre = silu_mul_halves_backward(d_activation, pre);                    // [R, 2I]
    if (ctx->needs_input_grad(3))
      d_gate_up = grouped_linear_dweight(d_pre, x.index_select(0, pairs.token), pairs.groups);
    if (ctx->needs_input_grad(0)) {
      const Tensor dx_rows = grouped_linear_dx(d_pre, gate_up, pairs.groups);            // [R, H]
      dx = at_tokens(dx_rows, pairs, tokens).sum(1, /*keepdim=*/false, at::kFloat).to(x.scalar_type());
    }
    return {dx, Tensor(), dweights, d_gate_up, d_down};
  }
};

}  // namespace

Tensor gated_experts(const Tensor& x, const Tensor& indices, const Tensor& weights, const Tensor& gate_up,
                     const Tensor& down) {
  AUTOMOE_CHECK_VALUE(x.dim() == 2 && indices.dim() == 2 && indices.sizes() == weights.sizes() &&
                          indices.size(0) == x.size(0),
                      "[experts] x [T, H], indices and weights [T, K] expected, got ", x.sizes(), ", ",
                      indices.sizes(), ", ", weights.sizes());
  AUTOMOE_CHECK_VALUE(gate_up.dim() == 3 && down.dim() == 3 && gate_up.size(0) == down.size(0) &&
                          gate_up.size(1) == 2 * down.size(2) && gate_up.size(2) == x.size(1) &&
                          down.size(1) == x.size(1),
                      "[experts] gate_up [E, 2I, H] and down [E, H, I] with H = ", x.size(1),
                      " expected, got ", gate_up.sizes(), " and ", down.sizes());
  return GatedExperts::apply(x, indices, weights, gate_up, down);
}

}  // namespace automoe::kernels
