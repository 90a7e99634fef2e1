#include "train/test_support.h"

namespace automoe::train {
namespace {

std::string fault_of(const std::string& json) {
  return message_of([&] { TrainConfig::from_json(json); });
}

TEST(TrainConfig, EveryFieldSurvivesJson) {
  TrainConfig config;
  config.train_data = "a b/train";
  config.eval_data = "eval";
  config.output_dir = "out";
  config.packing = false;
  config.router_aux_loss = true;
  config.freeze = {"embed", "lm_head"};
  config.seed = UINT64_MAX;
  config.learning_rate = 1.0 / 3;
  config.resume_from_checkpoint = "never";
  const TrainConfig back = TrainConfig::from_json(config.to_json());
  EXPECT_EQ(back.to_json(), config.to_json());
  EXPECT_EQ(back.seed, UINT64_MAX);
  EXPECT_EQ(back.learning_rate, 1.0 / 3);
  EXPECT_EQ(back.router_aux_loss, true);
  EXPECT_EQ(back.freeze, config.freeze);
}

TEST(TrainConfig, AbsentKeysKeepTheirDefaults) {
  EXPECT_EQ(TrainConfig::from_json("{}").to_json(), TrainConfig().to_json());
}

TEST(TrainConfig, AWholeNumberMayBeSpelledAsAFloat) {
  EXPECT_EQ(TrainConfig::from_json(R"({"max_steps": 1e3})").max_steps, 1000);
}

TEST(TrainConfig, AnUnknownKeyNamesTheNearestKnownOne) {
  EXPECT_SAYS(fault_of(R"({"learning_rat": 1})"),
              "unknown key 'learning_rat' in the config. Did you mean 'learning_rate'?");
}

TEST(TrainConfig, AWrongTypeNamesKeyExpectationAndValue) {
  EXPECT_SAYS(fault_of(R"({"learning_rate": "1e-5"})"),
              "learning_rate must be a number, got \"1e-5\"");
  EXPECT_SAYS(fault_of(R"({"max_steps": 1.5})"), "max_steps must be a whole number, got 1.5");
  EXPECT_SAYS(fault_of(R"({"max_length": 1e300})"), "max_length must be a whole number");
  EXPECT_SAYS(fault_of(R"({"seed": -1})"), "seed must be a whole number of at least 0, got -1");
  EXPECT_SAYS(fault_of(R"({"packing": 1})"), "packing must be true or false, got 1");
  EXPECT_SAYS(fault_of(R"({"freeze": "embed"})"), "freeze must be a list of texts");
  EXPECT_SAYS(fault_of("[]"), "must be a JSON object");
}

TEST(TrainConfig, AnImpossibleValueNamesKeyValueAndWhatIsAllowed) {
  for (const auto& [json, expected] : std::vector<std::pair<std::string, std::string>>{
           {R"({"learning_rate": 0})", "learning_rate must be above 0, got 0"},
           {R"({"max_length": 1})", "max_length must be at least 2, got 1"},
           {R"({"max_steps": 0})", "max_steps must be above 0, or -1 for epochs, got 0"},
           {R"({"adam_beta2": 1})", "adam_beta2 must be from 0 to below 1, got 1"},
           {R"({"warmup_ratio": 1.1})", "warmup_ratio must be from 0 to 1, got 1.1"},
           {R"({"optim": "sgd"})", "optim must be one of adamw, adamw_bf16, got 'sgd'"},
           {R"({"lr_scheduler_type": "cosin"})", "Did you mean 'cosine'?"},
           {R"({"recompute": "all"})", "recompute must be one of none, norms, layer, got 'all'"},
           {R"({"save_steps": -1})", "save_steps must be at least 0, got -1"},
           {R"({"gradient_accumulation_steps": 0})",
            "gradient_accumulation_steps must be at least 1, got 0"},
           {R"({"eval_steps": 5})", "there is no eval_data"},
           {R"({"resume_from_checkpoint": ""})", "must be auto, never or a checkpoint folder"}})
    EXPECT_SAYS(fault_of(json), expected);
}

}  // namespace
}  // namespace automoe::train
