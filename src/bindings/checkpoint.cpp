// torch.ops.automoe.load_checkpoint and save_checkpoint: safetensors of a Hugging Face folder to
// and from the parameters that Python owns.
#include <torch/library.h>

#include "models/model.h"

namespace automoe::bindings {
namespace {

std::vector<NamedTensor> named(const std::vector<std::string>& names,
                               const std::vector<at::Tensor>& tensors) {
  AUTOMOE_CHECK_VALUE(names.size() == tensors.size(), "[checkpoint] ", names.size(), " names for ",
                      tensors.size(), " tensors");
  std::vector<NamedTensor> out;
  for (size_t i = 0; i < names.size(); ++i) out.push_back({names[i], tensors[i]});
  return out;
}

// Returns a JSON report: tensors, bytes, seconds, ignored.
std::string load(const std::string& folder, const std::string& config_json,
                 const std::vector<std::string>& names, const std::vector<at::Tensor>& tensors) {
  const Json config = parse_json(config_json, "the model's config");
  const models::Family& family = models::family_of(config);
  const at::NoGradGuard no_grad;
  const LoadReport report =
      load_checkpoint(folder, family.names, named(names, tensors),
                      {.ignore = models::ignored_on_disk(*family.create(config))});
  return Json{{"tensors", report.tensors},
              {"bytes", report.bytes},
              {"seconds", report.seconds},
              {"ignored", report.ignored}}
      .dump();
}

// `source`: the folder the model came from, "" if none.
void save(const std::string& folder, const std::string& config_json,
          const std::vector<std::string>& names, const std::vector<at::Tensor>& tensors,
          int64_t max_shard_bytes, const std::string& source) {
  const Json config = parse_json(config_json, "the model's config");
  const models::Family& family = models::family_of(config);
  const auto model = family.create(config);
  const at::NoGradGuard no_grad;
  save_checkpoint(folder, family.names, named(names, tensors),
                  {.max_shard_bytes = max_shard_bytes,
                   .buffers = models::buffers_of(*model),
                   .carry = model->carried(),
                   .carry_from = source});
}

TORCH_LIBRARY_FRAGMENT(automoe, m) {
  m.def("load_checkpoint", load);
  m.def("save_checkpoint", save);
}

}  // namespace
}  // namespace automoe::bindings
