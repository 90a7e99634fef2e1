#include "kernels/rope.h"

#include "automoe/error.h"

namespace automoe::kernels {
namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// cos, sin [T, d/2]; the inverse rotation is the one by -sin.
Tensor rotate(const Tensor& x, const Tensor& cos, const Tensor& sin) {
  const int64_t half = cos.size(-1);
  const Tensor c = cos.unsqueeze(1), s = sin.unsqueeze(1);  // [T, 1, d/2]
  const Tensor first = x.narrow(-1, 0, half), second = x.narrow(-1, half, half);
  Tensor out = at::empty_like(x, at::MemoryFormat::Contiguous);
  out.narrow(-1, 0, half).copy_(first * c - second * s);
  out.narrow(-1, half, half).copy_(second * c + first * s);
  const int64_t rest = x.size(-1) - 2 * half;
  if (rest > 0) out.narrow(-1, 2 * half, rest).copy_(x.narrow(-1, 2 * half, rest));
  return out;
}

struct Rope : torch::autograd::Function<Rope> {
  static Tensor forward(AutogradContext* ctx, const Tensor& x, const Tensor& cos, const Tensor& sin) {
    ctx->save_for_backward({cos, sin});
    return rotate(x, cos, sin);
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const variable_list saved = ctx->get_saved_variables();
    return {rotate(grads[0], saved[0], -saved[1]), Tensor(), Tensor()};
  }
};

}  // namespace

Tensor apply_rope(const Tensor& x, const Tensor& cos, const Tensor& sin) {
  AUTOMOE_CHECK_VALUE(x.dim() == 3 && cos.dim() == 2 && cos.sizes() == sin.sizes() &&
                          cos.size(0) == x.size(0) && 2 * cos.size(1) <= x.size(2),
                      "[rope] x [T, heads, D] and cos, sin [T, d/2] with d <= D expected, got ", x.sizes(),
                      ", ", cos.sizes(), ", ", sin.sizes());
  return Rope::apply(x, cos, sin);
}

}  // namespace automoe::kernels
