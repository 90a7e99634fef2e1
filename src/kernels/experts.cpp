#include "kernels/experts.h"

#include "automoe/error.h"
#include "kernels/activation.h"
#include "kernels/grouped_linear.h"
#include "kernels/routing.h"
#include "kernels/tensor_args.h"

namespace automoe::kernels {
namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

RowGroups groups_of(const Routing& routing, const Tensor& x, const Tensor& up, const Tensor& down) {
  RowGroups groups{routing.ends, {}};
  if (grouped_on_device(x, up) && grouped_on_device(x, down)) return groups;
  const Tensor host = routing.ends.cpu();
  groups.host_ends.assign(host.const_data_ptr<int32_t>(),
                          host.const_data_ptr<int32_t>() + host.numel());
  return groups;
}

struct ScoredBackward {
  Tensor d_pre, scaled, d_score;  // [R, N], [R, I], [T, K]
};

ScoredBackward scored_backward(const Tensor& d_unscaled, const Tensor& pre, const Tensor& score,
                               const Routing& routing, const Activation& activation) {
  ScoredBackward out{at::empty_like(pre), at::empty_like(d_unscaled), at::zeros_like(score)};
  const ActivationScoredBwdArgs args{.activation = activation,
                                     .d_out = d_unscaled.const_data_ptr(),
                                     .pre = pre.const_data_ptr(),
                                     .score = score.const_data_ptr(),
                                     .pair = routing.pair.const_data_ptr<int32_t>(),
                                     .used = routing.used(),
                                     .d_pre = out.d_pre.mutable_data_ptr(),
                                     .scaled = out.scaled.mutable_data_ptr(),
                                     .d_score = out.d_score.mutable_data_ptr(),
                                     .rows = d_unscaled.size(0),
                                     .width = d_unscaled.size(1),
                                     .dtype = dtype_of(pre, "experts")};
  if (pre.is_cpu())
    activation_scored_bwd_cpu(args);
  else
    activation_scored_bwd_cuda(args, CurrentStream(pre));
  return out;
}

// All but the down biases. NOTE: an absent tensor has no number in needs_input_grad(), so the one
// that may be absent comes last.
struct Experts : torch::autograd::Function<Experts> {
  static Tensor forward(AutogradContext* ctx, const Tensor& x, const Tensor& indices,
                        const Tensor& weights, const Tensor& up, const Tensor& down,
                        const std::optional<Tensor>& up_bias, const Activation& activation) {
    const Routing routing = sort_pairs(indices, up.size(0));
    const RowGroups groups = groups_of(routing, x, up, down);
    const Tensor score = weights.to(wide_type(x)).contiguous();
    const Tensor pre =
        grouped_linear(gather_rows(x, routing), up, up_bias.value_or(Tensor()), groups);  // [R, N]
    const Tensor out = grouped_linear(activate(pre, activation), down, {}, groups);       // [R, H]
    ctx->save_for_backward({x, score, up, down, pre, routing.pair, routing.position, routing.ends});
    ctx->saved_data["host_ends"] = groups.host_ends;
    ctx->saved_data["weights_dtype"] = static_cast<int64_t>(weights.scalar_type());
    ctx->saved_data["has_up_bias"] = up_bias.has_value();
    ctx->saved_data["activation"] = packed(activation);
    return combine_rows(out, routing, score);
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const variable_list saved = ctx->get_saved_variables();
    const Tensor &x = saved[0], &score = saved[1], &up = saved[2], &down = saved[3],
                 &pre = saved[4];
    const Routing routing{saved[5], saved[6], saved[7]};
    const RowGroups groups{routing.ends, ctx->saved_data["host_ends"].toIntVector()};
    const Tensor dy_rows = gather_rows(grads[0], routing);  // [R, H]
    // With o = a W^T, <dy, o> = <dy W, a>: the score's gradient needs no second look at o.
    const Tensor d_unscaled = grouped_linear_dx(dy_rows, down, groups);  // [R, I]
    const ScoredBackward act = scored_backward(
        d_unscaled, pre, score, routing, unpacked(ctx->saved_data["activation"].toDoubleVector()));
    Tensor dx, dweights, d_up, d_up_bias, d_down;
    if (ctx->needs_input_grad(2))
      dweights =
          act.d_score.to(static_cast<at::ScalarType>(ctx->saved_data["weights_dtype"].toInt()));
    if (ctx->needs_input_grad(4))
      d_down = grouped_linear_dweight(dy_rows, act.scaled, down, groups);
    if (ctx->saved_data["has_up_bias"].toBool() && ctx->needs_input_grad(5))
      d_up_bias = grouped_linear_dbias(act.d_pre, groups);
    if (ctx->needs_input_grad(3))
      d_up = grouped_linear_dweight(act.d_pre, gather_rows(x, routing), up, groups);
    if (ctx->needs_input_grad(0))
      dx = combine_rows(grouped_linear_dx(act.d_pre, up, groups), routing, /*score=*/{});
    return {dx, Tensor(), dweights, d_up, d_down, d_up_bias, Tensor()};
  }
};

// y[t] + sum_k weights[t, k] bias[indices[t, k]]: one product with the matrix of weights [T, E],
// instead of a pass over all rows.
Tensor add_weighted_bias(const Tensor& y, const Tensor& indices, const Tensor& weights,
                         const Tensor& bias) {
  const Tensor expert = at::arange(bias.size(0), indices.options());
  const Tensor chosen = indices.unsqueeze(2).eq(expert).to(weights.scalar_type());  // [T, K, E]
  const Tensor matrix = (chosen * weights.unsqueeze(2)).sum(1);
  return at::addmm(y, matrix.to(y.scalar_type()), bias);
}

void check(const Tensor& x, const Tensor& indices, const Tensor& weights, const ExpertWeights& w,
           const Activation& activation) {
  AUTOMOE_CHECK_VALUE(x.dim() == 2 && indices.dim() == 2 && indices.sizes() == weights.sizes() &&
                          indices.size(0) == x.size(0),
                      "[experts] x [T, H], indices and weights [T, K] expected, got ", x.sizes(),
                      ", ", indices.sizes(), ", ", weights.sizes());
  AUTOMOE_CHECK_VALUE(w.up.dim() == 3 && w.down.dim() == 3 && w.up.size(0) == w.down.size(0) &&
                          w.up.size(1) == activation.num_inputs() * w.down.size(2) &&
                          w.up.size(2) == x.size(1) && w.down.size(1) == x.size(1),
                      "[experts] up [E, ", activation.num_inputs(),
                      " I, H] and down [E, H, I] with H = ", x.size(1), " expected, got ",
                      w.up.sizes(), " and ", w.down.sizes());
  for (const auto& [bias, matrix] : {std::pair{w.up_bias, w.up}, std::pair{w.down_bias, w.down}})
    AUTOMOE_CHECK_VALUE(!bias.defined() || bias.sizes() == matrix.sizes().slice(0, 2),
                        "[experts] bias [", matrix.size(0), ", ", matrix.size(1),
                        "] expected, got ", bias.sizes());
  for (const Tensor& tensor : {w.up, w.down, w.up_bias, w.down_bias})
    AUTOMOE_CHECK_VALUE(!tensor.defined() || tensor.scalar_type() == x.scalar_type(),
                        "[experts] the experts' weights must have x's dtype ", x.scalar_type(),
                        ", got ", tensor.scalar_type());
}

}  // namespace

Tensor experts(const Tensor& x, const Tensor& indices, const Tensor& weights,
               const ExpertWeights& experts, const Activation& activation) {
  check(x, indices, weights, experts, activation);
  const auto up_bias =
      experts.up_bias.defined() ? std::optional<Tensor>(experts.up_bias) : std::nullopt;
  const Tensor y =
      Experts::apply(x, indices, weights, experts.up, experts.down, up_bias, activation);
  return experts.down_bias.defined() ? add_weighted_bias(y, indices, weights, experts.down_bias)
                                     : y;
}

}  // namespace automoe::kernels
