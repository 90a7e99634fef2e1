#include <ATen/CPUGeneratorImpl.h>

#include <cmath>
#include <limits>

#include "core/file.h"
#include "hub/folder.h"
#include "models/lora.h"
#include "models/model.h"

namespace automoe {
namespace fs = std::filesystem;
namespace {

using models::Family;

const std::vector<std::pair<std::string, at::ScalarType>> kDtypes = {{"float32", at::kFloat},
                                                                     {"bfloat16", at::kBFloat16},
                                                                     {"float16", at::kHalf},
                                                                     {"float64", at::kDouble}};

at::ScalarType dtype_in(const Json& config) {
  const std::string name = value_or<std::string>(
      config, "dtype", value_or<std::string>(config, "torch_dtype", "float32"));
  for (const auto& [known, dtype] : kDtypes)
    if (name == known) return dtype;
  throw ValueError(
      text("[config] dtype '", name, "' is not known; use float32, bfloat16 or float16"));
}

constexpr const char* kAdapterWeights = "adapter_model.safetensors";
constexpr const char* kAdapterConfig = "adapter_config.json";

std::string dtype_name(at::ScalarType dtype) {
  for (const auto& [name, known] : kDtypes)
    if (dtype == known) return name;
  throw ValueError(text("[config] no Hugging Face name for dtype ", at::toString(dtype)));
}

std::vector<NamedTensor> allocate(const std::vector<ParameterSpec>& specs, at::ScalarType dtype,
                                  at::Device device) {
  std::vector<NamedTensor> parameters;
  const bool half = dtype == at::kBFloat16 || dtype == at::kHalf;
  for (const ParameterSpec& spec : specs) {
    const auto options =
        at::TensorOptions(device).dtype(spec.keep_fp32 && half ? at::kFloat : dtype);
    parameters.push_back({spec.name, at::empty(spec.shape, options)});
  }
  return parameters;
}

void require_gradients(const std::vector<ParameterSpec>& specs,
                       std::vector<NamedTensor>& parameters) {
  for (size_t i = 0; i < specs.size(); ++i)
    parameters[i].tensor.requires_grad_(!specs[i].is_buffer);
}

}  // namespace

Recompute recompute_from(const std::string& name) {
  if (name == "none") return Recompute::kNone;
  if (name == "norms") return Recompute::kNorms;
  if (name == "layer") return Recompute::kLayer;
  throw ValueError(text("[recompute] must be one of none, norms, layer; got '", name, "'"));
}

CausalLM::CausalLM(std::unique_ptr<models::Model> model, std::string config_json, fs::path source)
    : model_(std::move(model)),
      specs_(model_->specs()),
      config_json_(std::move(config_json)),
      source_(std::move(source)) {}
CausalLM::CausalLM(CausalLM&&) noexcept = default;
CausalLM& CausalLM::operator=(CausalLM&&) noexcept = default;
CausalLM::~CausalLM() = default;

CausalLM CausalLM::from_pretrained(const fs::path& folder, std::optional<at::ScalarType> dtype,
                                   at::Device device) {
  const Json config = read_json(folder / "config.json");
  const Family& family = models::family_of(config);
  CausalLM out(family.create(config), config.dump(2), folder);
  out.parameters_ = allocate(out.specs_, dtype.value_or(dtype_in(config)), device);
  out.load_weights(folder);
  require_gradients(out.specs_, out.parameters_);
  return out;
}

CausalLM CausalLM::from_config(const std::string& config_json, uint64_t seed, at::ScalarType dtype,
                               at::Device device) {
  const Json config = parse_json(config_json, "the given config");
  CausalLM out(models::family_of(config).create(config), config.dump(2), {});
  out.parameters_ = allocate(out.specs_, dtype, device);
  const double std = value_or<double>(config, "initializer_range", 0.02);
  at::Generator generator = at::detail::createCPUGenerator(seed);
  for (size_t i = 0; i < out.parameters_.size(); ++i) {
    const ParameterSpec& spec = out.specs_[i];
    at::Tensor& tensor = out.parameters_[i].tensor;
    if (spec.is_norm)
      tensor.fill_(1);
    else if (spec.shape.size() == 1 || spec.name.ends_with("bias"))
      tensor.zero_();
    else
      tensor.copy_(at::empty(spec.shape, at::kFloat).normal_(0, std, generator));
  }
  require_gradients(out.specs_, out.parameters_);
  return out;
}

ModelOutput CausalLM::forward(const Batch& batch, const ForwardOptions& options) const {
  std::vector<at::Tensor> tensors;
  for (const NamedTensor& parameter : parameters_) tensors.push_back(parameter.tensor);
  return model_->forward(blocks::Params(std::move(tensors), adapters_), batch, options);
}

void CausalLM::add_adapter(const LoraConfig& config, uint64_t seed) {
  AUTOMOE_CHECK_VALUE(!adapter_, "[lora] the model has an adapter already; merge_adapter() first");
  models::AdapterPlan plan = models::plan_adapters(specs_, config);
  for (NamedTensor& parameter : parameters_) parameter.tensor.set_requires_grad(false);
  std::vector<NamedTensor> tensors =
      allocate(plan.specs, at::kFloat, parameters_.front().tensor.device());
  at::Generator generator = at::detail::createCPUGenerator(seed);
  for (size_t i = 0; i < tensors.size(); i += 2) {
    const std::vector<int64_t>& shape = plan.specs[i].shape;  // of lora_A
    const double bound = 1 / std::sqrt(static_cast<double>(shape[1]));
    tensors[i].tensor.copy_(at::empty(shape, at::kFloat).uniform_(-bound, bound, generator));
    tensors[i + 1].tensor.zero_();
  }
  require_gradients(plan.specs, tensors);
  parameters_.insert(parameters_.end(), tensors.begin(), tensors.end());
  specs_.insert(specs_.end(), plan.specs.begin(), plan.specs.end());
  adapters_ = std::make_shared<const blocks::Adapters>(std::move(plan.adapters));
  adapter_ = config;
  adapter_->target_modules = std::move(plan.targets);
}

void CausalLM::merge_adapter() {
  AUTOMOE_CHECK_VALUE(adapter_, "[lora] the model has no adapter to merge");
  const at::NoGradGuard no_grad;
  for (const auto& [weight, adapter] : *adapters_) {
    at::Tensor& merged = parameters_[weight].tensor;
    const at::Tensor delta = at::mm(parameters_[adapter.b].tensor, parameters_[adapter.a].tensor);
    merged.copy_(merged.to(at::kFloat) + delta * adapter.scale);
  }
  parameters_.resize(model_->specs().size());
  specs_ = model_->specs();
  adapters_.reset();
  adapter_.reset();
  require_gradients(specs_, parameters_);
}

bool CausalLM::has_experts() const { return model_->has_experts(); }
bool CausalLM::has_balance_loss() const { return model_->has_balance_loss(); }

const NameMap& CausalLM::name_map() const {
  return models::family_of(parse_json(config_json_, "config")).names;
}

bool CausalLM::aux_loss_in_config() const {
  return value_or<bool>(parse_json(config_json_, "config"), "output_router_logits", false);
}

std::vector<NamedTensor> CausalLM::adapter_tensors() const {
  std::vector<NamedTensor> tensors;
  for (size_t i = model_->specs().size(); i < parameters_.size(); ++i)
    tensors.push_back({"base_model.model." + parameters_[i].name, parameters_[i].tensor.detach()});
  return tensors;
}

void CausalLM::load_weights(const fs::path& folder) {
  std::vector<NamedTensor> weights;  // without autograd: filled on other threads
  for (size_t i = 0; i < model_->specs().size(); ++i)
    weights.push_back({parameters_[i].name, parameters_[i].tensor.detach()});
  load_checkpoint(folder, name_map(), weights, {.ignore = models::ignored_on_disk(*model_)});
}

void CausalLM::load_adapter(const fs::path& folder) {
  load_checkpoint(folder / kAdapterWeights, {}, adapter_tensors());
}

void CausalLM::save_adapter(const fs::path& folder) const {
  const fs::path staging = folder / ".adapter";
  save_checkpoint(staging, {}, adapter_tensors(),
                  {.max_shard_bytes = std::numeric_limits<int64_t>::max()});
  fs::rename(staging / "model.safetensors", folder / kAdapterWeights);
  fs::remove_all(staging);
  write_file_atomically(folder / kAdapterConfig, adapter_->to_json(source_.string()) + "\n");
}

void CausalLM::save_pretrained(const fs::path& folder, const SaveOptions& options) const {
  fs::create_directories(folder);
  if (adapter_) return save_adapter(folder);
  Json config = parse_json(config_json_, "config");
  config.erase("torch_dtype");
  config.erase("quantization_config");  // loading has dequantised
  config["dtype"] = dtype_name(parameters_.front().tensor.scalar_type());
  SaveOptions complete = options;
  complete.buffers = models::buffers_of(*model_);
  complete.carry = model_->carried();
  complete.carry_from = source_;
  save_checkpoint(folder, name_map(), parameters_, complete);
  if (!source_.empty()) hub::copy_companions(source_, folder);
  fs::remove(folder / kAdapterConfig);  // or readers would add an older adapter to these weights
  fs::remove(folder / kAdapterWeights);
  write_file_atomically(folder / "config.json", config.dump(2) + "\n");
}

}  // namespace automoe
