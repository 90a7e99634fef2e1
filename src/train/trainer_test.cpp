#include <ATen/core/grad_mode.h>

#include <cmath>
#include <csignal>

#include "train/test_support.h"
#include "train/train_step.h"

namespace automoe::train {
namespace {

std::vector<double> losses_of(Trainer& trainer, int64_t steps) {
  std::vector<double> losses;
  for (int64_t i = 0; i < steps; ++i) losses.push_back(trainer.step().loss);
  return losses;
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

}  // namespace
}  // namespace automoe::train
