// Parameters: declared once with name and shape, owned by nobody here; each call brings the
// tensors.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "automoe/model.h"

namespace automoe::blocks {

using at::Tensor;

/// Index of a parameter in the model's list; -1 where a block has none.
using ParamId = int64_t;

/// Where a block declares its parameters: a name prefix over the model's list.
class ParamScope {
 public:
  ParamScope(std::vector<ParameterSpec>& specs, std::string prefix)
      : specs_(&specs), prefix_(std::move(prefix)) {}

  ParamScope child(const std::string& name) const { return {*specs_, prefix_ + name + "."}; }
  ParamId declare(const std::string& name, std::vector<int64_t> shape, bool is_norm = false);
  ParamId declare_linear(int64_t in, int64_t out);  // "weight" [out, in]
  ParamId declare(ParameterSpec spec);              // its name within this scope
  int64_t count() const { return static_cast<int64_t>(specs_->size()); }

 private:
  std::vector<ParameterSpec>* specs_;
  std::string prefix_;
};

/// What is added to a linear layer's result: scale * b a x.
struct Adapter {
  ParamId a, b;  // [r, in], [out, r]
  double scale;
};
using Adapters = std::unordered_map<ParamId, Adapter>;  // by the weight of the layer

/// The tensors of one call, in declaration order, those of adapters last.
class Params {
 public:
  explicit Params(std::vector<Tensor> tensors, std::shared_ptr<const Adapters> adapters = nullptr)
      : tensors_(std::move(tensors)), adapters_(std::move(adapters)) {}

  const Tensor& operator[](ParamId id) const { return tensors_[id]; }
  const Adapter* adapter_of(ParamId weight) const;  // null where there is none

  /// For checkpointing a part: the parameters [begin, end) with their adapters, their tensors, and
  /// a copy of the list with these replaced.
  std::vector<ParamId> ids(ParamId begin, ParamId end) const;
  std::vector<Tensor> select(const std::vector<ParamId>& ids) const;
  Params with(const std::vector<ParamId>& ids, const Tensor* tensors) const;

 private:
  std::vector<Tensor> tensors_;
  std::shared_ptr<const Adapters> adapters_;
};

}  // namespace automoe::blocks
