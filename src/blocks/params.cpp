#include "blocks/params.h"

namespace automoe::blocks {

ParamId ParamScope::declare(const std::string& name, std::vector<int64_t> shape, bool is_norm) {
  specs_->push_back({prefix_ + name, std::move(shape), is_norm});
  return count() - 1;
}

std::vector<Tensor> Params::slice(ParamId begin, ParamId end) const {
  return {tensors_.begin() + begin, tensors_.begin() + end};
}

Params Params::with(ParamId begin, const Tensor* first, int64_t count) const {
  std::vector<Tensor> tensors = tensors_;
  std::copy(first, first + count, tensors.begin() + begin);
  return Params(std::move(tensors));
}

}  // namespace automoe::blocks
