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

template <typename Result>
const typename Holder<Result>::Body& body_of(const AutogradContext* ctx) {
  return static_cast<Holder<Result>*>(ctx->saved_data.at("body").toCapsule().get())->body;
}

// NOTE: Function::apply sees tensors in a TensorList, but not in a std::vector.
struct Checkpoint : torch::autograd::Function<Checkpoint> {
  static variable_list forward(AutogradContext* ctx, c10::intrusive_ptr<Holder<Tensors>> holder,
                               at::TensorList inputs) {
    ctx->save_for_backward(inputs.vec());
    ctx->saved_data["body"] = c10::IValue::make_capsule(holder);
    return holder->body(inputs.vec());
  }

  static variable_list backward(AutogradContext* ctx, variable_list upstream) {
    const Tensors leaves = detached(ctx->get_saved_variables());
    const at::AutoGradMode with_graph(true);
    variable_list grads = gradients(body_of<Tensors>(ctx)(leaves), upstream, leaves);
    grads.insert(grads.begin(), Tensor());
    return grads;
  }
};

// The tensors of `weights` in one list, absent biases left out.
Tensors flattened(const std::vector<LinearWeights>& weights) {
  Tensors flat;
  for (const LinearWeights& layer : weights) {
    flat.push_back(layer.weight);
    if (layer.bias.defined()) flat.push_back(layer.bias);
  }
  return flat;
}

// The inverse of flattened(): a matrix begins a layer, a vector is its bias.
std::vector<LinearWeights> layers_of(at::TensorList flat) {
  std::vector<LinearWeights> weights;
  for (const Tensor& tensor : flat) {
    if (tensor.dim() == 2)
      weights.push_back({tensor, Tensor()});
    else
      weights.back().bias = tensor;
  }
  return weights;
}

struct LinearAfter : torch::autograd::Function<LinearAfter> {
  static variable_list forward(AutogradContext* ctx, c10::intrusive_ptr<Holder<Tensor>> holder,
                               at::TensorList inputs, at::TensorList weights) {
    const Tensor x = holder->body(inputs.vec());
    variable_list outputs;
    for (const LinearWeights& layer : layers_of(weights)) outputs.push_back(linear(x, layer));
    ctx->saved_data["body"] = c10::IValue::make_capsule(holder);
    ctx->saved_data["inputs"] = static_cast<int64_t>(inputs.size());
    variable_list saved = inputs.vec();
    saved.insert(saved.end(), weights.begin(), weights.end());
    ctx->save_for_backward(saved);
    return outputs;
  }

  static variable_list backward(AutogradContext* ctx, variable_list upstream) {
    const variable_list saved = ctx->get_saved_variables();
    const auto num_inputs = ctx->saved_data["inputs"].toInt();
    const Tensors leaves = detached({saved.begin(), saved.begin() + num_inputs});
    Tensor x;
    {
      const at::AutoGradMode with_graph(true);
      x = body_of<Tensor>(ctx)(leaves);
    }
    const Tensor rows = x.detach();
    const std::vector<LinearWeights> layers =
        layers_of({saved.data() + num_inputs, saved.size() - num_inputs});
    variable_list weight_grads;
    Tensor dx;
    for (size_t i = 0; i < upstream.size(); ++i) {
      const Tensor& dy = upstream[i];
      const auto& [weight, bias] = layers[i];
      if (x.requires_grad()) dx = dx.defined() ? dx.addmm(dy, weight) : at::mm(dy, weight);
      weight_grads.push_back(weight.requires_grad() ? at::mm(dy.t(), rows) : Tensor());
      if (bias.defined()) weight_grads.push_back(bias.requires_grad() ? dy.sum(0) : Tensor());
    }
    variable_list grads = gradients({x}, {dx}, leaves);
    grads.insert(grads.begin(), Tensor());
    grads.insert(grads.end(), weight_grads.begin(), weight_grads.end());
    return grads;
  }
};

}  // namespace

Tensor linear(const Tensor& x, const LinearWeights& layer) {
  return at::linear(x, layer.weight,
                    layer.bias.defined() ? std::optional<Tensor>(layer.bias) : std::nullopt);
}

Tensors linear_after(std::function<Tensor(const Tensors&)> f, const Tensors& inputs,
                     const std::vector<LinearWeights>& weights, Recompute recompute) {
  if (recompute == Recompute::kNorms && at::GradMode::is_enabled()) {
    const Tensors flat = flattened(weights);
    return LinearAfter::apply(c10::make_intrusive<Holder<Tensor>>(std::move(f)),
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
