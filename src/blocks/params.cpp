#include "blocks/params.h"

namespace automoe::blocks {

ParamId ParamScope::declare(const std::string& name, std::vector<int64_t> shape, bool is_norm) {
  return declare({.name = name, .shape = std::move(shape), .is_norm = is_norm});
}

ParamId ParamScope::declare(ParameterSpec spec) {
  spec.name = prefix_ + spec.name;
  specs_->push_back(std::move(spec));
  return count() - 1;
}

ParamId ParamScope::declare_linear(int64_t in, int64_t out) {
  return declare({.name = "weight", .shape = {out, in}, .is_linear = true});
}

const Adapter* Params::adapter_of(ParamId weight) const {
  if (!adapters_) return nullptr;
  const auto found = adapters_->find(weight);
  return found == adapters_->end() ? nullptr : &found->second;
}

std::vector<ParamId> Params::ids(ParamId begin, ParamId end) const {
  std::vector<ParamId> ids;
  for (ParamId id = begin; id < end; ++id) {
    ids.push_back(id);
    if (const Adapter* adapter = adapter_of(id)) ids.insert(ids.end(), {adapter->a, adapter->b});
  }
  return ids;
}

std::vector<Tensor> Params::select(const std::vector<ParamId>& ids) const {
  std::vector<Tensor> tensors;
  for (const ParamId id : ids) tensors.push_back(tensors_[id]);
  return tensors;
}

Params Params::with(const std::vector<ParamId>& ids, const Tensor* tensors) const {
  Params copy = *this;
  for (const ParamId id : ids) copy.tensors_[id] = *tensors++;
  return copy;
}

}  // namespace automoe::blocks
