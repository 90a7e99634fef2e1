#include "kernels/activation.h"

#include "automoe/error.h"
#include "kernels/tensor_args.h"

namespace automoe::kernels {
namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// Gates and ups whose rows lie the same distance apart; no `up` where the gates hold both or there
// is none.
struct Operands {
  Tensor gate, up;
  int64_t rows, width, stride;

  const void* up_data() const { return up.defined() ? up.const_data_ptr() : nullptr; }
};

Operands two_tensors(const Tensor& gate, const Tensor& up) {
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

// `pre` [R, num_inputs * I] contiguous.
Operands one_tensor(const Tensor& pre, const Activation& activation) {
  const int64_t width = pre.size(1) / activation.num_inputs();
  Operands out{pre, {}, pre.size(0), width, pre.size(1)};
  if (activation.kind == Activation::kSiluMul) {
    out.gate = pre.narrow(1, 0, width);
    out.up = pre.narrow(1, width, width);
  }
  return out;
}

void run_forward(const Operands& in, const Activation& activation, const Tensor& out) {
  const ActivationFwdArgs args{.activation = activation,
                               .gate = in.gate.const_data_ptr(),
                               .up = in.up_data(),
                               .out = out.mutable_data_ptr(),
                               .rows = in.rows,
                               .width = in.width,
                               .in_stride = in.stride,
                               .dtype = dtype_of(in.gate, "activation")};
  if (out.is_cpu())
    activation_fwd_cpu(args);
  else
    activation_fwd_cuda(args, CurrentStream(out));
}

// Fills `grad`, which lies like `in` but for its row stride.
void run_backward(const Tensor& d_out, const Operands& in, const Activation& activation,
                  const Operands& grad) {
  const Tensor dense = d_out.contiguous();
  const ActivationBwdArgs args{.activation = activation,
                               .d_out = dense.const_data_ptr(),
                               .gate = in.gate.const_data_ptr(),
                               .up = in.up_data(),
                               .d_gate = grad.gate.mutable_data_ptr(),
                               .d_up = grad.up.defined() ? grad.up.mutable_data_ptr() : nullptr,
                               .rows = in.rows,
                               .width = in.width,
                               .in_stride = in.stride,
                               .grad_stride = grad.stride,
                               .dtype = dtype_of(in.gate, "activation")};
  if (dense.is_cpu())
    activation_bwd_cpu(args);
  else
    activation_bwd_cuda(args, CurrentStream(dense));
}

struct SiluMulFunction : torch::autograd::Function<SiluMulFunction> {
  static Tensor forward(AutogradContext* ctx, const Tensor& gate, const Tensor& up) {
    const Operands in = two_tensors(gate, up);
    ctx->save_for_backward({in.gate, in.up});
    Tensor out = at::empty(gate.sizes(), gate.options());
    run_forward(in, {}, out);
    return out;
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const variable_list saved = ctx->get_saved_variables();
    const Operands in = two_tensors(saved[0], saved[1]);
    const Operands grad{at::empty(in.gate.sizes(), in.gate.options()),
                        at::empty(in.gate.sizes(), in.gate.options()), in.rows, in.width, in.width};
    run_backward(grads[0], in, {}, grad);
    return {grad.gate, grad.up};
  }
};

struct Activate : torch::autograd::Function<Activate> {
  static Tensor forward(AutogradContext* ctx, const Tensor& pre, const Activation& activation) {
    const Tensor dense = pre.contiguous();
    ctx->save_for_backward({dense});
    ctx->saved_data["activation"] = packed(activation);
    const Operands in = one_tensor(dense, activation);
    Tensor out = at::empty({in.rows, in.width}, pre.options());
    run_forward(in, activation, out);
    return out;
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const Tensor pre = ctx->get_saved_variables()[0], d_pre = at::empty_like(pre);
    const Activation activation = unpacked(ctx->saved_data["activation"].toDoubleVector());
    run_backward(grads[0], one_tensor(pre, activation), activation, one_tensor(d_pre, activation));
    return {d_pre, Tensor()};
  }
};

}  // namespace

Tensor activate(const Tensor& pre, const Activation& activation) {
  AUTOMOE_CHECK_VALUE(pre.dim() == 2 && pre.size(1) % activation.num_inputs() == 0,
                      "[activation] pre-activations [R, ", activation.num_inputs(),
                      " I] expected, got ", pre.sizes());
  return Activate::apply(pre, activation);
}

Tensor silu_mul(const Tensor& gate, const Tensor& up) {
  AUTOMOE_CHECK_VALUE(gate.sizes() == up.sizes() && gate.scalar_type() == up.scalar_type(),
                      "[silu_mul] gate and up must have one shape and dtype, got ", gate.sizes(),
                      " ", gate.scalar_type(), " and ", up.sizes(), " ", up.scalar_type());
  return SiluMulFunction::apply(gate, up);
}

Activation::Kind activation_kind(const std::string& name) {
  if (name == "silu_mul") return Activation::kSiluMul;
  if (name == "clamped_swiglu") return Activation::kClampedSwiglu;
  if (name == "relu_squared") return Activation::kReluSquared;
  throw ValueError(text(
      "[activation] one of silu_mul, clamped_swiglu, relu_squared expected, got '", name, "'"));
}

std::vector<double> packed(const Activation& activation) {
  return {static_cast<double>(activation.kind), activation.alpha, activation.limit};
}

Activation unpacked(const std::vector<double>& activation) {
  return {static_cast<Activation::Kind>(activation[0]), activation[1], activation[2]};
}

}  // namespace automoe::kernels
