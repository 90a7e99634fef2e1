#include "kernels/adamw.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cmath>

#include "automoe/error.h"
#include "kernels/adamw_args.h"
#include "kernels/tensor_args.h"

namespace automoe::kernels {
namespace {

using at::Tensor;

AdamWArgs arguments(const Tensor& parameter, const Tensor& master, const Tensor& exp_avg,
                    const Tensor& exp_avg_sq, const Tensor& grad, double grad_scale,
                    const AdamWOptions& options) {
  const double correction1 = 1.0 - std::pow(options.beta1, double(options.step));
  const double correction2 = 1.0 - std::pow(options.beta2, double(options.step));
  return {
      .parameter = parameter.scalar_type() == at::kFloat ? nullptr : parameter.mutable_data_ptr(),
      .master = master.defined() ? master.mutable_data_ptr<float>() : nullptr,
      .exp_avg = exp_avg.mutable_data_ptr(),
      .exp_avg_sq = exp_avg_sq.mutable_data_ptr(),
      .grad = grad.const_data_ptr(),
      .count = parameter.numel(),
      .seed = mix(options.seed),
      .parameter_dtype = dtype_of(parameter, "adamw"),
      .grad_dtype = dtype_of(grad, "adamw"),
      .grad_scale = float(grad_scale),
      .keep = float(1.0 - options.learning_rate * options.weight_decay),
      .beta1 = float(options.beta1),
      .beta2 = float(options.beta2),
      .rate = float(options.learning_rate / correction1),
      .root_correction = float(1.0 / std::sqrt(correction2)),
      .epsilon = float(options.epsilon)};
}

using Dtypes = std::initializer_list<at::ScalarType>;

void check(const Tensor& parameter, const Tensor& other, const char* name, const Dtypes& dtypes) {
  AUTOMOE_CHECK_VALUE(other.sizes() == parameter.sizes() && other.device() == parameter.device() &&
                          other.is_contiguous(),
                      "[adamw] ", name, " must be contiguous, ", parameter.sizes(), " on ",
                      parameter.device(), " like the parameter, got ", other.sizes(), " on ",
                      other.device());
  AUTOMOE_CHECK_VALUE(std::ranges::find(dtypes, other.scalar_type()) != dtypes.end(), "[adamw] ",
                      name, " must be ", c10::Join(" or ", dtypes), ", got ", other.scalar_type());
}

}  // namespace

void adamw_(const Tensor& parameter, const Tensor& master, const Tensor& exp_avg,
            const Tensor& exp_avg_sq, const Tensor& grad, const Tensor& grad_scale,
            const AdamWOptions& options) {
  const Dtypes any = {at::kFloat, at::kBFloat16, at::kHalf};
  const Dtypes state = {master.defined() ? at::kFloat : at::kBFloat16};
  check(parameter, parameter, "parameter", master.defined() ? any : state);
  if (master.defined()) check(parameter, master, "master", state);
  check(parameter, exp_avg, "exp_avg", state);
  check(parameter, exp_avg_sq, "exp_avg_sq", state);
  check(parameter, grad, "grad", any);
  AUTOMOE_CHECK_VALUE(
      !master.defined() || (parameter.scalar_type() == at::kFloat) ==
                               (parameter.const_data_ptr() == master.const_data_ptr()),
      "[adamw] a float32 parameter is its own master: pass the same tensor twice");
  AUTOMOE_CHECK_VALUE(options.step >= 1, "[adamw] step must be at least 1, got ", options.step);
  const at::NoGradGuard no_grad;
  if (parameter.is_cpu()) {
    const double scale = grad_scale.defined() ? grad_scale.item<double>() : 1.0;
    return adamw_cpu(arguments(parameter, master, exp_avg, exp_avg_sq, grad, scale, options));
  }
  Tensor scale;  // stays on the device
  if (grad_scale.defined()) scale = grad_scale.to(parameter.device(), at::kFloat);
  adamw_cuda(arguments(parameter, master, exp_avg, exp_avg_sq, grad, /*grad_scale=*/1.0, options),
             scale.defined() ? scale.const_data_ptr<float>() : nullptr, CurrentStream(parameter));
}

}  // namespace automoe::kernels
