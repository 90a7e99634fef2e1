#include "hub/name_map.h"

#include "hub/test_checkpoints.h"

namespace automoe::hub {
namespace {

std::vector<std::string> names_of(const std::vector<DiskTensor>& tensors) {
  std::vector<std::string> names;
  for (const DiskTensor& tensor : tensors) names.push_back(tensor.name);
  return names;
}

TEST(NameMap, CutsFusedExpertsIntoChoicesThenExperts) {
  const NameTable table(kQwen3Moe);
  const auto tensors = table.expand("model.layers.11.mlp.experts.gate_up_proj", {3, 10, 7});
  const std::string prefix = "model.layers.11.mlp.experts.";
  EXPECT_EQ(names_of(tensors),
            (std::vector<std::string>{prefix + "0.gate_proj.weight", prefix + "1.gate_proj.weight",
                                      prefix + "2.gate_proj.weight", prefix + "0.up_proj.weight",
                                      prefix + "1.up_proj.weight", prefix + "2.up_proj.weight"}));
  const at::Tensor parameter = at::arange(3 * 10 * 7).view({3, 10, 7});
  for (const DiskTensor& tensor : tensors) {
    EXPECT_EQ(tensor.shape, (std::vector<int64_t>{5, 7}));
    EXPECT_EQ(tensor.part_of(parameter).sizes(), at::IntArrayRef(tensor.shape));
  }
  EXPECT_TRUE(tensors[4].part_of(parameter).equal(parameter[1].slice(0, 5, 10)));
  EXPECT_TRUE(tensors[2].part_of(parameter).equal(parameter[2].slice(0, 0, 5)));
  EXPECT_EQ(tensors[2].block, 0);
  EXPECT_EQ(tensors[3].block, 1);
}

TEST(NameMap, TheFirstMatchingRuleRenamesAndOtherNamesStay) {
  const NameTable table(kMixtral);
  EXPECT_EQ(names_of(table.expand("model.layers.0.mlp.gate.weight", {4, 3})),
            std::vector<std::string>{"model.layers.0.block_sparse_moe.gate.weight"});
  EXPECT_EQ(names_of(table.expand("model.layers.10.mlp.experts.down_proj", {2, 3, 5})),
            (std::vector<std::string>{"model.layers.10.block_sparse_moe.experts.0.w2.weight",
                                      "model.layers.10.block_sparse_moe.experts.1.w2.weight"}));
  for (const char* same : {"lm_head.weight", "model.layers.x.mlp.gate.weight",
                           "model.layers.0.mlp.gate.weight2", "model.layers.0.mlp.gate.weigh"}) {
    const auto tensors = table.expand(same, {});
    EXPECT_EQ(names_of(tensors), std::vector<std::string>{same});
    EXPECT_TRUE(tensors[0].part_of(at::scalar_tensor(3)).equal(at::scalar_tensor(3)));
  }
}

TEST(NameMap, ChoicesWithoutExpertsCutDim0IntoViewsOfOneStorage) {
  const NameTable table(NameMap{{"l.{layer}.{q,k,v}.bias", "l.{layer}.qkv.bias"}});
  const auto tensors = table.expand("l.3.qkv.bias", {9});
  ASSERT_EQ(names_of(tensors),
            (std::vector<std::string>{"l.3.q.bias", "l.3.k.bias", "l.3.v.bias"}));
  EXPECT_TRUE(tensors[2].part_of(at::arange(9)).equal(at::arange(6, 9)));
  EXPECT_EQ(tensors[2].block, 0);
}

TEST(NameMap, PatternsMatchWholeNamesWithNumbersAndChoices) {
  const NamePattern pattern("a.{layer}.b.{expert}.{w1,w10,w}.c");
  EXPECT_EQ(pattern.match("a.12.b.0.w10.c"), "12");
  EXPECT_EQ(pattern.match("a.7.b.3.w.c"), "7");
  for (const char* name : {"a..b.0.w1.c", "a.1.b.0.w2.c", "a.1.b.0.w1.c.d", "xa.1.b.0.w1.c", ""})
    EXPECT_FALSE(pattern.matches(name)) << name;
  EXPECT_TRUE(NamePattern("lm_head.weight").matches("lm_head.weight"));
  EXPECT_EQ(pattern.fill("5", 6, 1), "a.5.b.6.w10.c");
}

TEST(NameMap, RestCarriesWhateverFollows) {
  const NameTable table(NameMap{{"backbone.{layer}.{expert}.up", "model.{layer}.up"},
                                {"backbone.{rest}", "model.{rest}"}});
  EXPECT_EQ(names_of(table.expand("model.3.up", {1, 2})),
            std::vector<std::string>{"backbone.3.0.up"});
  EXPECT_EQ(names_of(table.expand("model.layers.3.D", {2})),
            std::vector<std::string>{"backbone.layers.3.D"});
  EXPECT_EQ(names_of(table.expand("lm_head.weight", {2})),
            std::vector<std::string>{"lm_head.weight"});
  const NamePattern pattern("mtp.{rest}");
  EXPECT_EQ(pattern.match("mtp.layers.0.norm"), "layers.0.norm");
  for (const char* name : {"mtp.", "mtp", "a.mtp.layers"}) EXPECT_FALSE(pattern.matches(name));
}

TEST(NameMap, RulesAndShapesThatMakeNoSenseAreNamed) {
  EXPECT_SAYS(message_of([] { NamePattern("a.{layer"); }), "'a.{layer': a '{' is not closed");
  EXPECT_SAYS(message_of([] { NamePattern("a.{head}"); }), "found {head}");
  EXPECT_SAYS(message_of([] { NamePattern("{layer}{layer}"); }), "{layer} is one too many");
  EXPECT_SAYS(message_of([] {
                NameTable(NameMap{{"a.{layer}", "b"}});
              }),
              "{layer} and {rest} must stand on both sides");
  EXPECT_SAYS(message_of([] { NamePattern("{rest}.a"); }), "{rest} stands at the end");
  EXPECT_SAYS(message_of([] { NamePattern("{layer}.{rest}"); }), "{rest} stands at the end");
  EXPECT_SAYS(message_of([] {
                NameTable(NameMap{{"a.{rest}", "b"}});
              }),
              "{layer} and {rest} must stand on both sides");
  EXPECT_SAYS(message_of([] {
                NameTable(NameMap{{"a", "b.{expert}"}});
              }),
              "belong on the disk side");
  const NameTable table(kQwen3Moe);
  const std::string name = "model.layers.0.mlp.experts.gate_up_proj";
  EXPECT_SAYS(message_of([&] {
                table.expand(name, {3, 5, 7});
              }),
              "[3, 5, 7] cannot be cut into experts and 2 equal parts");
  EXPECT_SAYS(message_of([&] { table.expand(name, {3}); }), "cannot be cut");
  EXPECT_SAYS(message_of([&] { table.expand(name, {}); }), "cannot be cut");
}

}  // namespace
}  // namespace automoe::hub
