// Properties that hold for every registered family, on its tiny config.
#include <gtest/gtest.h>

#include "automoe/error.h"
#include "kernels/testing.h"
#include "models/model.h"

namespace automoe {
namespace {

using at::Tensor;
using kernels::relative_error;

Json tiny(const std::string& architecture) {
  return models::families().at(architecture).tiny_config;
}

Tensor random_ids(int64_t rows, int64_t length, uint64_t seed) {
  return at::randint(64, {rows, length}, at::detail::createCPUGenerator(seed), at::kLong);
}

template <typename F>
void for_each_family(F&& f) {
  for (const std::string& architecture : models::families().names()) {
    SCOPED_TRACE(architecture);
    f(tiny(architecture), CausalLM::from_config(tiny(architecture).dump(), /*seed=*/3));
  }
}

std::vector<Tensor> gradients(const CausalLM& model, const Tensor& loss) {
  std::vector<Tensor> leaves;
  for (const NamedTensor& parameter : model.parameters())
    if (parameter.tensor.requires_grad()) leaves.push_back(parameter.tensor);
  return torch::autograd::grad({loss}, leaves, {}, /*retain_graph=*/false, /*create_graph=*/false,
                               /*allow_unused=*/true);
}

TEST(EveryFamily, PackedDocumentsGiveWhatTheyGiveAlone) {
  for_each_family([](const Json&, const CausalLM& model) {
    const Tensor a = random_ids(1, 5, 1), b = random_ids(1, 9, 2);
    const Tensor positions = at::cat({at::arange(5), at::arange(9)}).unsqueeze(0);
    const Tensor packed =
        model.forward({.input_ids = at::cat({a, b}, 1), .position_ids = positions}).logits;
    EXPECT_LT(relative_error(packed.slice(1, 0, 5), model.forward({.input_ids = a}).logits), 1e-5);
    EXPECT_LT(relative_error(packed.slice(1, 5), model.forward({.input_ids = b}).logits), 1e-5);
  });
}

TEST(EveryFamily, ChangingOneDocumentLeavesItsNeighbourAlone) {
  for_each_family([](const Json&, const CausalLM& model) {
    const Tensor b = random_ids(1, 9, 2),
                 positions = at::cat({at::arange(5), at::arange(9)}).unsqueeze(0);
    const auto second = [&](uint64_t seed) {
      return model
          .forward(
              {.input_ids = at::cat({random_ids(1, 5, seed), b}, 1), .position_ids = positions})
          .logits.slice(1, 5);
    };
    EXPECT_LT(relative_error(second(10), second(11)), 1e-5);
  });
}

TEST(EveryFamily, RecomputePoliciesGiveTheSameLossAndGradients) {
  for_each_family([](const Json&, const CausalLM& model) {
    const Tensor ids = random_ids(2, 11, 4);
    const auto run = [&](Recompute recompute) {
      const ModelOutput out =
          model.forward({.input_ids = ids, .labels = ids},
                        {.recompute = recompute, .logits = false, .router_logits = true});
      std::vector<Tensor> all = gradients(model, out.loss);
      all.push_back(out.loss);
      return all;
    };
    const auto expected = run(Recompute::kNone);
    for (const Recompute policy : {Recompute::kNorms, Recompute::kLayer}) {
      const auto actual = run(policy);
      for (size_t i = 0; i < expected.size(); ++i)
        EXPECT_LT(relative_error(actual[i], expected[i]), 1e-5);
    }
  });
}

TEST(EveryFamily, ABatchWithoutALabelHasLossZeroAndZeroGradients) {
  for_each_family([](const Json&, const CausalLM& model) {
    const Tensor ids = random_ids(2, 6, 5);
    const ModelOutput out = model.forward({.input_ids = ids, .labels = at::full_like(ids, -100)});
    EXPECT_EQ(out.loss.item<double>(), 0.0);
    for (const Tensor& grad : gradients(model, out.loss))
      if (grad.defined()) {
        EXPECT_EQ(grad.abs().max().item<double>(), 0.0);
      }
  });
}

TEST(EveryFamily, PaddingNeitherMovesRealTokensNorMakesNan) {
  for_each_family([](const Json&, const CausalLM& model) {
    const Tensor real = random_ids(1, 6, 6);
    const Tensor expected = model.forward({.input_ids = real}).logits;
    for (const int64_t pads : {0, 5, 40})
      for (const bool left : {true, false}) {
        const Tensor junk = random_ids(1, pads, 7), zeros = at::zeros({1, pads}, at::kLong);
        const Tensor ones = at::ones({1, 6}, at::kLong);
        const Tensor ids = left ? at::cat({junk, real}, 1) : at::cat({real, junk}, 1);
        const Tensor mask = left ? at::cat({zeros, ones}, 1) : at::cat({ones, zeros}, 1);
        const ModelOutput out =
            model.forward({.input_ids = ids, .attention_mask = mask, .labels = ids});
        EXPECT_LT(
            relative_error(out.logits.slice(1, left ? pads : 0, left ? pads + 6 : 6), expected),
            1e-5);
        for (const Tensor& grad : gradients(model, out.loss))
          if (grad.defined()) {
            EXPECT_TRUE(grad.isfinite().all().item<bool>());
          }
      }
  });
}

TEST(EveryFamily, RoutingCountsAreTokensTimesTopKInEveryMoeLayer) {
  for_each_family([](const Json& config, const CausalLM& model) {
    if (!model.has_experts()) return;
    const ModelOutput out =
        model.forward({.input_ids = random_ids(2, 7, 8)}, {.routing_counts = true});
    const int64_t expected = 14 * config.at("num_experts_per_tok").get<int64_t>();
    EXPECT_TRUE(out.routing_counts.sum(1).eq(expected).all().item<bool>());
  });
}

TEST(EveryFamily, BuffersTakeNoGradientAndWhatStaysFp32DoesSoInBf16) {
  for_each_family([](const Json& config, const CausalLM&) {
    const CausalLM half = CausalLM::from_config(config.dump(), /*seed=*/3, at::kBFloat16);
    for (size_t i = 0; i < half.specs().size(); ++i) {
      const ParameterSpec& spec = half.specs()[i];
      const Tensor& tensor = half.parameters()[i].tensor;
      EXPECT_EQ(tensor.requires_grad(), !spec.is_buffer) << spec.name;
      EXPECT_EQ(tensor.scalar_type(), spec.keep_fp32 ? at::kFloat : at::kBFloat16) << spec.name;
    }
  });
}

TEST(EveryFamily, SavedFoldersLoadToTheSameBits) {
  for_each_family([](const Json&, const CausalLM& model) {
    const std::filesystem::path folder =
        std::filesystem::path(testing::TempDir()) / "automoe_models_test";
    std::filesystem::remove_all(folder);
    model.save_pretrained(folder);
    const CausalLM again = CausalLM::from_pretrained(folder);
    for (size_t i = 0; i < model.parameters().size(); ++i)
      EXPECT_TRUE(at::equal(model.parameters()[i].tensor, again.parameters()[i].tensor));
  });
}

TEST(Families, AnUnknownArchitectureIsNamedWithTheKnownOnes) {
  try {
    CausalLM::from_config(R"({"architectures": ["Qwen3MoeForCausal"]})");
    FAIL();
  } catch (const ValueError& error) {
    EXPECT_NE(std::string(error.what()).find("Did you mean 'Qwen3MoeForCausalLM'"),
              std::string::npos);
  }
}

}  // namespace
}  // namespace automoe
