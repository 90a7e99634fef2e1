#include "models/lora.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "core/json.h"
#include "core/text.h"

namespace automoe {
namespace {

const std::string kAllLinear = "all-linear";

void check(const LoraConfig& config) {
  AUTOMOE_CHECK_VALUE(config.r >= 1, "[lora] r must be at least 1, got ", config.r);
  AUTOMOE_CHECK_VALUE(config.lora_alpha > 0, "[lora] lora_alpha must be above 0, got ",
                      config.lora_alpha);
  AUTOMOE_CHECK_VALUE(!config.target_modules.empty(),
                      "[lora] target_modules is empty; name linear layers, or all-linear");
}

}  // namespace

double LoraConfig::scale() const {
  return lora_alpha / (use_rslora ? std::sqrt(static_cast<double>(r)) : static_cast<double>(r));
}

LoraConfig LoraConfig::from_json(const std::string& json) {
  static const std::vector<std::string> known = {"r", "lora_alpha", "use_rslora", "target_modules"};
  const Json object = parse_json(json, "the LoRA config");
  AUTOMOE_CHECK_VALUE(object.is_object(), "[lora] the config must be a JSON object, got ",
                      object.dump());
  for (const auto& [key, value] : object.items())
    AUTOMOE_CHECK_VALUE(std::ranges::find(known, key) != known.end(), "[lora] unknown key '", key,
                        "'.", did_you_mean(key, known), " Known: ", join(known));
  LoraConfig config;
  config.r = value_or(object, "r", config.r);
  config.lora_alpha = value_or(object, "lora_alpha", config.lora_alpha);
  config.use_rslora = value_or(object, "use_rslora", config.use_rslora);
  config.target_modules = value_or(object, "target_modules", config.target_modules);
  check(config);
  return config;
}

std::string LoraConfig::to_json(const std::string& base_model) const {
  return Json{{"base_model_name_or_path", base_model},
              {"bias", "none"},
              {"fan_in_fan_out", false},
              {"inference_mode", true},
              {"init_lora_weights", true},
              {"lora_alpha", lora_alpha},
              {"lora_dropout", 0.0},
              {"peft_type", "LORA"},
              {"r", r},
              {"target_modules", target_modules},
              {"task_type", "CAUSAL_LM"},
              {"use_rslora", use_rslora}}
      .dump(2);
}

namespace models {
namespace {

// The path of the linear layer whose weight `spec` is; "" for any other parameter.
std::string layer_path(const ParameterSpec& spec) {
  static const std::string kWeight = ".weight";
  return spec.is_linear ? spec.name.substr(0, spec.name.size() - kWeight.size()) : "";
}

// As PEFT matches a list: the whole path, or what follows a dot.
bool fits(const std::string& path, const std::string& target) {
  return path == target || path.ends_with("." + target);
}

// The names of the linear layers, without their paths.
std::vector<std::string> layer_names(const std::vector<ParameterSpec>& specs) {
  std::set<std::string> names;
  for (const ParameterSpec& spec : specs)
    if (const std::string path = layer_path(spec); !path.empty())
      names.insert(path.substr(path.rfind('.') + 1));
  return {names.begin(), names.end()};
}

void require_match(const std::vector<ParameterSpec>& specs, const std::string& target) {
  if (std::ranges::any_of(specs, [&](const auto& spec) { return fits(layer_path(spec), target); }))
    return;
  const std::vector<std::string> names = layer_names(specs);
  throw ValueError(text("[lora] target_modules: '", target, "' is no linear layer of this model.",
                        did_you_mean(target, names), " Its linear layers: ", join(names),
                        "; or all-linear for all of them"));
}

}  // namespace

AdapterPlan plan_adapters(const std::vector<ParameterSpec>& specs, const LoraConfig& config) {
  check(config);
  AdapterPlan plan;
  plan.targets = config.target_modules;
  if (plan.targets == std::vector{kAllLinear}) plan.targets = layer_names(specs);
  for (const std::string& target : plan.targets) require_match(specs, target);
  for (size_t i = 0; i < specs.size(); ++i) {
    const std::string path = layer_path(specs[i]);
    if (path.empty() ||
        std::ranges::none_of(plan.targets, [&](const auto& target) { return fits(path, target); }))
      continue;
    const auto a = static_cast<blocks::ParamId>(specs.size() + plan.specs.size());
    plan.adapters.emplace(i, blocks::Adapter{a, a + 1, config.scale()});
    plan.specs.push_back({path + ".lora_A.weight", {config.r, specs[i].shape[1]}});
    plan.specs.push_back({path + ".lora_B.weight", {specs[i].shape[0], config.r}});
  }
  return plan;
}

}  // namespace models
}  // namespace automoe
