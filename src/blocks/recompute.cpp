#include "blocks/recompute.h"

#include <torch/csrc/autograd/autograd.h>

namespace automoe::blocks {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// Leaves that stand for `inputs` in a graph of their own.
Tensors detached(const Tensors& inputs) {
  Tensors leaves;
  for (const Tensor& input : inputs) {
    leaves.push_back(input.defined() ? input.detach() : input);
    if (input.defined() && input.is_floating_point())
      leaves.back().requires_grad_(input.requires_grad());
  }
  return leaves;
}

// Gradients of `outputs` for those of `leaves` that require one; undefined for the others.
variable_list gradients(const Tensors& outputs, const variable_list& upstream,
                        const Tensors& leaves) {
  variable_list roots, seeds, wanted;
  for (size_t i = 0; i < outputs.size(); ++i) {
    if (!upstream[i].defined() || !outputs[i].requires_grad()) continue;
    roots.push_back(outputs[i]);
    seeds.push_back(upstream[i]);
  }
  for (const Tensor& leaf : leaves)
    if (leaf.defined() && leaf.requires_grad()) wanted.push_back(leaf);
  variable_list out(leaves.size());
  if (roots.empty() || wanted.empty()) return out;
  const variable_list found = torch::autograd::grad(roots, wanted, seeds, /*retain_graph=*/false,
                                                    /*create_graph=*/false, /*allow_unused=*/true);
  for (size_t i = 0, next = 0; i < leaves.size(); ++i)
    if (leaves[i].defined() && leaves[i].requires_grad()) out[i] = found[next++];
  return out;
}

// Carries a C++ function through an AutogradContext.
template <typename Result>
struct Holder : torch::CustomClassHolder {
  using Body = std::function<Result(const Tensors&)>;
  explicit Holder(Body body) : body(std::move(body)) {}
  Body body;
};

template <typename Kept>
const Kept* kept(const AutogradContext* ctx) {
  return static_cast<Kept*>(ctx->saved_data.at("kept").toCapsule().get());
}

// NOTE: Function::apply sees tensors in a TensorList, but not in a std::vector.
struct Checkpoint : torch::autograd::Function<Checkpoint> {
  static variable_list forward(AutogradContext* ctx, c10::intrusive_ptr<Holder<Tensors>> holder,
                               at::TensorList inputs) {
    ctx->save_for_backward(inputs.vec());
    ctx->saved_data["kept"] = c10::IValue::make_capsule(holder);
    return holder->body(inputs.vec());
  }

  static variable_list backward(AutogradContext* ctx, variable_list upstream) {
    const Tensors leaves = detached(ctx->get_saved_variables());
    const at::AutoGradMode with_graph(true);
    variable_list grads = gradients(kept<Holder<Tensors>>(ctx)->body(leaves), upstream, leaves);
    grads.insert(grads.begin(), Tensor());
    return grads;
  }
};

// What linear_after() computes, without the tensors: Function::apply takes no undefined ones.
struct LinearPlan : Holder<Tensor> {
  struct Layer {
    bool bias, lora;
    double lora_scale;
  };
  LinearPlan(Body body, const std::vector<LinearWeights>& weights) : Holder(std::move(body)) {
    for (const LinearWeights& layer : weights)
      layers.push_back({layer.bias.defined(), layer.lora_a.defined(), layer.lora_scale});
  }

  std::vector<LinearWeights> weights(at::TensorList flat) const;

  std::vector<Layer> layers;
};

Tensors flattened(const std::vector<LinearWeights>& weights) {
  Tensors flat;
  for (const LinearWeights& layer : weights)
    for (const Tensor& tensor : {layer.weight, layer.bias, layer.lora_a, layer.lora_b})
      if (tensor.defined()) flat.push_back(tensor);
  return flat;
}

// The inverse of flattened().
std::vector<LinearWeights> LinearPlan::weights(at::TensorList flat) const {
  std::vector<LinearWeights> weights;
  const auto* next = flat.begin();
  for (const Layer& layer : layers) {
    LinearWeights& now = weights.emplace_back();
    now.weight = *next++;
    if (layer.bias) now.bias = *next++;
    if (layer.lora) {
      now.lora_a = *next++;
      now.lora_b = *next++;
    }
    now.lora_scale = layer.lora_scale;
  }
  return weights;
}

// Gradients of linear(rows, layer) in the order of flattened(); adds that of the rows to `dx`.
void linear_backward(const Tensor& rows, const Tensor& dy, const LinearWeights& layer,
                     bool needs_dx, Tensor& dx, variable_list& grads) {
  const auto add_to_dx = [&](const Tensor& d_out, const Tensor& matrix) {
    if (needs_dx) dx = dx.defined() ? dx.addmm(d_out, matrix) : at::mm(d_out, matrix);
  };
  const auto add_grad = [&](const Tensor& tensor, const auto& grad_of) {
    if (tensor.defined())
      grads.push_back(tensor.requires_grad() ? grad_of().to(tensor.scalar_type()) : Tensor());
  };
  add_to_dx(dy, layer.weight);
  add_grad(layer.weight, [&] { return at::mm(dy.t(), rows); });
  add_grad(layer.bias, [&] { return dy.sum(0); });
  if (!layer.lora_a.defined()) return;
  const Tensor a = layer.lora_a.to(rows.scalar_type()), b = layer.lora_b.to(rows.scalar_type());
  const Tensor d_low = at::mm(dy, b) * layer.lora_scale;  // [T, r]
  add_to_dx(d_low, a);
  add_grad(layer.lora_a, [&] { return at::mm(d_low.t(), rows); });
  add_grad(layer.lora_b, [&] { return at::mm(dy.t(), at::mm(rows, a.t())) * layer.lora_scale; });
}

struct LinearAfter : torch::autograd::Function<LinearAfter> {
  static variable_list forward(AutogradContext* ctx, c10::intrusive_ptr<LinearPlan> plan,
                               at::TensorList inputs, at::TensorList weights) {
    const Tensor x = plan->body(inputs.vec());
    variable_list outputs;
    for (const LinearWeights& layer : plan->weights(weights)) outputs.push_back(linear(x, layer));
    ctx->saved_data["kept"] = c10::IValue::make_capsule(plan);
    ctx->saved_data["inputs"] = static_cast<int64_t>(inputs.size());
    variable_list saved = inputs.vec();
    saved.insert(saved.end(), weights.begin(), weights.end());
    ctx->save_for_backward(saved);
    return outputs;
  }

  static variable_list backward(AutogradContext* ctx, variable_list upstream) {
    const auto* plan = kept<LinearPlan>(ctx);
    const variable_list saved = ctx->get_saved_variables();
    const auto num_inputs = ctx->saved_data["inputs"].toInt();
    const Tensors leaves = detached({saved.begin(), saved.begin() + num_inputs});
    Tensor x;
    {
      const at::AutoGradMode with_graph(true);
      x = plan->body(leaves);
    }
    const Tensor rows = x.detach();
    const std::vector<LinearWeights> layers =
        plan->weights({saved.data() + num_inputs, saved.size() - num_inputs});
    variable_list weight_grads;
    Tensor dx;
    for (size_t i = 0; i < upstream.size(); ++i)
      linear_backward(rows, upstream[i], layers[i], x.requires_grad(), dx, weight_grads);
    variable_list grads = gradients({x}, {dx}, leaves);
    grads.insert(grads.begin(), Tensor());
    grads.insert(grads.end(), weight_grads.begin(), weight_grads.end());
    return grads;
  }
};

}  // namespace

Tensor linear(const Tensor& x, const LinearWeights& layer) {
  const Tensor y = at::linear(
      x, layer.weight, layer.bias.defined() ? std::optional<Tensor>(layer.bias) : std::nullopt);
  if (!layer.lora_a.defined()) return y;
  const Tensor low = at::linear(x, layer.lora_a.to(x.scalar_type()));  // [..., r]
  return y + at::linear(low, layer.lora_b.to(x.scalar_type())) * layer.lora_scale;
}

Tensors linear_after(std::function<Tensor(const Tensors&)> f, const Tensors& inputs,
                     const std::vector<LinearWeights>& weights, Recompute recompute) {
  if (recompute == Recompute::kNorms && at::GradMode::is_enabled()) {
    const Tensors flat = flattened(weights);
    return LinearAfter::apply(c10::make_intrusive<LinearPlan>(std::move(f), weights),
                              at::TensorList(inputs), at::TensorList(flat));
  }
  const Tensor x = f(inputs);
  Tensors outputs;
  for (const LinearWeights& layer : weights) outputs.push_back(linear(x, layer));
  return outputs;
}

Tensors checkpoint(std::function<Tensors(const Tensors&)> f, const Tensors& inputs) {
  if (!at::GradMode::is_enabled()) return f(inputs);
  return Checkpoint::apply(c10::make_intrusive<Holder<Tensors>>(std::move(f)),
                           at::TensorList(inputs));
}

}  // namespace automoe::blocks
