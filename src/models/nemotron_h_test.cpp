#include <gtest/gtest.h>

#include "core/testing.h"
#include "models/model.h"

namespace automoe {
namespace {

Json tiny() { return models::families().at("NemotronHForCausalLM").tiny_config; }

std::vector<std::string> names_of(const Json& config) {
  const CausalLM model = CausalLM::from_config(config.dump());
  std::vector<std::string> names;
  for (const ParameterSpec& spec : model.specs())
    names.push_back(spec.name + text(" ", at::IntArrayRef(spec.shape)));
  return names;
}

TEST(NemotronH, EverySpellingOfTheLayersMeansTheSame) {
  const auto expected = names_of(tiny());
  for (const Json& spelling :
       {Json{{"hybrid_override_pattern", "ME*-M"}},
        Json{{"layers_block_type", {"mamba", "moe", "attention", "mlp", "mamba"}}},
        Json{{"layer_types", {"linear_attention", "moe", "full_attention", "mlp", "mamba"}}},
        Json{{"layers_block_type", {"mamba", "moe", "attention", "mlp", "mamba"}},
             {"hybrid_override_pattern", "M"}}}) {
    Json config = tiny();
    config.erase("layers_block_type");
    config.update(spelling);
    config["num_hidden_layers"] = 77;  // the list counts
    EXPECT_EQ(names_of(config), expected) << spelling;
  }
}

TEST(NemotronH, OldKeysOfTheMixerWin) {
  Json old = tiny(), now = tiny();
  old["mamba_n_groups"] = now["n_groups"] = 3;
  old["mamba_d_conv"] = now["conv_kernel"] = 3;
  old["mamba_conv_bias"] = now["use_conv_bias"] = false;
  EXPECT_EQ(names_of(old), names_of(now));
  EXPECT_NE(names_of(old), names_of(tiny()));
}

TEST(NemotronH, AnUnknownLayerIsNamed) {
  Json config = tiny();
  config["layers_block_type"] = {"mamba", "rnn"};
  EXPECT_SAYS(message_of([&] { CausalLM::from_config(config.dump()); }), "layer 1 is 'rnn'");
  config = tiny();
  config["mlp_hidden_act"] = "silu";
  EXPECT_SAYS(message_of([&] { CausalLM::from_config(config.dump()); }), "mlp_hidden_act");
}

}  // namespace
}  // namespace automoe
