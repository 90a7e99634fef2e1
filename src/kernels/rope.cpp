#include "kernels/rope.h"

#include "automoe/error.h"
#include "kernels/rope_args.h"
#include "kernels/tensor_args.h"

namespace automoe::kernels {
namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

Tensor rotate(const Tensor& given, const Tensor& cos, const Tensor& sin, const RopeOptions& options,
              bool inverse) {
  const Tensor x = given.stride(2) == 1 ? given : given.contiguous();
  Tensor y = at::empty(x.sizes(), x.options());
  const RopeArgs args{.x = x.const_data_ptr(),
                      .cos = cos.const_data_ptr(),
                      .sin = sin.const_data_ptr(),
                      .y = y.mutable_data_ptr(),
                      .tokens = x.size(0),
                      .heads = x.size(1),
                      .dim = x.size(2),
                      .half = cos.size(1),
                      .token_stride = x.stride(0),
                      .head_stride = x.stride(1),
                      .first = options.first,
                      .pairs = options.pairs,
                      .inverse = inverse,
                      .dtype = dtype_of(x, "rope")};
  if (x.is_cpu())
    rope_cpu(args);
  else
    rope_cuda(args, CurrentStream(x));
  return y;
}

struct Rope : torch::autograd::Function<Rope> {
  static Tensor forward(AutogradContext* ctx, const Tensor& x, const Tensor& cos, const Tensor& sin,
                        bool pairs, int64_t first) {
    ctx->save_for_backward({cos, sin});
    ctx->saved_data["pairs"] = pairs;
    ctx->saved_data["first"] = first;
    return rotate(x, cos, sin, {pairs, first}, /*inverse=*/false);
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const variable_list saved = ctx->get_saved_variables();
    const RopeOptions options{ctx->saved_data["pairs"].toBool(), ctx->saved_data["first"].toInt()};
    return {rotate(grads[0], saved[0], saved[1], options, /*inverse=*/true), {}, {}, {}, {}};
  }
};

}  // namespace

Tensor apply_rope(const Tensor& x, const Tensor& cos, const Tensor& sin,
                  const RopeOptions& options) {
  AUTOMOE_CHECK_VALUE(x.dim() == 3 && cos.dim() == 2 && cos.sizes() == sin.sizes() &&
                          cos.size(0) == x.size(0) && options.first >= 0 &&
                          options.first + 2 * cos.size(1) <= x.size(2),
                      "[rope] x [T, heads, D] and cos, sin [T, d/2] with ", options.first,
                      " + d <= D expected, got ", x.sizes(), ", ", cos.sizes(), ", ", sin.sizes());
  AUTOMOE_CHECK_VALUE(cos.scalar_type() == x.scalar_type() && sin.scalar_type() == x.scalar_type(),
                      "[rope] cos and sin must have x's dtype ", x.scalar_type(), ", got ",
                      cos.scalar_type(), " and ", sin.scalar_type());
  return Rope::apply(x, cos.contiguous(), sin.contiguous(), options.pairs, options.first);
}

}  // namespace automoe::kernels
