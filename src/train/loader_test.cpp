#include "train/loader.h"

#include <ATen/core/grad_mode.h>

#include <set>

#include "train/test_support.h"

namespace automoe::train {
namespace {

std::vector<int64_t> values(const at::Tensor& tensor) {
  const auto* begin = tensor.const_data_ptr<int64_t>();
  return {begin, begin + tensor.numel()};
}

struct Fixture {
  explicit Fixture(const std::vector<TestDocument>& documents, int64_t max_length = 16)
      : data(write_prepared(scratch / "data", documents)),
        rows(pack_documents(data.lengths(), max_length)) {}
  Scratch scratch;
  PreparedData data;
  Rows rows;
};

// All documents in one batch, in row order.
MicroBatch whole(const Fixture& fixture) {
  std::vector<int64_t> all;
  for (int64_t row = 0; row < fixture.rows.count(); ++row) all.push_back(row);
  return make_micro_batch(fixture.data, fixture.rows, all);
}

double summed_loss(const CausalLM& model, const MicroBatch& batch) {
  const at::NoGradGuard no_grad;
  Batch input{.input_ids = batch.input_ids,
              .attention_mask = {},
              .position_ids = batch.position_ids,
              .labels = batch.labels,
              .num_items_in_batch = at::scalar_tensor(1, at::kLong),
              .document_ends = batch.document_ends};
  return model.forward(input).loss.item<double>();
}

TEST(Loader, PositionsRestartAtEachDocumentAndLabelsFollowTheMask) {
  const Fixture fixture({make_document({11, 12, 13, 14}, 2), make_document({21, 22, 23})});
  const MicroBatch batch = whole(fixture);
  EXPECT_EQ(values(batch.input_ids), (std::vector<int64_t>{11, 12, 13, 14, 21, 22, 23}));
  EXPECT_EQ(values(batch.position_ids), (std::vector<int64_t>{0, 1, 2, 3, 0, 1, 2}));
  EXPECT_EQ(values(batch.labels), (std::vector<int64_t>{-100, -100, 13, 14, -100, 22, 23}));
  EXPECT_EQ(batch.document_ends, (std::vector<int64_t>{4, 7}));
  EXPECT_EQ(batch.labelled_tokens, 4);
}

TEST(Loader, APackedRowTrainsLengthMinusOneTokensOfEachDocumentAndNoFirstToken) {
  const Fixture fixture(random_documents({4, 9, 1}, 5));
  const MicroBatch packed = whole(fixture);
  EXPECT_EQ(fixture.rows.count(), 1);
  EXPECT_EQ(packed.labelled_tokens, 11);
  const CausalLM model = tiny_model();
  const Rows alone = one_document_per_row(3);
  double sum = 0;
  for (const int64_t row : {0, 1, 2}) {
    const int64_t index[] = {row};
    const MicroBatch batch = make_micro_batch(fixture.data, alone, index);
    if (batch.labelled_tokens > 0) sum += summed_loss(model, batch);
  }
  EXPECT_NEAR(summed_loss(model, packed), sum, 1e-5 * sum);
}

TEST(Loader, APackedDocumentDoesNotSeeItsNeighbour) {
  std::vector<TestDocument> documents = random_documents({6, 8}, 6);
  const CausalLM model = tiny_model();
  const at::NoGradGuard no_grad;
  const auto logits_of_second = [&](const std::vector<TestDocument>& both) {
    const MicroBatch batch = whole(Fixture(both));
    const Batch input{.input_ids = batch.input_ids,
                      .attention_mask = {},
                      .position_ids = batch.position_ids,
                      .labels = {},
                      .num_items_in_batch = {},
                      .document_ends = batch.document_ends};
    return model.forward(input).logits.slice(1, 6);
  };
  const at::Tensor before = logits_of_second(documents);
  for (uint32_t& token : documents[0].tokens) token = (token + 17) % 64;
  EXPECT_LE((logits_of_second(documents) - before).abs().max().item<double>(), 1e-5);
}

// There is no padding in a row, so an end token that doubles as the pad token keeps its label.
TEST(Loader, TheEndTokenIsTrainedEvenIfItIsThePadToken) {
  constexpr uint32_t kEnd = 0;
  const Fixture fixture({make_document({3, 4, kEnd}), make_document({5, 6, 7, 8, 9, 10, kEnd})});
  const std::vector<int64_t> labels = values(whole(fixture).labels);
  EXPECT_EQ(labels, (std::vector<int64_t>{-100, 4, 0, -100, 6, 7, 8, 9, 10, 0}));
}

TEST(Loader, EveryRowComesOnceAnEpochAndTheLastStepMayBeShort) {
  const Fixture fixture(random_documents(std::vector<int64_t>(11, 10), 7), 10);
  Loader loader(fixture.data, fixture.rows,
                {.rows_per_micro_batch = 2, .micro_batches_per_step = 2, .seed = 9});
  ASSERT_EQ(loader.steps_per_epoch(), 3);
  for (const int64_t epoch : {0, 1}) {
    std::multiset<std::vector<int64_t>> seen, expected;
    for (int64_t step = 3 * epoch; step < 3 * epoch + 3; ++step) {
      const StepBatch batch = loader.load(step);
      EXPECT_EQ(batch.micro_batches.size(), 2u);
      EXPECT_EQ(batch.tokens, step % 3 < 2 ? 40 : 30);
      for (const MicroBatch& micro_batch : batch.micro_batches)
        for (const at::Tensor& row : micro_batch.input_ids.split(10, 1))
          seen.insert(values(row.contiguous()));
    }
    for (int64_t i = 0; i < 11; ++i) {
      const auto tokens = fixture.data.document(i).tokens;
      expected.insert({tokens.begin(), tokens.end()});
    }
    EXPECT_EQ(seen, expected);
  }
}

TEST(Loader, AnyStepCanBeLoadedFirst) {
  const Fixture fixture(random_documents(std::vector<int64_t>(7, 9), 8), 9);
  const LoaderOptions options{.rows_per_micro_batch = 1, .micro_batches_per_step = 3, .seed = 4};
  Loader straight(fixture.data, fixture.rows, options);
  for (int64_t step = 0; step < 8; ++step) {
    const StepBatch expected = straight.load(step);
    const StepBatch jumped = Loader(fixture.data, fixture.rows, options).load(step);
    ASSERT_EQ(jumped.micro_batches.size(), expected.micro_batches.size());
    for (size_t i = 0; i < expected.micro_batches.size(); ++i)
      EXPECT_TRUE(jumped.micro_batches[i].input_ids.equal(expected.micro_batches[i].input_ids));
  }
}

}  // namespace
}  // namespace automoe::train
