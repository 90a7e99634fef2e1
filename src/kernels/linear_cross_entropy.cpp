#include "kernels/linear_cross_entropy.h"

#include "automoe/error.h"
#include "kernels/cross_entropy_args.h"
#include "kernels/tensor_args.h"

namespace automoe::kernels {
namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// Logits alive at a time. CUDA: 1 GiB in half precision; smaller chunks would spend the time of the
// products on passes over the weight's fp32 gradient.
constexpr int64_t kChunkElementsCpu = int64_t{1} << 23;
constexpr int64_t kChunkElementsCuda = int64_t{1} << 29;

int64_t chunk_rows(int64_t rows, int64_t vocab, bool on_cpu) {
  const int64_t most =
      std::max<int64_t>(1, (on_cpu ? kChunkElementsCpu : kChunkElementsCuda) / vocab);
  const int64_t chunks = (rows + most - 1) / most;
  return chunks > 0 ? (rows + chunks - 1) / chunks : 1;  // chunks of nearly one size
}

// The gradients of the sum of all losses, in fp32; undefined where not wanted.
struct Gradients {
  Tensor hidden, weight;  // [T, H], [V, H]
};

// Losses [C] of the rows; `logits` becomes their gradient.
void cross_entropy(const Tensor& logits, const Tensor& targets, const Tensor& losses,
                   bool want_gradient) {
  const CrossEntropyArgs args{.logits = logits.mutable_data_ptr(),
                              .targets = targets.const_data_ptr<int64_t>(),
                              .losses = losses.mutable_data_ptr<float>(),
                              .rows = logits.size(0),
                              .vocab = logits.size(1),
                              .want_gradient = want_gradient,
                              .dtype = dtype_of(logits, "linear_cross_entropy")};
  if (logits.is_cpu())
    cross_entropy_cpu(args);
  else
    cross_entropy_cuda(args, CurrentStream(logits));
}

// out (+)= a b in fp32. `a` and `b` are half precision on CUDA only.
void product(const Tensor& out, const Tensor& a, const Tensor& b, bool accumulate) {
  Tensor target = out;
  if (a.scalar_type() == at::kFloat)
    accumulate ? at::addmm_out(target, out, a, b) : at::mm_out(target, a, b);
  else
    accumulate ? at::addmm_out(target, out, a, b, at::kFloat)
               : at::mm_out(target, a, b, at::kFloat);
}

struct LinearCrossEntropy : torch::autograd::Function<LinearCrossEntropy> {
  static Tensor forward(AutogradContext* ctx, const Tensor& hidden, const Tensor& weight,
                        const Tensor& targets, const Tensor& denominator, bool want_hidden,
                        bool want_weight) {
    const int64_t tokens = hidden.size(0),
                  rows = chunk_rows(tokens, weight.size(0), hidden.is_cpu());
    const auto fp32 = hidden.options().dtype(at::kFloat);
    Gradients grads;
    if (want_hidden) grads.hidden = at::empty(hidden.sizes(), fp32);
    if (want_weight) grads.weight = at::zeros(weight.sizes(), fp32);
    const bool want = want_hidden || want_weight;
    // CPU: the logits are rounded as in half precision, the gradients are made in fp32.
    const at::ScalarType type = hidden.is_cpu() ? at::kFloat : hidden.scalar_type();
    const Tensor typed_hidden = hidden.to(type),
                 typed_weight = want_hidden ? weight.to(type) : weight;
    const Tensor losses = at::empty({tokens}, fp32);
    for (int64_t begin = 0; begin < tokens; begin += rows) {
      const auto part = [&](const Tensor& x) {
        return x.slice(0, begin, std::min(begin + rows, tokens));
      };
      const Tensor logits = at::linear(part(hidden), weight).to(type);  // [C, V], then its gradient
      cross_entropy(logits, part(targets), part(losses), want);
      if (want_hidden) product(part(grads.hidden), logits, typed_weight, /*accumulate=*/false);
      if (want_weight)
        product(grads.weight, logits.t(), part(typed_hidden), /*accumulate=*/begin > 0);
    }
    ctx->saved_data["grads"] =
        std::vector<Tensor>{want_hidden ? grads.hidden : at::empty({0}, fp32),
                            want_weight ? grads.weight : at::empty({0}, fp32)};
    ctx->saved_data["dtype"] = static_cast<int64_t>(hidden.scalar_type());
    ctx->saved_data["denominator"] = denominator;
    return losses.sum() / denominator;
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const auto saved = ctx->saved_data["grads"].toTensorVector();
    const auto dtype = static_cast<at::ScalarType>(ctx->saved_data["dtype"].toInt());
    const Tensor scale = grads[0] / ctx->saved_data["denominator"].toTensor();
    const auto scaled = [&](int64_t input) {
      return ctx->needs_input_grad(input) ? (saved[input] * scale).to(dtype) : Tensor();
    };
    return {scaled(0), scaled(1), Tensor(), Tensor(), Tensor(), Tensor()};
  }
};

void check(const Tensor& hidden, const Tensor& weight, const Tensor& targets) {
  AUTOMOE_CHECK_VALUE(
      hidden.dim() == 2 && weight.dim() == 2 && targets.dim() == 1 &&
          hidden.size(1) == weight.size(1) && hidden.size(0) == targets.size(0),
      "[linear_cross_entropy] hidden [T, H], weight [V, H], targets [T] expected, got ",
      hidden.sizes(), ", ", weight.sizes(), ", ", targets.sizes());
  AUTOMOE_CHECK_VALUE(
      hidden.scalar_type() == weight.scalar_type() && targets.scalar_type() == at::kLong,
      "[linear_cross_entropy] hidden and weight of one dtype and int64 targets expected, got ",
      hidden.scalar_type(), ", ", weight.scalar_type(), ", ", targets.scalar_type());
  if (!targets.is_cpu())
    return;  // the host does not wait for the device: there the row's loss is NaN
  const auto* target = targets.const_data_ptr<int64_t>();
  for (int64_t row = 0; row < targets.size(0); ++row)
    AUTOMOE_CHECK_VALUE(
        target[row] == kIgnoreIndex || (target[row] >= 0 && target[row] < weight.size(0)),
        "[linear_cross_entropy] targets below the vocabulary's size ", weight.size(0), " or ",
        kIgnoreIndex, " expected, got ", target[row], " in row ", row);
}

}  // namespace

Tensor linear_cross_entropy(const Tensor& hidden, const Tensor& weight, const Tensor& targets,
                            const Tensor& denominator) {
  Tensor rows = hidden, row_targets = targets.contiguous();
  check(hidden, weight, row_targets);
  const Tensor divisor = denominator.defined()
                             ? denominator.to(hidden.device(), at::kFloat).detach()
                             : targets.ne(kIgnoreIndex).sum().to(at::kFloat);
  if (hidden.is_cpu()) {  // rows without a target cost nothing; on CUDA finding them would need the
                          // host
    const Tensor kept = targets.ne(kIgnoreIndex).nonzero().squeeze(1);
    if (kept.size(0) < targets.size(0)) {
      rows = hidden.index_select(0, kept);
      row_targets = targets.index_select(0, kept);
    }
  }
  const bool grad = at::GradMode::is_enabled();
  // 0 / 0 would be NaN where no row has a target.
  const Tensor safe_divisor = at::where(divisor.eq(0), at::ones_like(divisor), divisor);
  return LinearCrossEntropy::apply(rows.contiguous(), weight.contiguous(), row_targets,
                                   safe_divisor, grad && hidden.requires_grad(),
                                   grad && weight.requires_grad());
}

}  // namespace automoe::kernels
