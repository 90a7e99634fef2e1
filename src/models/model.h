// What every model family is to the rest of the engine, and the registry of families.
#pragma once

#include <functional>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "automoe/model.h"
#include "blocks/params.h"
#include "core/json.h"
#include "core/registry.h"

namespace automoe::models {

using at::Tensor;

/// A family's maths without weights: declares parameters, runs a batch over the tensors it is
/// given.
class Model {
 public:
  virtual ~Model() = default;
  virtual ModelOutput forward(const blocks::Params& params, const Batch& batch,
                              const ForwardOptions& options) const = 0;

  const std::vector<ParameterSpec>& specs() const { return specs_; }
  virtual bool has_experts() const = 0;
  virtual bool has_balance_loss() const { return has_experts(); }
  virtual bool fp32_logits() const { return false; }  // whatever the model's dtype
  /// Patterns of file tensors that are kept and saved again, but not run: multi-token prediction.
  virtual std::vector<std::string> carried() const { return {}; }

 protected:
  std::vector<ParameterSpec> specs_;
};

struct Family {
  std::function<std::unique_ptr<Model>(const Json& config)> create;
  NameMap names;
  Json tiny_config;  // a config of a few thousand parameters, for tests
};

/// Keyed by config.architectures[0].
Registry<Family>& families();

/// The entry for a config; ValueError naming its architecture if it is not native.
const Family& family_of(const Json& config);
std::string architecture_of(const Json& config);

/// Patterns of what may stay unused on disk: what the model carries, and a redundant head where it
/// ties that to the embedding.
std::vector<std::string> ignored_on_disk(const Model& model);

/// Names of the parameters that are buffers.
std::set<std::string> buffers_of(const Model& model);

#define AUTOMOE_REGISTER_MODEL(architecture, ...) \
  static const bool automoe_registered_model =    \
      ::automoe::models::families().add(architecture, ::automoe::models::Family __VA_ARGS__)

}  // namespace automoe::models
