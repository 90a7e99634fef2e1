#include "kernels/gated_rms_norm.h"

#include "automoe/error.h"
#include "kernels/gated_rms_norm_args.h"
#include "kernels/tensor_args.h"

namespace automoe::kernels {
namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct GatedRmsNorm : torch::autograd::Function<GatedRmsNorm> {
  static Tensor forward(AutogradContext* ctx, const Tensor& given_x, const Tensor& given_gate,
                        const Tensor& weight, int64_t groups, double eps) {
    const Tensor x = given_x.contiguous();
    const Tensor gate = given_gate.stride(1) == 1 ? given_gate : given_gate.contiguous();
    const Tensor wide_weight = weight.to(wide_type(x)).contiguous();
    Tensor y = at::empty_like(x);
    Tensor inverse_rms = at::empty({x.size(0), groups}, wide_weight.options());
    const GatedRmsNormFwdArgs args{.x = x.const_data_ptr(),
                                   .gate = gate.const_data_ptr(),
                                   .weight = wide_weight.const_data_ptr(),
                                   .y = y.mutable_data_ptr(),
                                   .inverse_rms = inverse_rms.mutable_data_ptr(),
                                   .tokens = x.size(0),
                                   .groups = groups,
                                   .width = x.size(1) / groups,
                                   .gate_stride = gate.stride(0),
                                   .eps = eps,
                                   .dtype = dtype_of(x, "gated_rms_norm")};
    if (x.is_cpu())
      gated_rms_norm_fwd_cpu(args);
    else
      gated_rms_norm_fwd_cuda(args, CurrentStream(x));
    ctx->save_for_backward({x, gate, weight, inverse_rms});
    return y;
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const variable_list saved = ctx->get_saved_variables();
    const Tensor &x = saved[0], &gate = saved[1], &weight = saved[2], &inverse_rms = saved[3];
    const Tensor wide_weight = weight.to(wide_type(x)).contiguous(), dy = grads[0].contiguous();
    Tensor dx = at::empty_like(x), dgate = at::empty_like(x);
    Tensor parts = at::empty(
        {x.is_cpu() ? gated_rms_norm_parts_cpu(x.size(0)) : gated_rms_norm_parts_cuda(x.size(0)),
         x.size(1)},
        wide_weight.options());
    const GatedRmsNormBwdArgs args{.dy = dy.const_data_ptr(),
                                   .x = x.const_data_ptr(),
                                   .gate = gate.const_data_ptr(),
                                   .weight = wide_weight.const_data_ptr(),
                                   .inverse_rms = inverse_rms.const_data_ptr(),
                                   .dx = dx.mutable_data_ptr(),
                                   .dgate = dgate.mutable_data_ptr(),
                                   .dweight_parts = parts.mutable_data_ptr(),
                                   .tokens = x.size(0),
                                   .groups = inverse_rms.size(1),
                                   .width = x.size(1) / inverse_rms.size(1),
                                   .gate_stride = gate.stride(0),
                                   .parts = parts.size(0),
                                   .dtype = dtype_of(x, "gated_rms_norm")};
    if (x.is_cpu())
      gated_rms_norm_bwd_cpu(args);
    else
      gated_rms_norm_bwd_cuda(args, CurrentStream(x));
    return {dx, dgate, parts.sum(0).to(weight.scalar_type()), Tensor(), Tensor()};
  }
};

}  // namespace

Tensor gated_rms_norm(const Tensor& x, const Tensor& gate, const Tensor& weight, int64_t groups,
                      double eps) {
  AUTOMOE_CHECK_VALUE(
      x.dim() == 2 && x.sizes() == gate.sizes() && weight.dim() == 1 &&
          weight.size(0) == x.size(1) && x.scalar_type() == gate.scalar_type(),
      "[gated_rms_norm] x and gate [T, W] of one dtype and weight [W] expected, got ", x.sizes(),
      " ", x.scalar_type(), ", ", gate.sizes(), " ", gate.scalar_type(), " and ", weight.sizes());
  AUTOMOE_CHECK_VALUE(groups >= 1 && x.size(1) % groups == 0, "[gated_rms_norm] ", x.size(1),
                      " channels do not divide into ", groups, " groups");
  return GatedRmsNorm::apply(x, gate, weight, groups, eps);
}

}  // namespace automoe::kernels
