#include "kernels/rms_norm.h"

#include "automoe/error.h"
#include "kernels/rms_norm_args.h"
#include "kernels/tensor_args.h"

namespace automoe::kernels {
namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct Forward {
  Tensor y, sum, inverse_rms;  // sum is undefined without residual
};

Forward run_forward(const Tensor& x, const Tensor& residual, const Tensor& weight, double eps,
                    NormRounding rounding) {
  const auto like_x = x.options().memory_format(at::MemoryFormat::Contiguous);
  Forward out{
      .y = at::empty(x.sizes(), like_x),
      .sum = residual.defined() ? at::empty(x.sizes(), like_x) : Tensor(),
      .inverse_rms = at::empty(x.sizes().slice(0, x.dim() - 1), like_x.dtype(wide_type(x)))};
  const RmsNormFwdArgs args{.x = x.const_data_ptr(),
                            .residual = residual.defined() ? residual.const_data_ptr() : nullptr,
                            .weight = weight.const_data_ptr(),
                            .sum = out.sum.defined() ? out.sum.mutable_data_ptr() : nullptr,
                            .y = out.y.mutable_data_ptr(),
                            .inverse_rms = out.inverse_rms.mutable_data_ptr(),
                            .rows = out.inverse_rms.numel(),
                            .width = weight.size(0),
                            .eps = eps,
                            .rounding = rounding,
                            .dtype = dtype_of(x, "rms_norm")};
  if (x.is_cpu())
    rms_norm_fwd_cpu(args);
  else
    rms_norm_fwd_cuda(args, CurrentStream(x));
  return out;
}

struct Backward {
  Tensor dx, dweight;  // undefined where not wanted
};

Backward run_backward(const Tensor& dy, const Tensor& d_sum, const Tensor& x, const Tensor& weight,
                      const Tensor& inverse_rms, NormRounding rounding, bool want_dx,
                      bool want_dweight) {
  const Tensor dense_dy = dy.contiguous(),
               dense_d_sum = d_sum.defined() ? d_sum.contiguous() : d_sum;
  const int64_t rows = inverse_rms.numel(), width = weight.size(0);
  Backward out;
  Tensor parts;
  if (want_dx) out.dx = at::empty_like(x);
  if (want_dweight)
    parts = at::empty(
        {x.is_cpu() ? std::clamp<int64_t>(rows / 64, 1, 32) : rms_norm_parts_cuda(rows, width),
         width},
        inverse_rms.options());
  const RmsNormBwdArgs args{.dy = dense_dy.const_data_ptr(),
                            .d_sum = d_sum.defined() ? dense_d_sum.const_data_ptr() : nullptr,
                            .x = x.const_data_ptr(),
                            .weight = weight.const_data_ptr(),
                            .inverse_rms = inverse_rms.const_data_ptr(),
                            .dx = want_dx ? out.dx.mutable_data_ptr() : nullptr,
                            .dweight_parts = want_dweight ? parts.mutable_data_ptr() : nullptr,
                            .rows = rows,
                            .width = width,
                            .parts = want_dweight ? parts.size(0) : 0,
                            .rounding = rounding,
                            .dtype = dtype_of(x, "rms_norm")};
  if (x.is_cpu())
    rms_norm_bwd_cpu(args);
  else
    rms_norm_bwd_cuda(args, CurrentStream(x));
  if (want_dweight) out.dweight = parts.sum(0).to(weight.scalar_type());
  return out;
}

struct RmsNorm : torch::autograd::Function<RmsNorm> {
  static Tensor forward(AutogradContext* ctx, const Tensor& x, const Tensor& weight, double eps,
                        NormRounding rounding) {
    const Tensor dense = x.contiguous(), dense_weight = weight.contiguous();
    const Forward out = run_forward(dense, {}, dense_weight, eps, rounding);
    ctx->saved_data["rounding"] = static_cast<int64_t>(rounding);
    ctx->save_for_backward({dense, dense_weight, out.inverse_rms});
    return out.y;
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const variable_list saved = ctx->get_saved_variables();
    const auto rounding = static_cast<NormRounding>(ctx->saved_data["rounding"].toInt());
    const Backward out = run_backward(grads[0], {}, saved[0], saved[1], saved[2], rounding,
                                      ctx->needs_input_grad(0), ctx->needs_input_grad(1));
    return {out.dx, out.dweight, Tensor(), Tensor()};
  }
};

struct AddRmsNorm : torch::autograd::Function<AddRmsNorm> {
  static variable_list forward(AutogradContext* ctx, const Tensor& x, const Tensor& residual,
                               const Tensor& weight, double eps) {
    ctx->set_materialize_grads(false);
    const Tensor dense_weight = weight.contiguous();
    const Forward out = run_forward(x.contiguous(), residual.contiguous(), dense_weight, eps,
                                    NormRounding::kNormalised);
    ctx->save_for_backward({out.sum, dense_weight, out.inverse_rms});
    return {out.sum, out.y};
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    if (!grads[1].defined())
      return {grads[0], grads[0], Tensor(), Tensor()};  // the norm was not used
    const variable_list saved = ctx->get_saved_variables();
    const bool want_dx = ctx->needs_input_grad(0) || ctx->needs_input_grad(1);
    const Backward out = run_backward(grads[1], grads[0], saved[0], saved[1], saved[2],
                                      NormRounding::kNormalised, want_dx, ctx->needs_input_grad(2));
    return {out.dx, out.dx, out.dweight, Tensor()};
  }
};

void check(const Tensor& x, const Tensor& weight) {
  AUTOMOE_CHECK_VALUE(x.dim() >= 1 && weight.dim() == 1 && x.size(-1) == weight.size(0),
                      "[rms_norm] x [..., H] and weight [H] expected, got ", x.sizes(), " and ",
                      weight.sizes());
}

}  // namespace

Tensor rms_norm(const Tensor& x, const Tensor& weight, double eps, NormRounding rounding) {
  check(x, weight);
  const at::ScalarType dtype = x.scalar_type();
  if (dtype == weight.scalar_type()) return RmsNorm::apply(x, weight, eps, rounding);
  if (rounding == NormRounding::kNormalised)
    return RmsNorm::apply(x, at::ones_like(weight, dtype), eps, rounding) * weight;
  const at::ScalarType wide = at::promote_types(dtype, weight.scalar_type());
  return RmsNorm::apply(x.to(wide), weight.to(wide), eps, rounding).to(dtype);
}

std::pair<Tensor, Tensor> add_rms_norm(const Tensor& x, const Tensor& residual,
                                       const Tensor& weight, double eps) {
  check(x, weight);
  AUTOMOE_CHECK_VALUE(x.sizes() == residual.sizes() && x.scalar_type() == residual.scalar_type(),
                      "[add_rms_norm] x and residual of one shape and dtype expected, got ",
                      x.sizes(), " ", x.scalar_type(), " and ", residual.sizes(), " ",
                      residual.scalar_type());
  if (x.scalar_type() != weight.scalar_type()) {
    const Tensor sum = x + residual;
    return {sum, rms_norm(sum, weight, eps)};
  }
  const variable_list out = AddRmsNorm::apply(x, residual, weight, eps);
  return {out[0], out[1]};
}

}  // namespace automoe::kernels
