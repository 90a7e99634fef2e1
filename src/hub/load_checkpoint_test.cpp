#include "hub/name_map.h"
#include "hub/test_checkpoints.h"

namespace automoe::hub {
namespace {

// The file tensors of parameters, cut as the name table says.
std::vector<NamedTensor> on_disk(const std::vector<NamedTensor>& parameters, const NameMap& names) {
  const NameTable table(names);
  std::vector<NamedTensor> tensors;
  for (const auto& [name, tensor] : parameters)
    for (const DiskTensor& part : table.expand(name, tensor.sizes().vec()))
      tensors.push_back({part.name, part.part_of(tensor)});
  return tensors;
}

std::string refusal(const std::filesystem::path& folder, const std::vector<NamedTensor>& parameters,
                    const LoadOptions& options = {}) {
  return message_of([&] { load_checkpoint(folder, kQwen3Moe, blank(parameters), options); });
}

TEST(LoadCheckpoint, ExpertsComeFromOneFileOrDealtOutOverShards) {
  const Scratch folder;
  for (const NameMap& names : {kQwen3Moe, kMixtral})
    for (const int threads : {0, 1, 5}) {
      const auto saved = moe_parameters();
      const auto tensors = on_disk(saved, names);
      write_dealt_out(folder, {"a.safetensors", "b.safetensors", ".c.safetensors"}, tensors);
      auto loaded = blank(saved);
      const LoadReport report =
          load_checkpoint(folder, names, loaded, {.ignore = {}, .threads = threads});
      expect_equal(loaded, saved);
      EXPECT_EQ(report.tensors, int64_t(tensors.size()));
      int64_t bytes = 0;
      for (const NamedTensor& tensor : tensors) bytes += int64_t(tensor.tensor.nbytes());
      EXPECT_EQ(report.bytes, bytes);

      write_weights(folder / kWeightsFile, tensors);  // a single file goes before an index
      write_content(folder / kIndexFile, "stale");
      loaded = blank(saved);
      load_checkpoint(folder, names, loaded);
      expect_equal(loaded, saved);
      std::filesystem::remove(folder / kWeightsFile);
    }
}

TEST(LoadCheckpoint, OneFileUnderAnyNameThroughAnIndex) {
  const Scratch folder;
  const auto saved = moe_parameters();
  write_dealt_out(folder, {"weights.safetensors"}, on_disk(saved, kQwen3Moe));
  auto loaded = blank(saved);
  load_checkpoint(folder, kQwen3Moe, loaded);
  expect_equal(loaded, saved);
}

TEST(LoadCheckpoint, EachDtypeOfAFileBecomesThatOfItsParameterInPlace) {
  const Scratch folder;
  const auto saved = moe_parameters(at::kBFloat16);  // with fp32 gates in the same file
  write_weights(folder / kWeightsFile, on_disk(saved, kQwen3Moe));
  for (const auto type : {at::kFloat, at::kHalf, at::kDouble}) {
    std::vector<NamedTensor> loaded;
    for (const auto& [name, tensor] : saved)
      loaded.push_back({name, at::zeros(tensor.sizes(), type).set_requires_grad(true)});
    load_checkpoint(folder, kQwen3Moe, loaded);
    for (size_t i = 0; i < saved.size(); ++i)
      EXPECT_TRUE(loaded[i].tensor.equal(saved[i].tensor.to(type))) << saved[i].name << type;
  }
}

TEST(LoadCheckpoint, ParametersOnAGpuAreFilledAndSavedAsThoseOnTheHost) {
  if (!at::hasCUDA()) GTEST_SKIP() << "no GPU";
  const Scratch folder;
  const auto saved = moe_parameters(at::kBFloat16);
  save_checkpoint(folder / "host", kQwen3Moe, saved, {.max_shard_bytes = 300});
  for (const bool transposed : {false, true}) {
    std::vector<NamedTensor> same, wider;
    for (const auto& [name, tensor] : saved) {
      const at::Tensor laid_out =
          transposed ? tensor.transpose(0, -1).contiguous().transpose(0, -1) : tensor;
      same.push_back({name, at::zeros_like(laid_out, at::TensorOptions(at::kCUDA))});
      wider.push_back(
          {name, at::zeros_like(laid_out, at::TensorOptions(at::kCUDA).dtype(at::kFloat))
                     .set_requires_grad(true)});
    }
    load_checkpoint(folder / "host", kQwen3Moe, same);
    load_checkpoint(folder / "host", kQwen3Moe, wider);
    for (size_t i = 0; i < saved.size(); ++i) {
      EXPECT_TRUE(same[i].tensor.cpu().equal(saved[i].tensor)) << saved[i].name;
      EXPECT_TRUE(wider[i].tensor.cpu().equal(saved[i].tensor.to(at::kFloat))) << saved[i].name;
    }
    save_checkpoint(folder / "gpu", kQwen3Moe, same, {.max_shard_bytes = 300});
    EXPECT_EQ(files_in(folder / "gpu"), files_in(folder / "host"));
  }
}

TEST(LoadCheckpoint, ParametersThatAreNotContiguousAreFilledAsTheyLie) {
  const Scratch folder;
  const auto saved = moe_parameters();
  write_weights(folder / kWeightsFile, on_disk(saved, kQwen3Moe));
  std::vector<NamedTensor> loaded;
  for (const auto& [name, tensor] : saved)
    loaded.push_back({name, at::zeros_like(tensor.transpose(0, -1).contiguous()).transpose(0, -1)});
  load_checkpoint(folder, kQwen3Moe, loaded);
  expect_equal(loaded, saved);
}

TEST(LoadCheckpoint, FusedExpertsAreAcceptedButNotBesideTheSameExpertsApart) {
  const Scratch folder;
  const auto saved = moe_parameters();
  write_weights(folder / kWeightsFile, saved);
  auto loaded = blank(saved);
  load_checkpoint(folder, kQwen3Moe, loaded);
  expect_equal(loaded, saved);

  auto both = saved;
  both.push_back({"model.layers.1.mlp.experts.3.up_proj.weight", random_tensor({3, 7})});
  write_weights(folder / kWeightsFile, both);
  const std::string message = refusal(folder, saved);
  EXPECT_SAYS(message, "'model.layers.1.mlp.experts.gate_up_proj' would be filled twice");
  EXPECT_SAYS(message, "'model.layers.1.mlp.experts.3.up_proj.weight' in model.safetensors");
}

TEST(LoadCheckpoint, ATiedHeadStoredOnceMoreIsIgnoredOnlyIfAllowed) {
  const Scratch folder;
  const auto saved = moe_parameters();
  auto tensors = on_disk(saved, kQwen3Moe);
  tensors.push_back({"lm_head.weight", random_tensor({11, 6})});
  tensors.push_back({"model.layers.1.self_attn.rotary_emb.inv_freq", random_tensor({3})});
  write_weights(folder / kWeightsFile, tensors);
  auto loaded = blank(saved);
  const LoadOptions options{
      .ignore = {"lm_head.weight", "model.layers.{layer}.self_attn.rotary_emb.inv_freq"}};
  EXPECT_EQ(
      load_checkpoint(folder, kQwen3Moe, loaded, options).ignored,
      (std::vector<std::string>{"lm_head.weight", "model.layers.1.self_attn.rotary_emb.inv_freq"}));
  expect_equal(loaded, saved);
  EXPECT_SAYS(refusal(folder, saved), "not used by the model: 2 tensors: 'lm_head.weight', ");
  auto untied = saved;
  untied.push_back({"lm_head.weight", at::zeros({11, 6})});
  const std::string missing = message_of([&] {
    write_weights(folder / kWeightsFile, on_disk(saved, kQwen3Moe));
    load_checkpoint(folder, kQwen3Moe, untied);
  });
  EXPECT_SAYS(missing, "missing: 1 tensor: 'lm_head.weight'");
}

TEST(LoadCheckpoint, WhatIsMissingUnusedOrMisshapenIsListedCountedAndSuggested) {
  const Scratch folder;
  const auto saved = moe_parameters();
  auto tensors = on_disk(saved, kQwen3Moe);
  tensors[0].name = "model.embed_token.weight";
  tensors[1].tensor = random_tensor({3, 8});
  tensors.erase(tensors.begin() + 20, tensors.begin() + 30);
  write_weights(folder / kWeightsFile, tensors);
  const std::string message = refusal(folder, saved);
  EXPECT_SAYS(message, (folder / "").parent_path().string());
  EXPECT_SAYS(message, "missing: 11 tensors: 'model.embed_tokens.weight', ");
  EXPECT_SAYS(message, " and 3 more.");
  EXPECT_SAYS(message, "Did you mean 'model.embed_token.weight'?");
  EXPECT_SAYS(message,
              "not used by the model: 1 tensor: 'model.embed_token.weight' (in model.safetensors)");
  EXPECT_SAYS(
      message,
      "'model.layers.0.mlp.experts.0.gate_proj.weight' in model.safetensors: expected shape "
      "[3, 7] for 'model.layers.0.mlp.experts.gate_up_proj' [5, 6, 7], found F32 [3, 8]");
}

TEST(LoadCheckpoint, NothingIsReadBeforeEverythingFits) {
  const Scratch folder;
  const auto saved = moe_parameters();
  auto tensors = on_disk(saved, kQwen3Moe);
  tensors.pop_back();
  write_weights(folder / kWeightsFile, tensors);
  auto loaded = blank(saved);
  EXPECT_THROW(load_checkpoint(folder, kQwen3Moe, loaded), ValueError);
  expect_equal(loaded, blank(saved));
}

TEST(LoadCheckpoint, AnIndexThatLiesIsNamedWithFileAndTensor) {
  const Scratch folder;
  const std::vector<NamedTensor> saved{{"a", random_tensor({2})}, {"b", random_tensor({3})}};
  const auto with_index = [&](const std::map<std::string, std::string>& weight_map) {
    write_content(folder / kIndexFile, emit_index(weight_map, 5, 20));
    return refusal(folder, saved);
  };
  write_weights(folder / "1.safetensors", {saved[0]});
  write_weights(folder / "2.safetensors", {saved[1]});
  EXPECT_EQ(with_index({{"a", "1.safetensors"}, {"b", "2.safetensors"}}), "no error");
  EXPECT_SAYS(with_index({{"a", "1.safetensors"}, {"b", "1.safetensors"}}),
              "expects tensor 'b' in 1.safetensors, which lacks it");
  EXPECT_SAYS(with_index({{"a", "2.safetensors"}, {"b", "1.safetensors"}}),
              "expects tensor 'a' in 2.safetensors, which lacks it; it lies in 1.safetensors");
  EXPECT_SAYS(with_index({{"a", "1.safetensors"}, {"b", "3.safetensors"}}),
              (folder / "3.safetensors").string() + " is missing");
  write_weights(folder / "2.safetensors", saved);
  const std::string twice = with_index({{"a", "1.safetensors"}, {"b", "2.safetensors"}});
  EXPECT_SAYS(twice, "tensor 'a' lies both in " + (folder / "1.safetensors").string());
  EXPECT_SAYS(with_index({{"a", "../1.safetensors"}}),
              "must name a .safetensors file beside the index");
  write_content(folder / kIndexFile, "{");
  EXPECT_SAYS(refusal(folder, saved), (folder / kIndexFile).string() + " is not valid JSON");
}

TEST(LoadCheckpoint, ADamagedOrTruncatedShardIsNamed) {
  const Scratch folder;
  const auto saved = moe_parameters();
  write_dealt_out(folder, {"1.safetensors", "2.safetensors"}, on_disk(saved, kQwen3Moe));
  const std::string whole = content_of(folder / "2.safetensors");
  write_content(folder / "2.safetensors", whole.substr(0, whole.size() - 1));
  EXPECT_SAYS(refusal(folder, saved), "2.safetensors: tensor 'model.");
  EXPECT_SAYS(refusal(folder, saved), "truncated");
  write_content(folder / "2.safetensors", whole.substr(0, 9) + "\xff" + whole.substr(10));
  EXPECT_SAYS(refusal(folder, saved), "2.safetensors: the header is not valid JSON");
  write_content(folder / "2.safetensors", "");
  EXPECT_SAYS(refusal(folder, saved), "2.safetensors has 0 bytes");
}

TEST(LoadCheckpoint, AFolderWithoutWeightsSaysWhatItHolds) {
  const Scratch folder;
  EXPECT_SAYS(refusal(folder / "none", {}), "none is not a folder");
  EXPECT_SAYS(refusal(folder, {}),
              "has neither model.safetensors nor model.safetensors.index.json");
  write_content(folder / "pytorch_model.bin", "");
  EXPECT_SAYS(refusal(folder, {}),
              "it holds pytorch_model.bin: convert these to safetensors first");
}

TEST(LoadCheckpoint, ParametersThatCannotBeFilledAreNamed) {
  const Scratch folder;
  const at::Tensor w = random_tensor({2});
  write_weights(folder / kWeightsFile, {{"w", at::ones({2}, at::kInt)}});
  const auto said = [&](const std::vector<NamedTensor>& parameters) {
    return message_of([&] { load_checkpoint(folder, {}, parameters); });
  };
  EXPECT_SAYS(said({{"w", w}, {"w", random_tensor({2})}}), "parameter 'w' is listed twice");
  EXPECT_SAYS(said({{"w", w}, {"v", w.view({2})}}), "'w' and 'v' share their memory");
  EXPECT_SAYS(said({{"w", at::empty({2}, at::kMeta)}}), "parameter 'w' has no dense memory");
  EXPECT_SAYS(said({{"w", {}}}), "parameter 'w' has no dense memory");
  EXPECT_SAYS(said({{"w", w}}), "tensor 'w' in " + (folder / kWeightsFile).string() +
                                    " is I32 [2], which cannot become Float");
}

// Bytes: "VmRSS:" that this process holds, "VmHWM:" the most it has held since told to forget.
int64_t memory(const std::string& kind) {
  std::ifstream status("/proc/self/status");
  for (std::string word; status >> word;)
    if (word == kind) {
      int64_t kib = 0;
      status >> kib;
      return kib * 1024;
    }
  return 0;
}

TEST(LoadCheckpoint, LoadingTakesNoMemoryBesideTheParametersWhateverTheirType) {
  const Scratch folder;
  constexpr int64_t kExperts = 6, kRows = 1024, kColumns = 2048;
  const NameMap names{{"l.{layer}.{expert}.{a,b}", "l.{layer}"}};
  const std::vector<NamedTensor> saved{
      {"l.0", at::ones({kExperts, 2 * kRows, kColumns}, at::kBFloat16)},
      {"l.1", at::ones({kExperts, 2 * kRows, kColumns}, at::kBFloat16)}};
  save_checkpoint(folder, names, saved, {.max_shard_bytes = 30 << 20});
  for (const auto type : {at::kBFloat16, at::kFloat}) {
    std::vector<NamedTensor> loaded;
    for (const auto& [name, tensor] : saved)
      loaded.push_back(
          {name, at::zeros(tensor.sizes(), type).fill_(-1)});  // memory that is really there
    write_content("/proc/self/clear_refs", "5");
    const int64_t before = memory("VmRSS:");
    ASSERT_LT(memory("VmHWM:"), before + (1 << 20));
    load_checkpoint(folder, names, loaded, {.ignore = {}, .threads = 4});
    EXPECT_LT(memory("VmHWM:") - before, 16 << 20) << type;
    EXPECT_TRUE(loaded[1].tensor.eq(1).all().item<bool>());
  }
}

}  // namespace
}  // namespace automoe::hub
