#include "kernels/rms_norm.h"

#include "automoe/error.h"

namespace automoe::kernels {
namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct RmsNorm : torch::autograd::Function<RmsNorm> {
  static Tensor forward(AutogradContext* ctx, const Tensor& x, const Tensor& weight, double eps) {
    const Tensor wide = x.to(at::kFloat);
    const Tensor inverse_rms = at::rsqrt(wide.square().mean(-1, /*keepdim=*/true) + eps);
    ctx->save_for_backward({x, weight, inverse_rms});
    return (wide * inverse_rms).to(x.scalar_type()) * weight;
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const variable_list saved = ctx->get_saved_variables();
    const Tensor &x = saved[0], &weight = saved[1], &inverse_rms = saved[2];
    const Tensor &dy = grads[0], normed = x.to(at::kFloat) * inverse_rms;
    Tensor dx, dweight;
    if (ctx->needs_input_grad(0)) {
      const Tensor scaled = (dy * weight).to(at::kFloat);
      dx = (inverse_rms * (scaled - normed * (scaled * normed).mean(-1, true))).to(x.scalar_type());
    }
    if (ctx->needs_input_grad(1)) {
      const Tensor products = dy.to(at::kFloat) * normed.to(x.scalar_type()).to(at::kFloat);
      dweight = products.reshape({-1, weight.size(0)}).sum(0).to(weight.scalar_type());
    }
    return {dx, dweight, Tensor()};
  }
};

}  // namespace

at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps) {
  AUTOMOE_CHECK_VALUE(weight.dim() == 1 && x.dim() >= 1 && x.size(-1) == weight.size(0),
                      "[rms_norm] weight must have x's last extent ", x.size(-1), ", got ",
                      weight.sizes());
  return RmsNorm::apply(x, weight, eps);
}

}  // namespace automoe::kernels
