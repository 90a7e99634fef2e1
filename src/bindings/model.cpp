// torch.classes.automoe.Model: a family's forward pass over parameters that Python owns.
#include "models/model.h"

#include <torch/custom_class.h>

namespace automoe::bindings {
namespace {

using TensorDict = c10::Dict<std::string, at::Tensor>;

std::optional<at::Tensor> find(const TensorDict& tensors, const char* name) {
  const auto found = tensors.find(name);
  return found == tensors.end() ? std::nullopt : std::optional<at::Tensor>(found->value());
}

Batch batch_from(const TensorDict& tensors) {
  return {.input_ids = tensors.at("input_ids"),
          .attention_mask = find(tensors, "attention_mask"),
          .position_ids = find(tensors, "position_ids"),
          .labels = find(tensors, "labels"),
          .num_items_in_batch = find(tensors, "num_items_in_batch"),
          .document_ends = {}};
}

TensorDict dict_from(const ModelOutput& out) {
  TensorDict dict;
  const auto add = [&](const std::string& name, const at::Tensor& tensor) {
    if (tensor.defined()) dict.insert(name, tensor);
  };
  add("loss", out.loss);
  add("aux_loss", out.aux_loss);
  add("hidden", out.hidden);
  add("logits", out.logits);
  add("routing_counts", out.routing_counts);
  for (size_t i = 0; i < out.router_logits.size(); ++i)
    add(text("router_logits.", i), out.router_logits[i]);
  return dict;
}

class Model : public torch::CustomClassHolder {
 public:
  explicit Model(const std::string& config_json) {
    const Json config = parse_json(config_json, "the model's config");
    model_ = models::family_of(config).create(config);
  }

  // JSON: name, is_buffer and keep_fp32 of each parameter, in the order that forward() takes them.
  std::string parameters() const {
    Json specs = Json::array();
    for (const ParameterSpec& spec : model_->specs())
      specs.push_back(
          {{"name", spec.name}, {"is_buffer", spec.is_buffer}, {"keep_fp32", spec.keep_fp32}});
    return specs.dump();
  }
  bool has_experts() const { return model_->has_experts(); }
  bool fp32_logits() const { return model_->fp32_logits(); }

  // Keys of `tensors`: input_ids, and optionally attention_mask, position_ids, labels,
  // num_items_in_batch, logits_to_keep. Of `flags`: logits, router_logits, routing_counts.
  TensorDict forward(std::vector<at::Tensor> parameters, const TensorDict& tensors,
                     const c10::Dict<std::string, bool>& flags,
                     const std::string& recompute) const {
    const auto flag = [&](const char* name) { return flags.contains(name) && flags.at(name); };
    const ForwardOptions options{
        .recompute = recompute_from(recompute),
        .logits = flag("logits"),
        .logits_to_keep = find(tensors, "logits_to_keep").value_or(at::Tensor()),
        .router_logits = flag("router_logits"),
        .routing_counts = flag("routing_counts")};
    AUTOMOE_CHECK_VALUE(parameters.size() == model_->specs().size(), "[forward] expected ",
                        model_->specs().size(), " parameters, got ", parameters.size());
    return dict_from(
        model_->forward(blocks::Params(std::move(parameters)), batch_from(tensors), options));
  }

 private:
  std::unique_ptr<models::Model> model_;
};

TORCH_LIBRARY_FRAGMENT(automoe, m) {
  m.class_<Model>("Model")
      .def(torch::init<std::string>())
      .def("parameters", &Model::parameters)
      .def("has_experts", &Model::has_experts)
      .def("fp32_logits", &Model::fp32_logits)
      .def("forward", &Model::forward);
  m.def("native_architectures", []() { return models::families().names(); });
  // What in the config has no native implementation, in words; empty if all of it has one. Configs
  // that make no sense are left to whoever uses them.
  m.def("unsupported_in", [](const std::string& config_json) {
    const Json config = parse_json(config_json, "the model's config");
    try {
      models::family_of(config).create(config);
    } catch (const UnsupportedError& error) {
      return std::string(error.what());
    } catch (const ValueError&) {
    }
    return std::string();
  });
  m.def("tiny_config", [](const std::string& architecture) {
    return models::families().at(architecture).tiny_config.dump();
  });
}

}  // namespace
}  // namespace automoe::bindings
