// Causal language models: what a batch is, what a forward pass returns, and a model with its
// weights.
#pragma once

#include <ATen/core/Tensor.h>

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "automoe/checkpoint.h"
#include "automoe/lora.h"

namespace automoe {

/// What is kept for the backward pass. kNorms computes norms, RoPE and activations again; kLayer
/// keeps only each layer's input.
enum class Recompute { kNone, kNorms, kLayer };

/// "none", "norms" or "layer". Throws ValueError for anything else.
Recompute recompute_from(const std::string& name);

/// A batch as Transformers defines it. All tensors on the parameters' device.
struct Batch {
  at::Tensor input_ids;                           // [B, S] int64
  std::optional<at::Tensor> attention_mask = {};  // [B, S], 1 = real token
  // [B, S] or [1, S] int64; without attention_mask a new document begins wherever they do not go
  // up by one.
  std::optional<at::Tensor> position_ids = {};
  std::optional<at::Tensor> labels = {};  // [B, S] int64, -100 = no loss; shifted by one inside
  std::optional<at::Tensor> num_items_in_batch = {};  // scalar: divides the summed loss; else mean
  // With B = 1: ascending ends of the packed documents, last one S; spares looking at position_ids.
  std::vector<int64_t> document_ends = {};
};

struct ForwardOptions {
  Recompute recompute = Recompute::kNorms;
  bool logits = true;  // compute `logits`
  // Undefined: all positions; scalar n: the last n (0: all); 1-D: these.
  at::Tensor logits_to_keep = {};
  bool router_logits = false;   // return router logits and, with labels, add the aux loss
  bool routing_counts = false;  // return tokens per expert
};

struct ModelOutput {
  at::Tensor loss;      // scalar fp32, defined iff labels were given
  at::Tensor aux_loss;  // scalar fp32, iff router_logits and the model has a balance loss
  at::Tensor hidden;    // [B, S, H] after the final norm; zeros at padding
  at::Tensor logits;    // [B, S', V], iff asked for
  std::vector<at::Tensor> router_logits;  // per MoE layer [B*S, E]; zeros at padding
  at::Tensor routing_counts;              // [MoE layers, E] int64, iff asked for
};

struct ParameterSpec {
  std::string name;  // Transformers' v5 name
  std::vector<int64_t> shape;
  bool is_norm = false;    // starts at 1 and takes no weight decay, like every 1-D parameter
  bool is_linear = false;  // weight of a linear layer, which LoRA may adapt
  bool is_buffer = false;  // state that no gradient reaches and no optimizer changes; starts at 0
  bool keep_fp32 = false;  // fp32 in a half-precision model too
};

namespace models {
class Model;
}
namespace blocks {
struct Adapter;
}

/// A causal language model and its parameters. Parameters, buffers excepted, are leaves that
/// require gradients; a forward pass is differentiable with ordinary autograd. Cheap to move, not
/// copyable.
class CausalLM {
 public:
  /// Loads config.json and safetensors of a local Hugging Face folder. `dtype`: undefined optional
  /// keeps the config's. Throws ValueError for an unknown architecture or a checkpoint that does
  /// not fit.
  static CausalLM from_pretrained(const std::filesystem::path& folder,
                                  std::optional<at::ScalarType> dtype = std::nullopt,
                                  at::Device device = at::kCPU);

  /// Random weights (normal, std = config.initializer_range; norms 1; biases 0), drawn from `seed`.
  static CausalLM from_config(const std::string& config_json, uint64_t seed = 0,
                              at::ScalarType dtype = at::kFloat, at::Device device = at::kCPU);

  CausalLM(CausalLM&&) noexcept;
  CausalLM& operator=(CausalLM&&) noexcept;
  ~CausalLM();

  ModelOutput forward(const Batch& batch, const ForwardOptions& options = {}) const;

  /// Freezes all parameters and appends adapters: lora_A uniform in +-1/sqrt(in), drawn from
  /// `seed`, lora_B zero, both fp32. Once per model; throws ValueError as LoraConfig says.
  void add_adapter(const LoraConfig& config, uint64_t seed = 0);
  const std::optional<LoraConfig>& adapter() const { return adapter_; }
  /// Adds each adapter to the weight it adapts and drops it; all parameters can be trained again.
  void merge_adapter();

  const std::vector<NamedTensor>& parameters() const { return parameters_; }
  const std::vector<ParameterSpec>& specs() const { return specs_; }
  const NameMap& name_map() const;
  bool has_experts() const;
  bool has_balance_loss() const;
  bool aux_loss_in_config() const;  // config.output_router_logits
  const std::string& config_json() const { return config_json_; }

  /// Writes config.json and the weights; copies tokenizer, chat template and generation settings
  /// from the folder the model came from, if any. The folder can be served on its own. With an
  /// adapter only that is written, as PEFT does: adapter_config.json, adapter_model.safetensors.
  /// Without one, such files of an earlier save are removed.
  void save_pretrained(const std::filesystem::path& folder, const SaveOptions& options = {}) const;
  /// Fills the parameters, adapters excepted, from a folder that save_pretrained wrote.
  void load_weights(const std::filesystem::path& folder);
  /// Fills the adapter from a folder that save_pretrained or PEFT wrote for the same LoraConfig.
  void load_adapter(const std::filesystem::path& folder);

 private:
  CausalLM(std::unique_ptr<models::Model> model, std::string config_json,
           std::filesystem::path source);
  std::vector<NamedTensor> adapter_tensors() const;  // under PEFT's names
  void save_adapter(const std::filesystem::path& folder) const;

  std::unique_ptr<models::Model> model_;
  std::vector<ParameterSpec> specs_;
  std::vector<NamedTensor> parameters_;  // in the order of specs()
  std::optional<LoraConfig> adapter_;
  std::shared_ptr<const std::unordered_map<int64_t, blocks::Adapter>> adapters_;
  std::string config_json_;
  std::filesystem::path source_;
};

}  // namespace automoe
