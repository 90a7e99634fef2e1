#include "kernels/silu_mul.h"

#include "automoe/error.h"
#include "kernels/silu_mul_args.h"
#include "kernels/tensor_args.h"

namespace automoe::kernels {
namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// Two operands whose rows lie the same distance apart.
struct Operands {
  Tensor gate, up;
  int64_t rows, width, stride;
};

Operands operands(const Tensor& gate, const Tensor& up) {
  const bool one_stride = gate.dim() == 2 && gate.stride(1) == 1 &&
                          gate.strides() == up.strides() && gate.stride(0) >= gate.size(1);
  Operands out{gate, up, 1, gate.dim() ? gate.size(-1) : 1, 0};
  out.stride = one_stride ? gate.stride(0) : out.width;
  if (!one_stride) {
    out.gate = gate.contiguous();
    out.up = up.contiguous();
  }
  out.rows = out.width > 0 ? gate.numel() / out.width : 0;
  return out;
}

Tensor run_forward(const Operands& in) {
  Tensor out = at::empty(in.gate.sizes(), in.gate.options());
  const SiluMulFwdArgs args{.gate = in.gate.const_data_ptr(),
                            .up = in.up.const_data_ptr(),
                            .out = out.mutable_data_ptr(),
                            .rows = in.rows,
                            .width = in.width,
                            .in_stride = in.stride,
                            .dtype = dtype_of(in.gate, "silu_mul")};
  if (out.is_cpu())
    silu_mul_fwd_cpu(args);
  else
    silu_mul_fwd_cuda(args, CurrentStream(out));
  return out;
}

// Fills d_gate and d_up, which have one row stride.
void run_backward(const Tensor& d_out, const Operands& in, const Tensor& d_gate,
                  const Tensor& d_up) {
  const Tensor dense = d_out.contiguous();
  const SiluMulBwdArgs args{.d_out = dense.const_data_ptr(),
                            .gate = in.gate.const_data_ptr(),
                            .up = in.up.const_data_ptr(),
                            .d_gate = d_gate.mutable_data_ptr(),
                            .d_up = d_up.mutable_data_ptr(),
                            .rows = in.rows,
                            .width = in.width,
                            .in_stride = in.stride,
                            .grad_stride = d_gate.dim() == 2 ? d_gate.stride(0) : in.width,
                            .dtype = dtype_of(in.gate, "silu_mul")};
  if (dense.is_cpu())
    silu_mul_bwd_cpu(args);
  else
    silu_mul_bwd_cuda(args, CurrentStream(dense));
}

struct SiluMul : torch::autograd::Function<SiluMul> {
  static Tensor forward(AutogradContext* ctx, const Tensor& gate, const Tensor& up) {
    const Operands in = operands(gate, up);
    ctx->save_for_backward({in.gate, in.up});
    return run_forward(in);
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const variable_list saved = ctx->get_saved_variables();
    const Operands in = operands(saved[0], saved[1]);
    const Tensor d_gate = at::empty(in.gate.sizes(), in.gate.options());
    const Tensor d_up = at::empty(in.gate.sizes(), in.gate.options());
    run_backward(grads[0], in, d_gate, d_up);
    return {d_gate, d_up};
  }
};

Operands halves(const Tensor& gate_up) {
  const int64_t width = gate_up.size(1) / 2;
  return operands(gate_up.narrow(1, 0, width), gate_up.narrow(1, width, width));
}

}  // namespace

Tensor silu_mul(const Tensor& gate, const Tensor& up) {
  AUTOMOE_CHECK_VALUE(gate.sizes() == up.sizes() && gate.scalar_type() == up.scalar_type(),
                      "[silu_mul] gate and up must have one shape and dtype, got ", gate.sizes(),
                      " ", gate.scalar_type(), " and ", up.sizes(), " ", up.scalar_type());
  return SiluMul::apply(gate, up);
}

Tensor silu_mul_halves(const Tensor& gate_up) { return run_forward(halves(gate_up)); }

Tensor silu_mul_halves_backward(const Tensor& d_activation, const Tensor& gate_up) {
  const Operands in = halves(gate_up);
  Tensor d_gate_up = at::empty(gate_up.sizes(), gate_up.options());
  run_backward(d_activation, in, d_gate_up.narrow(1, 0, in.width),
               d_gate_up.narrow(1, in.width, in.width));
  return d_gate_up;
}

}  // namespace automoe::kernels
