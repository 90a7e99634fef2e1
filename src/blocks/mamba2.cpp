#include "blocks/mamba2.h"

#include "automoe/error.h"
#include "kernels/causal_conv1d.h"
#include "kernels/gated_rms_norm.h"
#include "kernels/ssd_scan.h"

namespace automoe::blocks {

Mamba2::Mamba2(ParamScope scope, const Options& o)
    : options_(o),
      dt_bias_(scope.declare("dt_bias", {o.heads})),
      a_log_(scope.declare("A_log", {o.heads})),
      d_(scope.declare("D", {o.heads}, /*is_norm=*/true)),
      conv_weight_(scope.child("conv1d").declare("weight", {o.conv_width(), 1, o.conv_kernel})),
      conv_bias_(o.conv_bias ? scope.child("conv1d").declare("bias", {o.conv_width()}) : -1),
      in_proj_(scope.child("in_proj"), o.hidden, o.width() + o.conv_width() + o.heads, o.bias),
      norm_weight_(scope.child("norm").declare("weight", {o.width()}, /*is_norm=*/true)),
      // NOTE: PEFT refuses adapters that name it, since fused kernels would not see them.
      out_proj_(scope.child("out_proj"), o.width(), o.hidden, o.bias, /*adaptable=*/false) {
  AUTOMOE_CHECK_SUPPORTED(o.conv_kernel >= 1 && o.conv_kernel <= kernels::kMaxConvKernel,
                          "[mamba2] conv_kernel must be between 1 and ", kernels::kMaxConvKernel,
                          ", got ", o.conv_kernel);
  AUTOMOE_CHECK_VALUE(o.groups >= 1 && o.heads % o.groups == 0, "[mamba2] mamba_num_heads ",
                      o.heads, " must be a multiple of n_groups ", o.groups);
}

BlockOutput Mamba2::forward(const Context& context, const RmsNorm& norm, const Tensor& x) const {
  const Params& params = context.params;
  const Options& o = options_;
  const kernels::Documents& documents = context.sequences.documents;
  const Tensors projected =
      norm.then_linear(context, x, {in_proj_.weights(params)})[0].split_with_sizes(
          {o.width(), o.conv_width(), o.heads}, 1);
  const Tensor &gate = projected[0], &dt = projected[2];
  const Tensors xbc =
      kernels::causal_conv1d(projected[1], params[conv_weight_].squeeze(1),
                             conv_bias_ < 0 ? Tensor() : params[conv_bias_], documents)
          .split_with_sizes({o.width(), o.groups * o.state, o.groups * o.state}, 1);
  const auto grouped = [&](const Tensor& t) { return t.unflatten(1, {o.groups, o.state}); };
  const Tensor y =
      kernels::ssd_scan(xbc[0].unflatten(1, {o.heads, o.head_dim}), dt, grouped(xbc[1]),
                        grouped(xbc[2]), params[a_log_], params[d_], params[dt_bias_], documents,
                        {.chunk_size = o.chunk_size, .min_step = o.min_step});
  const auto gated = [groups = o.groups, eps = o.eps](const Tensors& in) {
    return kernels::gated_rms_norm(in[0], in[1], in[2], groups, eps);
  };
  return {linear_after(gated, {y.flatten(1), gate, params[norm_weight_]},
                       {out_proj_.weights(params)}, context.recompute)[0],
          {},
          {}};
}

}  // namespace automoe::blocks
