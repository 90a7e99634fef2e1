#include "models/model.h"

namespace automoe::models {

Registry<Family>& families() {
  static Registry<Family> registry("architecture");
  return registry;
}

std::string architecture_of(const Json& config) {
  const auto names = value_or<std::vector<std::string>>(config, "architectures", {});
  AUTOMOE_CHECK_VALUE(!names.empty(), "[config] 'architectures' is missing; expected one of ",
                      join(families().names()));
  return names[0];
}

const Family& family_of(const Json& config) { return families().at(architecture_of(config)); }

std::vector<std::string> ignored_on_disk(const Model& model) {
  std::vector<std::string> ignored = model.carried();
  // Transformers of 2023 and before stored the angles' frequencies, which follow from the config.
  ignored.emplace_back("model.layers.{layer}.self_attn.rotary_emb.inv_freq");
  const auto is_head = [](const ParameterSpec& spec) { return spec.name == "lm_head.weight"; };
  if (std::ranges::none_of(model.specs(), is_head)) ignored.emplace_back("lm_head.weight");
  return ignored;
}

std::set<std::string> buffers_of(const Model& model) {
  std::set<std::string> names;
  for (const ParameterSpec& spec : model.specs())
    if (spec.is_buffer) names.insert(spec.name);
  return names;
}

}  // namespace automoe::models
