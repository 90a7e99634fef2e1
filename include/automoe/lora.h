// Low-rank adapters: y = W x + scale B A x with W frozen (Hu et al. 2021, arXiv 2106.09685).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace automoe {

/// Names and meaning are those of PEFT's LoraConfig.
struct LoraConfig {
  int64_t r = 8;
  double lora_alpha = 8;
  bool use_rslora = false;  // scale by alpha / sqrt(r) (Kalajdzievski 2023, arXiv 2312.03732)
  /// Linear layers to adapt: a name such as q_proj, or a longer end of the layer's path. A single
  /// "all-linear": every linear layer of attention and MLPs. Fused experts, router, embedding and
  /// head are none of these.
  std::vector<std::string> target_modules = {"all-linear"};

  double scale() const;
  /// Reads these keys; throws ValueError on an unknown key, naming the nearest, and on impossible
  /// values.
  static LoraConfig from_json(const std::string& json);
  /// PEFT's adapter_config.json.
  std::string to_json(const std::string& base_model) const;
};

}  // namespace automoe
