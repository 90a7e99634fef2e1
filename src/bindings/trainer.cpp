// torch.classes.automoe.Trainer: the training engine, a step per call.
#include "automoe/trainer.h"

#include <torch/custom_class.h>

#include "automoe/error.h"

namespace automoe::bindings {
namespace {

using Numbers = c10::Dict<std::string, double>;

at::Tensor load_tensor(const std::vector<std::vector<int64_t>>& load) {  // [MoE layers, E]
  std::vector<at::Tensor> layers;
  for (const auto& layer : load) layers.push_back(at::tensor(layer));
  return layers.empty() ? at::zeros({0, 0}, at::kLong) : at::stack(layers);
}

class Trainer : public torch::CustomClassHolder {
 public:
  // `dtype`: a Hugging Face name such as "bfloat16", or "auto" for the config's. `lora_json`:
  // LoraConfig, or "" for full fine-tuning.
  Trainer(const std::string& model_folder, const std::string& config_json, const std::string& dtype,
          const std::string& device, const std::string& lora_json)
      : Trainer(model_folder, TrainConfig::from_json(config_json), dtype, device, lora_json) {}

  std::tuple<Numbers, at::Tensor> step() {
    const StepMetrics m = trainer_.step();
    Numbers numbers;
    const auto add = [&](const char* name, double value) { numbers.insert(name, value); };
    add("step", static_cast<double>(m.step));
    add("epoch", m.epoch);
    add("loss", m.loss);
    add("aux_loss", m.aux_loss);
    add("grad_norm", m.grad_norm);
    add("learning_rate", m.learning_rate);
    add("tokens", static_cast<double>(m.tokens));
    add("labelled_tokens", static_cast<double>(m.labelled_tokens));
    add("seconds", m.seconds);
    add("memory_gib", m.memory_gib);
    return {numbers, load_tensor(m.expert_load)};
  }

  Numbers evaluate() const {
    const EvalMetrics m = trainer_.evaluate();
    Numbers numbers;
    numbers.insert("loss", m.loss);
    numbers.insert("perplexity", m.perplexity);
    numbers.insert("labelled_tokens", static_cast<double>(m.labelled_tokens));
    return numbers;
  }

  at::Tensor logits(const at::Tensor& input_ids) const {
    const at::NoGradGuard no_grad;
    Batch batch;
    batch.input_ids = input_ids;
    return model_.forward(batch).logits;
  }

  std::string save_checkpoint() { return trainer_.save_checkpoint().string(); }
  void save_pretrained(const std::string& folder) const { model_.save_pretrained(folder); }
  void merge_adapter() { model_.merge_adapter(); }
  int64_t total_steps() const { return trainer_.total_steps(); }
  int64_t finished_steps() const { return trainer_.finished_steps(); }
  int64_t resumed_step() const { return trainer_.resumed_step(); }

 private:
  Trainer(const std::string& model_folder, const TrainConfig& config, const std::string& dtype,
          const std::string& device, const std::string& lora_json)
      : model_(load(model_folder, dtype, device, lora_json, config.seed)),
        trainer_(model_, config) {}

  static CausalLM load(const std::string& folder, const std::string& dtype,
                       const std::string& device, const std::string& lora_json, uint64_t seed) {
    CausalLM model = CausalLM::from_pretrained(folder, dtype_from(dtype), at::Device(device));
    if (!lora_json.empty()) model.add_adapter(LoraConfig::from_json(lora_json), seed);
    return model;
  }

  static std::optional<at::ScalarType> dtype_from(const std::string& name) {
    if (name == "auto") return std::nullopt;
    if (name == "float32") return at::kFloat;
    if (name == "bfloat16") return at::kBFloat16;
    throw ValueError(text("[trainer] dtype must be auto, float32 or bfloat16, got '", name, "'"));
  }

  CausalLM model_;
  automoe::Trainer trainer_;
};

TORCH_LIBRARY_FRAGMENT(automoe, m) {
  m.class_<Trainer>("Trainer")
      .def(torch::init<std::string, std::string, std::string, std::string, std::string>())
      .def("step", &Trainer::step)
      .def("evaluate", &Trainer::evaluate)
      .def("logits", &Trainer::logits)
      .def("save_checkpoint", &Trainer::save_checkpoint)
      .def("save_pretrained", &Trainer::save_pretrained)
      .def("merge_adapter", &Trainer::merge_adapter)
      .def("total_steps", &Trainer::total_steps)
      .def("finished_steps", &Trainer::finished_steps)
      .def("resumed_step", &Trainer::resumed_step);
}

}  // namespace
}  // namespace automoe::bindings
