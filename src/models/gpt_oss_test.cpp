#include <gtest/gtest.h>

#include "core/file.h"
#include "core/testing.h"
#include "kernels/testing.h"
#include "models/model.h"

namespace automoe {
namespace {

// A GPT-OSS folder as published: the experts' matrices in MXFP4, the rest in bf16.
Json write_published(const std::filesystem::path& folder) {
  Json config = models::families().at("GptOssForCausalLM").tiny_config;
  config["dtype"] = "bfloat16";
  config["quantization_config"] = {{"quant_method", "mxfp4"}};
  const CausalLM model = CausalLM::from_config(config.dump(), /*seed=*/1, at::kBFloat16);
  std::vector<NamedTensor> tensors;
  for (const NamedTensor& parameter : model.parameters()) {
    const at::Tensor& tensor = parameter.tensor;
    if (tensor.dim() != 3) {
      tensors.push_back(parameter);
      continue;
    }
    const std::vector<int64_t> shape{tensor.size(0), tensor.size(2), tensor.size(1) / 32};
    tensors.push_back({parameter.name + "_scales", at::full(shape, 122, at::kByte)});
    tensors.push_back({parameter.name + "_blocks",
                       at::randint(256, {shape[0], shape[1], shape[2], 16}, at::kByte)});
  }
  save_checkpoint(folder, {}, tensors);
  write_file_atomically(folder / "config.json", config.dump());
  return config;
}

TEST(GptOss, APublishedFolderLoadsInBfloat16AndIsSavedPlain) {
  const Scratch folder;
  const Json config = write_published(folder / "published");
  const CausalLM model = CausalLM::from_pretrained(folder / "published");
  for (const NamedTensor& parameter : model.parameters())
    EXPECT_EQ(parameter.tensor.scalar_type(), at::kBFloat16) << parameter.name;
  const at::Tensor ids = at::arange(9).unsqueeze(0);
  const at::Tensor logits = model.forward({.input_ids = ids}).logits;
  EXPECT_TRUE(logits.isfinite().all().item<bool>());

  model.save_pretrained(folder / "saved");
  Json expected = config;
  expected.erase("quantization_config");
  EXPECT_EQ(read_json(folder / "saved" / "config.json"), expected);
  const CausalLM again = CausalLM::from_pretrained(folder / "saved");
  EXPECT_TRUE(again.forward({.input_ids = ids}).logits.equal(logits));
}

}  // namespace
}  // namespace automoe
