#include <cmath>
#include <csignal>

#include "train/test_support.h"

namespace automoe::train {
namespace {

std::vector<Json> lines_of(const fs::path& file) {
  std::vector<Json> lines;
  std::ifstream in(file);
  for (std::string line; std::getline(in, line);) lines.push_back(parse_json(line, file.string()));
  return lines;
}

TEST(Trainer, ARandomModelStartsNearLnVocabAndLearns) {
  const Scratch scratch;
  CausalLM model = tiny_model();
  TrainConfig config = tiny_config(scratch);
  config.num_train_epochs = 20;
  Trainer trainer(model, config);
  const double first = trainer.step().loss;
  EXPECT_NEAR(first, std::log(64.0), 0.05 * std::log(64.0));
  double last = first;
  EXPECT_TRUE(trainer.run([&](const StepMetrics& metrics) { last = metrics.loss; }));
  EXPECT_LT(last, 0.8 * first);
}

TEST(Trainer, AStepWithoutLabelledTokensHasLossZeroAndChangesNothing) {
  const Scratch scratch;
  auto documents = random_documents({7, 9, 8, 6}, 2);
  documents[1].trained.assign(9, 0);  // the answer was cut away
  TrainConfig config = tiny_config(scratch);
  config.train_data = write_prepared(scratch / "cut", documents);
  config.packing = false;
  config.gradient_accumulation_steps = 1;
  config.num_train_epochs = 1;
  config.weight_decay = 0.5;
  config.lr_scheduler_type = "constant";
  config.warmup_steps = 0;
  CausalLM model = tiny_model();
  Trainer trainer(model, config);
  int64_t empty_steps = 0;
  while (!trainer.done()) {
    const auto before = copies(model);
    const StepMetrics metrics = trainer.step();
    EXPECT_EQ(same_bits(copies(model), before), metrics.labelled_tokens == 0);
    if (metrics.labelled_tokens > 0) continue;
    ++empty_steps;
    EXPECT_EQ(metrics.loss, 0.0);
    EXPECT_EQ(metrics.tokens, 9);
  }
  EXPECT_EQ(empty_steps, 1);
}

TEST(Trainer, DocumentsWithoutTrainedTokensAreCountedAtTheStart) {
  const Scratch scratch;
  auto documents = random_documents({7, 9, 8}, 2);
  documents[1].trained.assign(9, 0);
  TrainConfig config = tiny_config(scratch);
  config.train_data = write_prepared(scratch / "cut", documents);
  CausalLM model = tiny_model();
  testing::internal::CaptureStderr();
  const Trainer trainer(model, config);
  EXPECT_SAYS(testing::internal::GetCapturedStderr(),
              "1 of 3 documents of " + config.train_data.string() + " have no trained token");
}

TEST(Trainer, LabelsThatAreAllOneTokenStopWithADataCheck) {
  const Scratch scratch;
  TrainConfig config = tiny_config(scratch);
  config.train_data = write_prepared(scratch / "same",
                                     {make_document({1, 5, 5, 5}, 1), make_document({2, 5, 5}, 1)});
  CausalLM model = tiny_model();
  EXPECT_SAYS(message_of([&] { Trainer(model, config); }), "[data check] all 5 trained tokens of");
}

TEST(Trainer, DataThatCannotTrainThisModelIsRefusedBeforeTheFirstStep) {
  const Scratch scratch;
  CausalLM model = tiny_model();
  const auto with = [&](const std::vector<TestDocument>& documents) {
    TrainConfig config = tiny_config(scratch);
    config.train_data = write_prepared(scratch / "bad", documents);
    return message_of([&] { Trainer(model, config); });
  };
  EXPECT_SAYS(with({make_document({1, 64, 3})}),
              "holds token 64, but the model's vocabulary has 64");
  EXPECT_SAYS(with({make_document({1, 2, 3}, 3)}), "holds no trained tokens");
  EXPECT_SAYS(with(random_documents({30}, 1)),
              "document 0 has 30 tokens, more than max_length = 24");
}

TEST(Trainer, ALossThatIsNotFiniteStopsBeforeTheWeightsChange) {
  const Scratch scratch;
  CausalLM model = tiny_model();
  Trainer trainer(model, tiny_config(scratch));
  trainer.step();
  model.parameters().front().tensor.detach().fill_(std::nanf(""));
  const auto last = model.parameters().back().tensor.detach().clone();
  EXPECT_SAYS(message_of<RuntimeError>([&] { trainer.step(); }), "step 2: the loss is nan");
  EXPECT_TRUE(model.parameters().back().tensor.equal(last));
  EXPECT_FALSE(model.parameters().back().tensor.grad().defined());
  EXPECT_EQ(trainer.finished_steps(), 1);
}

TEST(Trainer, FrozenParametersStayAndAPatternWithoutAMatchIsAnError) {
  const Scratch scratch;
  CausalLM model = tiny_model();
  TrainConfig config = tiny_config(scratch);
  config.freeze = {"embed_tokens", "mlp.gate."};
  const auto before = copies(model);
  {
    Trainer trainer(model, config);
    trainer.step();
    trainer.step();
    for (size_t i = 0; i < before.size(); ++i) {
      const std::string& name = model.parameters()[i].name;
      const bool frozen = name.find("embed_tokens") != std::string::npos ||
                          name.find("mlp.gate.") != std::string::npos;
      EXPECT_EQ(model.parameters()[i].tensor.equal(before[i]), frozen) << name;
    }
  }
  EXPECT_TRUE(model.parameters().front().tensor.requires_grad());
  config.freeze = {"embed_token.weight"};
  config.output_dir = scratch / "other";
  EXPECT_SAYS(message_of([&] { Trainer(model, config); }),
              "Did you mean 'model.embed_tokens.weight'?");
  config.freeze = {"model.", "lm_head"};
  EXPECT_SAYS(message_of([&] { Trainer(model, config); }), "leaves no parameter to train");
  EXPECT_TRUE(model.parameters().front().tensor.requires_grad());
}

TEST(Trainer, MetricsHoldOneLineAStepWithExpertLoad) {
  const Scratch scratch;
  CausalLM model = tiny_model();
  TrainConfig config = tiny_config(scratch);
  config.eval_data = config.train_data;
  config.eval_steps = 2;
  config.max_steps = 5;
  Trainer trainer(model, config);
  EXPECT_EQ(trainer.total_steps(), 5);
  std::vector<StepMetrics> seen;
  trainer.run([&](const StepMetrics& metrics) { seen.push_back(metrics); });
  const auto lines = lines_of(config.output_dir / "metrics.jsonl");
  ASSERT_EQ(lines.size(), 7u);
  EXPECT_EQ(lines[0]["loss"].get<double>(), seen[0].loss);
  EXPECT_EQ(lines[2]["eval_labelled_tokens"].get<int64_t>(), 121);
  ASSERT_EQ(seen[0].expert_load.size(), 2u);
  for (const auto& layer : seen[0].expert_load) {
    int64_t routed = 0;
    for (const int64_t tokens : layer) routed += tokens;
    EXPECT_EQ(routed, 2 * seen[0].tokens);
  }
  EXPECT_DOUBLE_EQ(seen[2].epoch, 1.0);
  EXPECT_EQ(seen[0].learning_rate, 0.0);
  EXPECT_DOUBLE_EQ(seen[1].learning_rate, config.learning_rate / 2);
  EXPECT_GT(seen[0].memory_gib, 0.01);
}

TEST(Trainer, LoggingStepsThinOutTheLines) {
  const Scratch scratch;
  CausalLM model = tiny_model();
  TrainConfig config = tiny_config(scratch);
  config.max_steps = 7;
  config.logging_steps = 3;
  Trainer(model, config).run();
  std::vector<int64_t> steps;
  for (const Json& line : lines_of(config.output_dir / "metrics.jsonl"))
    steps.push_back(line["step"]);
  EXPECT_EQ(steps, (std::vector<int64_t>{3, 6, 7}));
}

TEST(Trainer, EvaluationIsTheMeanOverLabelledTokensHoweverRowsAreGrouped) {
  const Scratch scratch;
  CausalLM model = tiny_model();
  TrainConfig config = tiny_config(scratch);
  config.eval_data = write_prepared(scratch / "eval", random_documents({3, 20, 9, 14}, 3, 1));
  double losses[2];
  for (const int64_t rows : {1, 3}) {
    config.per_device_train_batch_size = rows;
    const EvalMetrics metrics = Trainer(model, config).evaluate();
    losses[rows / 3] = metrics.loss;
    EXPECT_EQ(metrics.labelled_tokens, 42);
    EXPECT_DOUBLE_EQ(metrics.perplexity, std::exp(metrics.loss));
  }
  EXPECT_NEAR(losses[0], losses[1], 1e-6 * losses[0]);
  EXPECT_FALSE(model.parameters().front().tensor.grad().defined());
}

TEST(Trainer, ASignalFinishesTheStepSavesAndRestoresTheHandlers) {
  for (const int signal : {SIGTERM, SIGINT}) {
    const Scratch scratch;
    CausalLM model = tiny_model();
    const TrainConfig config = tiny_config(scratch);
    struct sigaction before {
    }, after{};
    sigaction(signal, nullptr, &before);
    Trainer trainer(model, config);
    EXPECT_FALSE(trainer.run([&](const StepMetrics& metrics) {
      if (metrics.step == 2) std::raise(signal);
    }));
    sigaction(signal, nullptr, &after);
    EXPECT_EQ(before.sa_handler, after.sa_handler);
    EXPECT_EQ(trainer.finished_steps(), 2);
    CausalLM other = tiny_model();
    EXPECT_EQ(Trainer(other, config).resumed_step(), 2);
    EXPECT_TRUE(same_bits(copies(model), copies(other)));
  }
}

TEST(Trainer, Bf16TrainsThroughItsMasters) {
  const Scratch scratch;
  CausalLM model = tiny_model(at::kBFloat16);
  TrainConfig config = tiny_config(scratch);
  config.num_train_epochs = 15;
  Trainer trainer(model, config);
  const double first = trainer.step().loss;
  double last = first;
  trainer.run([&](const StepMetrics& metrics) { last = metrics.loss; });
  EXPECT_LT(last, 0.85 * first);
}

}  // namespace
}  // namespace automoe::train
