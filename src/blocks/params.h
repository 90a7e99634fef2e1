// Parameters: declared once with name and shape, owned by nobody here; each call brings the
// tensors.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
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
  int64_t count() const { return static_cast<int64_t>(specs_->size()); }

 private:
  std::vector<ParameterSpec>* specs_;
  std::string prefix_;
};

/// The tensors of one call, in declaration order.
class Params {
 public:
  explicit Params(std::vector<Tensor> tensors) : tensors_(std::move(tensors)) {}

  const Tensor& operator[](ParamId id) const { return tensors_[id]; }
  /// The tensors of [begin, end), and a copy of the list with these replaced: for checkpointing a
  /// part.
  std::vector<Tensor> slice(ParamId begin, ParamId end) const;
  Params with(ParamId begin, const Tensor* first, int64_t count) const;

 private:
  std::vector<Tensor> tensors_;
};

}  // namespace automoe::blocks
