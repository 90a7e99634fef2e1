#include <sys/resource.h>

#include "models/model.h"
#include "train/checkpoints.h"
#include "train/run_state.h"
#include "train/test_support.h"

namespace automoe::train {
namespace {

struct Outcome {
  std::vector<double> losses, norms, rates;
  std::vector<at::Tensor> weights;
};

void record(Outcome& outcome, const StepMetrics& metrics) {
  outcome.losses.push_back(metrics.loss);
  outcome.norms.push_back(metrics.grad_norm);
  outcome.rates.push_back(metrics.learning_rate);
}

using MakeModel = std::function<CausalLM()>;

MakeModel full(at::ScalarType dtype) {
  return [dtype] { return tiny_model(dtype); };
}

MakeModel with_adapter(at::ScalarType dtype) {
  return [dtype] {
    CausalLM model = tiny_model(dtype);
    model.add_adapter({.r = 2}, /*seed=*/5);
    return model;
  };
}

Outcome train(const TrainConfig& config, const MakeModel& make_model = full(at::kFloat)) {
  CausalLM model = make_model();
  Trainer trainer(model, config);
  Outcome outcome;
  while (!trainer.done()) record(outcome, trainer.step());
  outcome.weights = copies(model);
  return outcome;
}

// Stops after each of `stops` steps and goes on in a new model, as a new process would.
Outcome train_in_pieces(const TrainConfig& config, const std::vector<int64_t>& stops,
                        const MakeModel& make_model = full(at::kFloat)) {
  Outcome outcome;
  for (const int64_t stop : stops) {
    CausalLM model = make_model();
    Trainer trainer(model, config);
    EXPECT_EQ(trainer.resumed_step(), int64_t(outcome.losses.size()));
    while (trainer.finished_steps() < stop) record(outcome, trainer.step());
    trainer.save_checkpoint();
    outcome.weights = copies(model);
  }
  return outcome;
}

void expect_same_bits(const Outcome& a, const Outcome& b) {
  EXPECT_EQ(a.losses, b.losses);
  EXPECT_EQ(a.norms, b.norms);
  EXPECT_EQ(a.rates, b.rates);
  EXPECT_TRUE(same_bits(a.weights, b.weights));
}

void set_file_size_limit(rlim_t bytes) {
  rlimit limit{};
  getrlimit(RLIMIT_FSIZE, &limit);
  limit.rlim_cur = std::min(bytes, limit.rlim_max);
  setrlimit(RLIMIT_FSIZE, &limit);
}

TEST(Resume, AStopAtAnyStepGivesTheBitsOfAnUnbrokenRun) {
  for (const MakeModel& model : {full(at::kFloat), full(at::kBFloat16), with_adapter(at::kFloat),
                                 with_adapter(at::kBFloat16)}) {
    const Scratch scratch;
    const Outcome unbroken = train(tiny_config(scratch, "unbroken"), model);
    expect_same_bits(train_in_pieces(tiny_config(scratch, "pieces"), {1, 2, 4, 7, 9}, model),
                     unbroken);
  }
  const Scratch scratch;
  TrainConfig unbroken = tiny_config(scratch, "unbroken"), pieces = tiny_config(scratch, "pieces");
  unbroken.optim = pieces.optim = "adamw_bf16";
  expect_same_bits(train_in_pieces(pieces, {1, 2, 4, 7, 9}, full(at::kBFloat16)),
                   train(unbroken, full(at::kBFloat16)));
}

TEST(Resume, MomentsUpdatesAndLearningRateComeBack) {
  const Scratch scratch;
  CausalLM model = tiny_model(at::kBFloat16);
  std::vector<NamedTensor> trained = freeze_and_list_trained(model, {});
  Optimizer saved(trained, {});
  for (int step = 0; step < 3; ++step) {
    for (size_t i = 0; i < trained.size(); ++i)
      trained[i].tensor.mutable_grad() =
          at::full_like(trained[i].tensor.detach(), 0.01 * double(i + 1));
    saved.step(1e-3, {});
  }
  const Progress progress{
      .step = 4, .epoch = 0.5, .updates = 3, .tokens = 100, .labelled_tokens = 60};
  write_checkpoint(scratch / "checkpoint-4", model, saved, progress, {{"seed", 1}}, Json::object());

  CausalLM other = tiny_model(at::kBFloat16);
  Optimizer loaded(freeze_and_list_trained(other, {}), {});
  const Progress back = read_checkpoint(scratch / "checkpoint-4", other, loaded, {{"seed", 1}});
  EXPECT_EQ(back.step, 4);
  EXPECT_EQ(back.epoch, 0.5);
  EXPECT_EQ(back.tokens, 100);
  EXPECT_EQ(back.labelled_tokens, 60);
  EXPECT_EQ(loaded.updates(), 3);
  EXPECT_TRUE(same_bits(copies(other), copies(model)));
  const auto before = saved.state(), after = loaded.state();
  ASSERT_EQ(after.size(), 3 * trained.size());
  for (size_t i = 0; i < before.size(); ++i)
    EXPECT_TRUE(after[i].tensor.equal(before[i].tensor)) << before[i].name;
}

TEST(Resume, AnAdapterIsAllThatItsCheckpointHoldsAndAllThatTrainingChanges) {
  const Scratch scratch;
  const TrainConfig config = tiny_config(scratch, "out");
  CausalLM model = with_adapter(at::kBFloat16)();
  const std::vector<at::Tensor> before = copies(model);
  Trainer trainer(model, config);
  for (int step = 0; step < 3; ++step) trainer.step();
  const fs::path saved = trainer.save_checkpoint();
  EXPECT_TRUE(fs::exists(saved / "adapter_model.safetensors"));
  EXPECT_TRUE(fs::exists(saved / "adapter_config.json"));
  EXPECT_FALSE(fs::exists(saved / "model.safetensors"));
  const std::vector<at::Tensor> after = copies(model);
  for (size_t i = 0; i < before.size(); ++i) {
    const bool is_adapter = model.parameters()[i].name.find(".lora_") != std::string::npos;
    EXPECT_EQ(after[i].equal(before[i]), !is_adapter) << model.parameters()[i].name;
  }
}

TEST(Resume, AModelMayBeMergedWhileItsTrainerLives) {
  const Scratch scratch;
  CausalLM model = with_adapter(at::kFloat)();
  {
    Trainer trainer(model, tiny_config(scratch, "out"));
    trainer.step();
    model.merge_adapter();
  }
  for (const NamedTensor& parameter : model.parameters())
    EXPECT_TRUE(parameter.tensor.requires_grad()) << parameter.name;
}

TEST(Resume, AnotherRankIsAnErrorThatNamesIt) {
  const Scratch scratch;
  const TrainConfig config = tiny_config(scratch, "out");
  train_in_pieces(config, {2}, with_adapter(at::kFloat));
  CausalLM other = tiny_model();
  other.add_adapter({.r = 4});
  EXPECT_SAYS(message_of([&] { Trainer(other, config); }), "lora was");
}

TEST(Resume, ACheckpointIsAModelFolder) {
  const Scratch scratch;
  CausalLM model = tiny_model();
  Trainer trainer(model, tiny_config(scratch));
  trainer.step();
  const CausalLM loaded = CausalLM::from_pretrained(trainer.save_checkpoint());
  EXPECT_TRUE(same_bits(copies(loaded), copies(model)));
}

TEST(Resume, OtherDataOrSettingsAreAnErrorThatNamesEachDifference) {
  const Scratch scratch;
  TrainConfig config = tiny_config(scratch);
  train_in_pieces(config, {2});
  const auto fault = [&](const TrainConfig& changed) {
    CausalLM model = tiny_model();
    const auto before = copies(model);
    const std::string said = message_of([&] { Trainer(model, changed); });
    EXPECT_TRUE(same_bits(copies(model), before));
    return said;
  };
  TrainConfig other = config;
  other.learning_rate = 1e-4;
  other.seed = 3;
  EXPECT_SAYS(fault(other), "learning_rate was 0.003 and is 0.0001; seed was 42 and is 3");
  other = config;
  other.gradient_accumulation_steps = 3;
  EXPECT_SAYS(fault(other), "rows_per_step was 2 and is 3");
  other = config;
  other.max_steps = 99;
  EXPECT_SAYS(fault(other), "total_steps was 9 and is 99");
  other = config;
  other.train_data = write_prepared(scratch / "other", random_documents({5, 6, 7}, 9));
  EXPECT_SAYS(fault(other), "train_data was \"11 documents, 132 tokens, hash");
  CausalLM half = tiny_model(at::kBFloat16);
  EXPECT_SAYS(message_of([&] { Trainer(half, config); }),
              "dtype was \"Float\" and is \"BFloat16\"");
}

TEST(Resume, TheSplitOfAStepAndTheDataFolderMayChange) {
  const Scratch scratch;
  TrainConfig config = tiny_config(scratch);
  train_in_pieces(config, {2});
  fs::rename(config.train_data, scratch / "moved");
  config.train_data = scratch / "moved";
  config.per_device_train_batch_size = 2;
  config.gradient_accumulation_steps = 1;
  CausalLM model = tiny_model();
  EXPECT_EQ(Trainer(model, config).resumed_step(), 2);
}

TEST(Resume, AConstantRateMayGoOnForMoreSteps) {
  const Scratch scratch;
  TrainConfig config = tiny_config(scratch);
  config.lr_scheduler_type = "constant";
  config.max_steps = 4;
  train(config);
  train_in_pieces(config, {4});
  config.max_steps = 6;
  CausalLM model = tiny_model();
  Trainer trainer(model, config);
  EXPECT_EQ(trainer.resumed_step(), 4);
  EXPECT_TRUE(trainer.run());
}

TEST(Resume, IncompleteFoldersAreSkippedWithAMessageAndLeftoversRemoved) {
  const Scratch scratch;
  const TrainConfig config = tiny_config(scratch);
  train_in_pieces(config, {2});
  fs::copy(config.output_dir / "checkpoint-2", config.output_dir / "checkpoint-3",
           fs::copy_options::recursive);
  fs::resize_file(config.output_dir / "checkpoint-3" / "model.safetensors", 1000);
  fs::create_directories(config.output_dir / "checkpoint-4");
  fs::create_directories(config.output_dir / ".checkpoint-5.tmp-999999999");
  fs::create_directories(config.output_dir / ".removing-checkpoint-1");
  CausalLM model = tiny_model();
  testing::internal::CaptureStderr();
  Trainer trainer(model, config);
  const std::string said = testing::internal::GetCapturedStderr();
  EXPECT_EQ(trainer.resumed_step(), 2);
  EXPECT_SAYS(said,
              "checkpoint-3, which is incomplete: model.safetensors has 1000 bytes instead of");
  EXPECT_SAYS(said, "checkpoint-4, which is incomplete: it has no trainer_state.json");
  EXPECT_SAYS(said, "resumed from");
  EXPECT_FALSE(fs::exists(config.output_dir / ".checkpoint-5.tmp-999999999"));
  EXPECT_FALSE(fs::exists(config.output_dir / ".removing-checkpoint-1"));
  trainer.step();
  trainer.save_checkpoint();  // over the incomplete one
  EXPECT_EQ(missing_in(config.output_dir / "checkpoint-3"), "");
}

TEST(Resume, MetricsLinesBeyondTheCheckpointAreDropped) {
  const Scratch scratch;
  const TrainConfig config = tiny_config(scratch);
  {
    CausalLM model = tiny_model();
    Trainer trainer(model, config);
    trainer.step();
    trainer.save_checkpoint();
    trainer.step();
    trainer.step();
  }
  CausalLM model = tiny_model();
  Trainer trainer(model, config);
  trainer.run();
  std::ifstream in(config.output_dir / "metrics.jsonl");
  std::vector<int64_t> steps;
  for (std::string line; std::getline(in, line);) steps.push_back(parse_json(line, "line")["step"]);
  EXPECT_EQ(steps, (std::vector<int64_t>{1, 2, 3, 4, 5, 6, 7, 8, 9}));
}

TEST(Resume, ANamedFolderIsTakenAndNeverStartsAfresh) {
  const Scratch scratch;
  TrainConfig config = tiny_config(scratch);
  train_in_pieces(config, {2, 5});
  CausalLM model = tiny_model();
  TrainConfig elsewhere = tiny_config(scratch, "elsewhere");
  elsewhere.resume_from_checkpoint = (config.output_dir / "checkpoint-2").string();
  EXPECT_EQ(Trainer(model, elsewhere).resumed_step(), 2);
  elsewhere.resume_from_checkpoint = "never";
  EXPECT_EQ(Trainer(model, elsewhere).resumed_step(), 0);
  elsewhere.resume_from_checkpoint = "latest";
  EXPECT_SAYS(message_of([&] { Trainer(model, elsewhere); }),
              "must be auto, never or a checkpoint folder");
  for (const std::string& earlier :
       {std::string("never"), (config.output_dir / "checkpoint-2").string()}) {
    config.resume_from_checkpoint = earlier;
    EXPECT_SAYS(message_of([&] { Trainer(model, config); }), "holds checkpoint-5, later than step");
  }
}

TEST(Checkpoints, OnlyTheNewestAreKept) {
  for (const auto& [limit, expected] :
       std::vector<std::pair<int64_t, std::vector<int64_t>>>{{2, {8, 9}}, {0, {2, 4, 6, 8, 9}}}) {
    const Scratch scratch;
    TrainConfig config = tiny_config(scratch);
    config.save_steps = 2;
    config.save_total_limit = limit;
    CausalLM model = tiny_model();
    EXPECT_TRUE(Trainer(model, config).run());
    std::vector<int64_t> steps;
    for (const CheckpointFolder& found : list_checkpoints(config.output_dir))
      steps.push_back(found.step);
    EXPECT_EQ(steps, expected);
  }
}

TEST(Checkpoints, ASaveThatDoesNotFitLeavesTheOldOneAndTellsTheBytes) {
  const Scratch scratch;
  const TrainConfig config = tiny_config(scratch);
  CausalLM model = tiny_model();
  Trainer trainer(model, config);
  trainer.step();
  trainer.save_checkpoint();
  const auto saved = copies(model);
  trainer.step();
  set_file_size_limit(50'000);
  const std::string said = message_of<RuntimeError>([&] { trainer.save_checkpoint(); });
  set_file_size_limit(RLIM_INFINITY);
  EXPECT_SAYS(said, "checkpoint-2, which needs");
  EXPECT_SAYS(said, "are free");
  EXPECT_SAYS(said, "older checkpoints are as they were");
  for (const auto& entry : fs::directory_iterator(config.output_dir))
    EXPECT_TRUE(entry.path().filename() == "checkpoint-1" ||
                entry.path().filename() == "metrics.jsonl")
        << entry.path();
  CausalLM other = tiny_model();
  EXPECT_EQ(Trainer(other, config).resumed_step(), 1);
  EXPECT_TRUE(same_bits(copies(other), saved));
  EXPECT_TRUE(fs::exists(trainer.save_checkpoint()));
}

// DeepSeek-V3, whose router has a buffer, with a prediction layer that the engine does not run.
TEST(Resume, BuffersStayAsTheyAreAndWhatAModelCarriesIsInEveryCheckpoint) {
  const Scratch scratch;
  const Json config = models::families().at("DeepseekV3ForCausalLM").tiny_config;
  const std::string bias = "model.layers.1.mlp.gate.e_score_correction_bias";
  const NamedTensor carried{"model.layers.2.eh_proj.weight", at::randn({5, 3})};
  CausalLM start = CausalLM::from_config(config.dump(), /*seed=*/7);
  for (const NamedTensor& parameter : start.parameters())
    if (parameter.name == bias) parameter.tensor.copy_(at::linspace(-0.2, 0.2, 8));
  start.save_pretrained(scratch / "model");
  std::vector<NamedTensor> all = start.parameters();
  all.push_back(carried);
  save_checkpoint(scratch / "model", start.name_map(), all);
  const auto make_model = [&] { return CausalLM::from_pretrained(scratch / "model"); };

  const Outcome whole = train(tiny_config(scratch, "whole"), make_model);
  const Outcome pieces = train_in_pieces(tiny_config(scratch, "pieces"), {3, 7, 9}, make_model);
  for (size_t i = 0; i < pieces.losses.size(); ++i) EXPECT_EQ(pieces.losses[i], whole.losses[i]);
  const CausalLM last = CausalLM::from_pretrained(scratch / "pieces" / "checkpoint-9");
  for (size_t i = 0; i < last.parameters().size(); ++i) {
    const auto& [name, tensor] = last.parameters()[i];
    EXPECT_TRUE(tensor.equal(pieces.weights[i])) << name;
    EXPECT_EQ(tensor.equal(start.parameters()[i].tensor), name == bias) << name;
  }
  std::vector<NamedTensor> found{{carried.name, at::zeros({5, 3})}};
  load_checkpoint(scratch / "pieces" / "checkpoint-9", {}, found,
                  {.ignore = {"model.layers.0.{rest}", "model.layers.1.{rest}",
                              "model.{embed_tokens,norm}.weight", "lm_head.weight"}});
  EXPECT_TRUE(found[0].tensor.equal(carried.tensor));
}

}  // namespace
}  // namespace automoe::train
