#include "kernels/causal_conv1d.h"

#include "automoe/error.h"
#include "kernels/causal_conv1d_args.h"
#include "kernels/tensor_args.h"

namespace automoe::kernels {
namespace {

static_assert(kMaxConvKernel == kTaps);

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct Filter {
  Tensor weight, bias;  // as the kernels take them: [kTaps, C], [C], wide
};

Filter filter_of(const Tensor& weight, const Tensor& bias, at::ScalarType wide) {
  const int64_t missing = kTaps - weight.size(1);
  return {at::constant_pad_nd(weight.to(wide), {missing, 0}).t().contiguous(),
          bias.to(wide).contiguous()};
}

Tensor run_forward(const Tensor& x, const Filter& filter, const Tensor& offsets) {
  Tensor y = at::empty(x.sizes(), x.options().memory_format(at::MemoryFormat::Contiguous));
  const CausalConv1dFwdArgs args{.x = x.const_data_ptr(),
                                 .weight = filter.weight.const_data_ptr(),
                                 .bias = filter.bias.const_data_ptr(),
                                 .offsets = offsets.const_data_ptr<int32_t>(),
                                 .y = y.mutable_data_ptr(),
                                 .tokens = x.size(0),
                                 .channels = x.size(1),
                                 .x_stride = x.stride(0),
                                 .documents = offsets.size(0) - 1,
                                 .dtype = dtype_of(x, "causal_conv1d")};
  if (x.is_cpu())
    causal_conv1d_fwd_cpu(args);
  else
    causal_conv1d_fwd_cuda(args, CurrentStream(x));
  return y;
}

struct Backward {
  Tensor dx, sums;  // sums: [kTaps + 1, C] wide, gradients of weight, then bias
};

Backward run_backward(const Tensor& dy, const Tensor& x, const Filter& filter,
                      const Tensor& offsets) {
  const Tensor dense = dy.contiguous();
  const int64_t tokens = x.size(0);
  const Backward out{.dx = at::empty(dense.sizes(), dense.options()),
                     .sums = at::empty({x.is_cpu() ? causal_conv1d_parts_cpu(tokens)
                                                   : causal_conv1d_parts_cuda(tokens),
                                        kTaps + 1, x.size(1)},
                                       filter.weight.options())};
  const CausalConv1dBwdArgs args{.dy = dense.const_data_ptr(),
                                 .x = x.const_data_ptr(),
                                 .weight = filter.weight.const_data_ptr(),
                                 .bias = filter.bias.const_data_ptr(),
                                 .offsets = offsets.const_data_ptr<int32_t>(),
                                 .dx = out.dx.mutable_data_ptr(),
                                 .sums = out.sums.mutable_data_ptr(),
                                 .tokens = tokens,
                                 .channels = x.size(1),
                                 .x_stride = x.stride(0),
                                 .documents = offsets.size(0) - 1,
                                 .parts = out.sums.size(0),
                                 .dtype = dtype_of(x, "causal_conv1d")};
  if (x.is_cpu())
    causal_conv1d_bwd_cpu(args);
  else
    causal_conv1d_bwd_cuda(args, CurrentStream(x));
  return {out.dx, out.sums.sum(0)};
}

struct CausalConv1d : torch::autograd::Function<CausalConv1d> {
  static Tensor forward(AutogradContext* ctx, const Tensor& given, const Tensor& weight,
                        const Tensor& bias, const Tensor& offsets) {
    const Tensor x = given.stride(1) == 1 ? given : given.contiguous();
    ctx->save_for_backward({x, weight, bias, offsets});
    return run_forward(x, filter_of(weight, bias, wide_type(x)), offsets);
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const variable_list saved = ctx->get_saved_variables();
    const Tensor &x = saved[0], &weight = saved[1], &bias = saved[2], &offsets = saved[3];
    const Backward out = run_backward(grads[0], x, filter_of(weight, bias, wide_type(x)), offsets);
    const Tensor dweight =
        out.sums.narrow(0, kTaps - weight.size(1), weight.size(1)).t().to(weight.scalar_type());
    return {out.dx, dweight, out.sums.select(0, kTaps).to(bias.scalar_type()), Tensor()};
  }
};

}  // namespace

Tensor causal_conv1d(const Tensor& x, const Tensor& weight, const Tensor& bias,
                     const Documents& documents) {
  AUTOMOE_CHECK_VALUE(x.dim() == 2 && weight.dim() == 2 && weight.size(0) == x.size(1) &&
                          (!bias.defined() || bias.sizes() == weight.sizes().slice(0, 1)),
                      "[causal_conv1d] x [T, C], weight [C, K] and bias [C] expected, got ",
                      x.sizes(), ", ", weight.sizes(),
                      bias.defined() ? text(", ", bias.sizes()) : "");
  AUTOMOE_CHECK_VALUE(weight.size(1) >= 1 && weight.size(1) <= kTaps,
                      "[causal_conv1d] a kernel of 1 to ", kTaps, " tokens expected, got ",
                      weight.size(1));
  AUTOMOE_CHECK_VALUE(documents.tokens() == x.size(0), "[causal_conv1d] x has ", x.size(0),
                      " tokens, the documents have ", documents.tokens());
  return CausalConv1d::apply(x, weight,
                             bias.defined() ? bias : at::zeros({x.size(1)}, weight.options()),
                             documents.offsets);
}

}  // namespace automoe::kernels
