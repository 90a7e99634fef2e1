#include "train/train_step.h"

#include "train/test_support.h"

namespace automoe::train {
namespace {

struct Result {
  double loss, aux_loss;
  std::vector<at::Tensor> grads;
};

// Six rows of one document each, cut into micro-batches of `rows`.
Result gradients(const PreparedData& data, int64_t rows, const StepOptions& options) {
  const Rows single = one_document_per_row(data.num_documents());
  Loader loader(data, single,
                {.rows_per_micro_batch = rows, .micro_batches_per_step = 6 / rows, .seed = 3});
  const CausalLM model = tiny_model();
  const StepLosses losses = accumulate_gradients(model, loader.load(0), options);
  Result result{losses.loss.item<double>(), losses.aux_loss.item<double>(), {}};
  for (const NamedTensor& parameter : model.parameters())
    result.grads.push_back(parameter.tensor.grad());
  return result;
}

TEST(TrainStep, HowAGlobalBatchIsCutIntoMicroBatchesChangesNeitherLossNorGradients) {
  const Scratch scratch;
  const PreparedData data(
      write_prepared(scratch / "data", random_documents({3, 40, 17, 8, 29, 5}, 4, 2)));
  const Result whole = gradients(data, 6, {});
  for (const int64_t rows : {1, 2, 3}) {
    const Result cut = gradients(data, rows, {});
    EXPECT_NEAR(cut.loss, whole.loss, 1e-5 * whole.loss);
    for (size_t i = 0; i < whole.grads.size(); ++i) {
      ASSERT_EQ(cut.grads[i].defined(), whole.grads[i].defined());
      EXPECT_LE((cut.grads[i] - whole.grads[i]).norm().item<double>(),
                1e-5 * whole.grads[i].norm().item<double>());
    }
  }
}

TEST(TrainStep, TheBalanceLossIsReportedApartAndAveragedOverTokens) {
  const Scratch scratch;
  const PreparedData data(
      write_prepared(scratch / "data", random_documents({12, 12, 12, 12, 12, 12}, 4, 2)));
  const StepOptions on{.router_aux_loss = true, .router_aux_loss_coef = 0.01};
  const Result plain = gradients(data, 2, {}), balanced = gradients(data, 2, on),
               tripled = gradients(data, 6, on);
  EXPECT_NEAR(balanced.loss, plain.loss, 1e-6);
  EXPECT_EQ(plain.aux_loss, 0.0);
  EXPECT_NEAR(balanced.aux_loss, tripled.aux_loss,
              0.1 * tripled.aux_loss);  // three averages, not three times
  EXPECT_GT(balanced.aux_loss, 1.0);
  bool differs = false;
  for (size_t i = 0; i < plain.grads.size(); ++i)
    differs = differs || !plain.grads[i].equal(balanced.grads[i]);
  EXPECT_TRUE(differs);
}

TEST(TrainStep, TheBalanceGradientIsTheCoefficientTimesItsTokenWeightedMean) {
  const Scratch scratch;
  const PreparedData data(
      write_prepared(scratch / "data", random_documents({3, 40, 17, 8, 29, 5}, 4, 2)));
  const CausalLM model = tiny_model();
  const Rows single = one_document_per_row(6);
  Loader loader(data, single, {.rows_per_micro_batch = 1, .micro_batches_per_step = 6, .seed = 3});
  const StepBatch step = loader.load(0);
  at::Tensor total;
  for (const MicroBatch& micro_batch : step.micro_batches) {
    const ModelOutput out =
        model.forward({.input_ids = micro_batch.input_ids,
                       .attention_mask = {},
                       .position_ids = micro_batch.position_ids,
                       .labels = micro_batch.labels,
                       .num_items_in_batch = at::scalar_tensor(step.labelled_tokens, at::kLong),
                       .document_ends = micro_batch.document_ends},
                      {.logits = false, .logits_to_keep = {}, .router_logits = true});
    const at::Tensor task = out.loss - 0.01 * out.aux_loss;
    const double share = double(micro_batch.input_ids.numel()) / double(step.tokens);
    const at::Tensor part = task + 0.01 * share * out.aux_loss;
    total = total.defined() ? total + part : part;
  }
  total.backward();
  const Result result = gradients(data, 1, {.router_aux_loss = true, .router_aux_loss_coef = 0.01});
  for (size_t i = 0; i < result.grads.size(); ++i) {
    const at::Tensor expected = model.parameters()[i].tensor.grad();
    EXPECT_LE((result.grads[i] - expected).norm().item<double>(),
              1e-5 * expected.norm().item<double>());
  }
}

}  // namespace
}  // namespace automoe::train
