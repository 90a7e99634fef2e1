#include "kernels/experts.h"

#include "automoe/error.h"
#include "kernels/grouped_linear.h"
#include "kernels/routing.h"
#include "kernels/silu_mul.h"
#include "kernels/silu_mul_args.h"
#include "kernels/tensor_args.h"

namespace automoe::kernels {
namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

RowGroups groups_of(const Routing& routing, const Tensor& x, const Tensor& gate_up,
                    const Tensor& down) {
  RowGroups groups{routing.ends, {}};
  if (grouped_on_device(x, gate_up) && grouped_on_device(x, down)) return groups;
  const Tensor host = routing.ends.cpu();
  groups.host_ends.assign(host.const_data_ptr<int32_t>(),
                          host.const_data_ptr<int32_t>() + host.numel());
  return groups;
}

struct ScoredBackward {
  Tensor d_pre, scaled, d_score;  // [R, 2I], [R, I], [T, K]
};

ScoredBackward scored_backward(const Tensor& d_unscaled, const Tensor& pre, const Tensor& score,
                               const Routing& routing) {
  ScoredBackward out{at::empty_like(pre), at::empty_like(d_unscaled), at::zeros_like(score)};
  const SiluMulScoredBwdArgs args{.d_out = d_unscaled.const_data_ptr(),
                                  .gate_up = pre.const_data_ptr(),
                                  .score = score.const_data_ptr(),
                                  .pair = routing.pair.const_data_ptr<int32_t>(),
                                  .used = routing.used(),
                                  .d_gate_up = out.d_pre.mutable_data_ptr(),
                                  .scaled = out.scaled.mutable_data_ptr(),
                                  .d_score = out.d_score.mutable_data_ptr(),
                                  .rows = d_unscaled.size(0),
                                  .width = d_unscaled.size(1),
                                  .dtype = dtype_of(pre, "experts")};
  if (pre.is_cpu())
    silu_mul_scored_bwd_cpu(args);
  else
    silu_mul_scored_bwd_cuda(args, CurrentStream(pre));
  return out;
}

struct GatedExperts : torch::autograd::Function<GatedExperts> {
  static Tensor forward(AutogradContext* ctx, const Tensor& x, const Tensor& indices,
                        const Tensor& weights, const Tensor& gate_up, const Tensor& down) {
    const Routing routing = sort_pairs(indices, gate_up.size(0));
    const RowGroups groups = groups_of(routing, x, gate_up, down);
    const Tensor score = weights.to(wide_type(x)).contiguous();
    const Tensor pre = grouped_linear(gather_rows(x, routing), gate_up, groups);  // [R, 2I]
    const Tensor out = grouped_linear(silu_mul_halves(pre), down, groups);        // [R, H]
    ctx->save_for_backward(
        {x, score, gate_up, down, pre, routing.pair, routing.position, routing.ends});
    ctx->saved_data["host_ends"] = groups.host_ends;
    ctx->saved_data["weights_dtype"] = static_cast<int64_t>(weights.scalar_type());
    return combine_rows(out, routing, score);
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const variable_list saved = ctx->get_saved_variables();
    const Tensor &x = saved[0], &score = saved[1], &gate_up = saved[2], &down = saved[3],
                 &pre = saved[4];
    const Routing routing{saved[5], saved[6], saved[7]};
    const RowGroups groups{routing.ends, ctx->saved_data["host_ends"].toIntVector()};
    const Tensor dy_rows = gather_rows(grads[0], routing);  // [R, H]
    // With o = a W^T, <dy, o> = <dy W, a>: the score's gradient needs no second look at o.
    const Tensor d_unscaled = grouped_linear_dx(dy_rows, down, groups);  // [R, I]
    const ScoredBackward act = scored_backward(d_unscaled, pre, score, routing);
    Tensor dx, dweights, d_gate_up, d_down;
    if (ctx->needs_input_grad(2))
      dweights =
          act.d_score.to(static_cast<at::ScalarType>(ctx->saved_data["weights_dtype"].toInt()));
    if (ctx->needs_input_grad(4)) d_down = grouped_linear_dweight(dy_rows, act.scaled, groups);
    if (ctx->needs_input_grad(3))
      d_gate_up = grouped_linear_dweight(act.d_pre, gather_rows(x, routing), groups);
    if (ctx->needs_input_grad(0))
      dx = combine_rows(grouped_linear_dx(act.d_pre, gate_up, groups), routing, /*score=*/{});
    return {dx, Tensor(), dweights, d_gate_up, d_down};
  }
};

}  // namespace

Tensor gated_experts(const Tensor& x, const Tensor& indices, const Tensor& weights,
                     const Tensor& gate_up, const Tensor& down) {
  AUTOMOE_CHECK_VALUE(x.dim() == 2 && indices.dim() == 2 && indices.sizes() == weights.sizes() &&
                          indices.size(0) == x.size(0),
                      "[experts] x [T, H], indices and weights [T, K] expected, got ", x.sizes(),
                      ", ", indices.sizes(), ", ", weights.sizes());
  AUTOMOE_CHECK_VALUE(gate_up.dim() == 3 && down.dim() == 3 && gate_up.size(0) == down.size(0) &&
                          gate_up.size(1) == 2 * down.size(2) && gate_up.size(2) == x.size(1) &&
                          down.size(1) == x.size(1),
                      "[experts] gate_up [E, 2I, H] and down [E, H, I] with H = ", x.size(1),
                      " expected, got ", gate_up.sizes(), " and ", down.sizes());
  AUTOMOE_CHECK_VALUE(
      gate_up.scalar_type() == x.scalar_type() && down.scalar_type() == x.scalar_type(),
      "[experts] gate_up and down must have x's dtype ", x.scalar_type(), ", got ",
      gate_up.scalar_type(), " and ", down.scalar_type());
  return GatedExperts::apply(x, indices, weights, gate_up, down);
}

}  // namespace automoe::kernels
