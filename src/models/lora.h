// Which linear layers of a model get an adapter, and how their tensors are named.
#pragma once

#include "automoe/lora.h"
#include "automoe/model.h"
#include "blocks/params.h"

namespace automoe::models {

struct AdapterPlan {
  std::vector<ParameterSpec> specs;  // lora_A [r, in] and lora_B [out, r] of each layer, in turn
  blocks::Adapters adapters;         // ids count on from the model's own parameters
  std::vector<std::string> targets;  // target_modules, all-linear spelled out
};

/// Throws ValueError naming a target that fits no linear layer, and those there are.
AdapterPlan plan_adapters(const std::vector<ParameterSpec>& specs, const LoraConfig& config);

}  // namespace automoe::models
