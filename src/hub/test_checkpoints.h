// Small checkpoints for the unit tests of this folder.
#pragma once

#include <ATen/ATen.h>

#include <map>
#include <vector>

#include "automoe/checkpoint.h"
#include "hub/shard_index.h"
#include "hub/test_support.h"

namespace automoe::hub {

inline const NameMap kQwen3Moe{
    {"model.layers.{layer}.mlp.experts.{expert}.{gate_proj,up_proj}.weight",
     "model.layers.{layer}.mlp.experts.gate_up_proj"},
    {"model.layers.{layer}.mlp.experts.{expert}.down_proj.weight",
     "model.layers.{layer}.mlp.experts.down_proj"}};

inline const NameMap kMixtral{
    {"model.layers.{layer}.block_sparse_moe.experts.{expert}.{w1,w3}.weight",
     "model.layers.{layer}.mlp.experts.gate_up_proj"},
    {"model.layers.{layer}.block_sparse_moe.experts.{expert}.w2.weight",
     "model.layers.{layer}.mlp.experts.down_proj"},
    {"model.layers.{layer}.block_sparse_moe.gate.weight", "model.layers.{layer}.mlp.gate.weight"}};

inline at::Tensor random_tensor(at::IntArrayRef shape, at::ScalarType type = at::kFloat) {
  return at::randn(shape).to(type);
}

/// The parameters of a Qwen3-MoE of two layers, reduced to one tensor of each kind.
inline std::vector<NamedTensor> moe_parameters(at::ScalarType type = at::kFloat) {
  std::vector<NamedTensor> parameters{{"model.embed_tokens.weight", random_tensor({11, 6}, type)}};
  for (const char* layer : {"model.layers.0.", "model.layers.1."}) {
    parameters.push_back(
        {layer + std::string("mlp.experts.gate_up_proj"), random_tensor({5, 6, 7}, type)});
    parameters.push_back(
        {layer + std::string("mlp.experts.down_proj"), random_tensor({5, 7, 3}, type)});
    parameters.push_back(
        {layer + std::string("mlp.gate.weight"), random_tensor({5, 7}, at::kFloat)});
  }
  parameters.push_back({"model.norm.weight", random_tensor({7}, type)});
  return parameters;
}

/// Parameters of the same names and shapes that hold nothing yet.
inline std::vector<NamedTensor> blank(const std::vector<NamedTensor>& like) {
  std::vector<NamedTensor> out;
  for (const auto& [name, tensor] : like)
    out.push_back({name, at::full_like(tensor, -77, at::MemoryFormat::Contiguous)});
  return out;
}

inline void expect_equal(const std::vector<NamedTensor>& a, const std::vector<NamedTensor>& b) {
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) EXPECT_TRUE(a[i].tensor.equal(b[i].tensor)) << a[i].name;
}

/// Writes the tensors, under their own names, as one safetensors file.
inline void write_weights(const std::filesystem::path& path,
                          const std::vector<NamedTensor>& tensors) {
  const auto folder = path.parent_path() / "one_file";
  save_checkpoint(folder, {}, tensors);
  std::filesystem::rename(folder / kWeightsFile, path);
  std::filesystem::remove_all(folder);
}

/// Deals the tensors out to `files` in turn and writes an index.
inline void write_dealt_out(const std::filesystem::path& folder,
                            const std::vector<std::string>& files,
                            const std::vector<NamedTensor>& tensors) {
  std::vector<std::vector<NamedTensor>> hands(files.size());
  std::map<std::string, std::string> weight_map;
  for (size_t i = 0; i < tensors.size(); ++i) {
    hands[i % files.size()].push_back(tensors[i]);
    weight_map[tensors[i].name] = files[i % files.size()];
  }
  for (size_t i = 0; i < files.size(); ++i) write_weights(folder / files[i], hands[i]);
  write_content(folder / kIndexFile, emit_index(weight_map, 0, 0));
}

/// Name -> content of everything in a folder, hidden files included; a folder's content is "".
inline std::map<std::string, std::string> files_in(const std::filesystem::path& folder) {
  std::map<std::string, std::string> files;
  for (const auto& entry : std::filesystem::directory_iterator(folder))
    files[entry.path().filename().string()] = entry.is_directory() ? "" : content_of(entry.path());
  return files;
}

}  // namespace automoe::hub
