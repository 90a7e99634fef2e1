// Folders written by Transformers itself, against what this folder's code makes of them.
#include <sstream>

#include "hub/test_checkpoints.h"

namespace automoe::hub {
namespace {
namespace fs = std::filesystem;

// Saves small models, each loaded once before: then Transformers orders tensors the same way for
// every architecture. Beside each folder, `parameters` lists name, dtype and shape in the module's
// order.
const char* const kScript = R"(
import sys, torch, transformers
from transformers import AutoConfig, AutoModelForCausalLM
root = sys.argv[1]
common = dict(vocab_size=96, hidden_size=32, intermediate_size=40, num_hidden_layers=12, num_attention_heads=4,
              num_key_value_heads=2, head_dim=8, moe_intermediate_size=24, num_experts_per_tok=1)
cases = {
    "qwen3_moe": ("qwen3_moe", dict(num_experts=3), "12KB"),
    "qwen3_moe_one_expert": ("qwen3_moe", dict(num_experts=1), "9KB"),
    "qwen3_moe_whole": ("qwen3_moe", dict(num_experts=3), "5GB"),
    "qwen3_moe_tiny_shards": ("qwen3_moe", dict(num_experts=2), "1KB"),
    "mixtral": ("mixtral", dict(num_local_experts=11), "100KB"),
    "mixtral_tied": ("mixtral", dict(num_local_experts=2, tie_word_embeddings=True), "10KB"),
    "llama": ("llama", {}, "7KB"),
    "qwen2_tied": ("qwen2", dict(tie_word_embeddings=True), "5KB"),
}
for name, (model_type, settings, shard) in cases.items():
    folder = f"{root}/{name}"
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(model_type, **common, **settings))
    model.to(torch.bfloat16).save_pretrained(folder + "_first")
    model = AutoModelForCausalLM.from_pretrained(folder + "_first")
    model.save_pretrained(folder, max_shard_size=shard)
    with open(f"{folder}/parameters", "w") as out:
        for key, p in model.named_parameters():
            print(key, str(p.dtype), *p.shape, file=out)
)";

std::vector<NamedTensor> listed_in(const fs::path& path) {
  std::vector<NamedTensor> parameters;
  std::ifstream in(path);
  for (std::string line; std::getline(in, line);) {
    std::istringstream words(line);
    std::string name, dtype;
    words >> name >> dtype;
    EXPECT_EQ(dtype, "torch.bfloat16");
    std::vector<int64_t> shape;
    for (int64_t size; words >> size;) shape.push_back(size);
    parameters.push_back({name, at::full(shape, -77, at::kBFloat16)});
  }
  return parameters;
}

std::map<std::string, std::string> weights_in(const fs::path& folder) {
  auto files = files_in(folder);
  std::erase_if(files, [](const auto& file) { return !file.first.starts_with("model"); });
  return files;
}

TEST(Transformers, FoldersItWritesLoadAndAreSavedAgainByteForByteIndexAndShardsIncluded) {
  const Scratch folder;
  if (!run_python("transformers", kScript, folder))
    GTEST_SKIP() << "no Python with transformers (set AUTOMOE_PYTHON)";
  size_t cases = 0;
  for (const auto& [name, settings] : std::map<std::string, std::pair<NameMap, int64_t>>{
           {"qwen3_moe", {kQwen3Moe, 12'000}},
           {"qwen3_moe_one_expert", {kQwen3Moe, 9'000}},
           {"qwen3_moe_whole", {kQwen3Moe, 5'000'000'000}},
           {"qwen3_moe_tiny_shards", {kQwen3Moe, 1'000}},
           {"mixtral", {kMixtral, 100'000}},
           {"mixtral_tied", {kMixtral, 10'000}},
           {"llama", {{}, 7'000}},
           {"qwen2_tied", {{}, 5'000}}}) {
    SCOPED_TRACE(name);
    const auto& [names, shard_bytes] = settings;
    const auto parameters = listed_in((folder / name) / "parameters");
    ASSERT_GT(parameters.size(), 50u);
    load_checkpoint(folder / name, names, parameters);
    save_checkpoint(folder / "again", names, parameters, {.max_shard_bytes = shard_bytes});
    const auto expected = weights_in(folder / name), found = weights_in(folder / "again");
    EXPECT_EQ(expected.contains(kIndexFile), name != "qwen3_moe_whole");
    for (const auto& [file, content] : expected) {
      ASSERT_TRUE(found.contains(file)) << file;
      EXPECT_TRUE(found.at(file) == content) << file << " differs";
    }
    EXPECT_EQ(found.size(), expected.size());
    ++cases;
  }
  EXPECT_EQ(cases, 8u);
}

}  // namespace
}  // namespace automoe::hub
