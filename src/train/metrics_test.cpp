#include "train/metrics.h"

#include "train/test_support.h"

namespace automoe::train {
namespace {

TEST(Metrics, ALineHoldsEveryNumberToTheBitAndSumsUpTheExperts) {
  StepMetrics metrics;
  metrics.step = 3;
  metrics.loss = 1.0 / 3;
  metrics.tokens = 10;
  metrics.seconds = 4;
  metrics.expert_load = {{4, 0, 2, 2}, {2, 2, 2, 2}};
  const Json line = parse_json(step_line(metrics), "line");
  EXPECT_EQ(line["loss"].get<double>(), 1.0 / 3);
  EXPECT_EQ(line["tokens_per_second"].get<double>(), 2.5);
  EXPECT_EQ(line["expert_max_over_mean"].get<std::vector<double>>(), (std::vector<double>{2, 1}));
  EXPECT_EQ(line["dead_experts"].get<std::vector<int64_t>>(), (std::vector<int64_t>{1, 0}));
  EXPECT_EQ(line["expert_load"].get<std::vector<std::vector<int64_t>>>(), metrics.expert_load);
  EXPECT_FALSE(parse_json(step_line(StepMetrics()), "line").contains("dead_experts"));
}

TEST(Metrics, LinesBeyondAStepAndCutLinesAreDropped) {
  const Scratch scratch;
  const fs::path file = scratch / "metrics.jsonl";
  for (int64_t step = 1; step <= 4; ++step) append_line(file, text("{\"step\":", step, "}"));
  append_line(file, R"({"step":2,"eval_loss":1.5})");
  write_content(scratch / "cut", content_of(file) + "{\"step\":1,\"lo");
  keep_lines_until(scratch / "cut", 2);
  EXPECT_EQ(content_of(scratch / "cut"),
            "{\"step\":1}\n{\"step\":2}\n{\"step\":2,\"eval_loss\":1.5}\n");
  keep_lines_until(file, 9);
  EXPECT_EQ(content_of(file).size(), 4 * 11 + 27u);
  keep_lines_until(scratch / "absent", 2);
  EXPECT_FALSE(fs::exists(scratch / "absent"));
}

}  // namespace
}  // namespace automoe::train
