#include "models/lora.h"

#include <gtest/gtest.h>

#include "core/testing.h"
#include "kernels/testing.h"
#include "models/model.h"

namespace automoe {
namespace {

using at::Tensor;
using kernels::relative_error;

CausalLM tiny(const std::string& architecture) {
  return CausalLM::from_config(models::families().at(architecture).tiny_config.dump(), /*seed=*/3);
}

Tensor some_ids() { return at::randint(64, {2, 9}, at::detail::createCPUGenerator(1), at::kLong); }

// lora_B starts at zero, where lora_A has no gradient and the adapter adds nothing.
void fill_adapters(const CausalLM& model) {
  at::Generator generator = at::detail::createCPUGenerator(9);
  for (const NamedTensor& parameter : model.parameters())
    if (parameter.name.find(".lora_B") != std::string::npos)
      parameter.tensor.detach().normal_(0, 0.1, generator);
}

std::vector<std::string> adapted_layers(const CausalLM& model) {
  std::vector<std::string> layers;
  for (const NamedTensor& parameter : model.parameters())
    if (const size_t end = parameter.name.find(".lora_A"); end != std::string::npos)
      layers.push_back(parameter.name.substr(0, end));
  return layers;
}

TEST(Lora, StartsAsTheModelItself) {
  CausalLM model = tiny("Qwen3MoeForCausalLM");
  const Tensor before = model.forward({.input_ids = some_ids()}).logits;
  model.add_adapter({});
  EXPECT_TRUE(model.forward({.input_ids = some_ids()}).logits.equal(before));
}

TEST(Lora, AllLinearAdaptsAttentionAndDenseMlpsButNoExpertRouterEmbeddingOrHead) {
  CausalLM dense = tiny("LlamaForCausalLM");
  dense.add_adapter({});
  EXPECT_EQ(adapted_layers(dense).size(), 2 * 7);
  CausalLM sparse = tiny("MixtralForCausalLM");
  sparse.add_adapter({});
  for (const std::string& layer : adapted_layers(sparse))
    EXPECT_NE(layer.find(".self_attn."), std::string::npos) << layer;
  EXPECT_EQ(adapted_layers(sparse).size(), 2 * 4);
}

TEST(Lora, TargetsAreNamesOrEndsOfPaths) {
  CausalLM model = tiny("LlamaForCausalLM");
  model.add_adapter({.target_modules = {"q_proj", "1.self_attn.v_proj"}});
  EXPECT_EQ(adapted_layers(model), (std::vector<std::string>{"model.layers.0.self_attn.q_proj",
                                                             "model.layers.1.self_attn.q_proj",
                                                             "model.layers.1.self_attn.v_proj"}));
}

TEST(Lora, ATargetThatIsNoLinearLayerIsAnErrorThatListsThem) {
  for (const std::string target : {"query", "lm_head", "proj", "gate"}) {
    CausalLM model = tiny("MixtralForCausalLM");
    const std::string error = message_of([&] {
      model.add_adapter({.target_modules = {"q_proj", target}});
    });
    EXPECT_SAYS(error, "'" + target + "'");
    EXPECT_SAYS(error, "k_proj, o_proj, q_proj, v_proj");
    EXPECT_TRUE(adapted_layers(model).empty());
    EXPECT_TRUE(model.parameters().front().tensor.requires_grad());
  }
}

TEST(Lora, ConfigsThatMakeNoSenseAreErrors) {
  EXPECT_SAYS(message_of([] { LoraConfig::from_json(R"({"rank": 4})"); }), "'rank'");
  EXPECT_SAYS(message_of([] { LoraConfig::from_json(R"({"r": 0})"); }), "r must");
  EXPECT_SAYS(message_of([] { LoraConfig::from_json(R"({"target_modules": []})"); }), "empty");
}

TEST(Lora, EveryAdapterTrainsWithTheSameGradientsUnderEveryPolicy) {
  for (const std::string& architecture : models::families().names()) {
    SCOPED_TRACE(architecture);
    CausalLM model = tiny(architecture);
    model.add_adapter({.r = 3});
    fill_adapters(model);
    std::vector<Tensor> trained;
    for (const NamedTensor& parameter : model.parameters())
      if (parameter.tensor.requires_grad()) trained.push_back(parameter.tensor);
    ASSERT_EQ(trained.size(), 2 * adapted_layers(model).size());
    std::vector<std::vector<Tensor>> gradients;
    for (const Recompute policy : {Recompute::kNone, Recompute::kNorms, Recompute::kLayer}) {
      const Tensor loss =
          model.forward({.input_ids = some_ids(), .labels = some_ids()}, {.recompute = policy})
              .loss;
      gradients.push_back(torch::autograd::grad({loss}, trained));
    }
    for (size_t i = 0; i < trained.size(); ++i) {
      EXPECT_GT(gradients[0][i].abs().max().item<double>(), 0);
      EXPECT_LT(relative_error(gradients[1][i], gradients[0][i]), 1e-5);
      EXPECT_LT(relative_error(gradients[2][i], gradients[0][i]), 1e-5);
    }
  }
}

TEST(Lora, MergingKeepsTheLogitsAndLeavesAnOrdinaryModel) {
  CausalLM model = tiny("Qwen3ForCausalLM");
  const size_t parameters = model.parameters().size();
  model.add_adapter({.r = 3, .lora_alpha = 5, .use_rslora = true});
  fill_adapters(model);
  const Tensor adapted = model.forward({.input_ids = some_ids()}).logits;
  model.merge_adapter();
  EXPECT_LT(relative_error(model.forward({.input_ids = some_ids()}).logits, adapted), 1e-5);
  EXPECT_EQ(model.parameters().size(), parameters);
  EXPECT_EQ(model.specs().size(), parameters);
  EXPECT_TRUE(model.parameters().front().tensor.requires_grad());
}

TEST(Lora, AnAdapterFolderLoadsBackBitForBitAndHoldsNothingElse) {
  const Scratch scratch;
  CausalLM model = tiny("MixtralForCausalLM"), other = tiny("MixtralForCausalLM");
  model.add_adapter({.r = 3});
  fill_adapters(model);
  model.save_pretrained(scratch / "adapter");
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(scratch / "adapter"), {}), 2);
  other.add_adapter({.r = 3}, /*seed=*/8);
  other.load_adapter(scratch / "adapter");
  for (size_t i = 0; i < model.parameters().size(); ++i)
    EXPECT_TRUE(other.parameters()[i].tensor.equal(model.parameters()[i].tensor));
}

}  // namespace
}  // namespace automoe
