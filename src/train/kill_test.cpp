// kill -9 at any moment of training and saving. Each run is a child process of the test's.
#include <ATen/Parallel.h>
#include <fcntl.h>
#include <sys/wait.h>

#include <chrono>
#include <csignal>
#include <thread>

#include "train/checkpoints.h"
#include "train/test_support.h"

namespace automoe::train {
namespace {

using Clock = std::chrono::steady_clock;
using namespace std::chrono_literals;

constexpr int kKills = 20;
constexpr int64_t kSteps = 400;  // far more than pass between the kills, on a fast machine too

// One thread: the thread pool of the parent does not survive a fork.
pid_t start(const std::function<void()>& work) {
  const pid_t child = fork();
  if (child != 0) return child;
  at::set_num_threads(1);
  const int log = ::open("/dev/null", O_WRONLY);
  ::dup2(log, STDERR_FILENO);
  try {
    work();
    _exit(0);
  } catch (const std::exception& error) {
    std::printf("child: %s\n", error.what());
    std::fflush(stdout);
    _exit(1);
  }
}

bool ended_well(pid_t child) {
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

// Whether SIGKILL ended it; false if it had ended well before.
bool kill_now(pid_t child) {
  ::kill(child, SIGKILL);
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT_TRUE(WIFSIGNALED(status) || WEXITSTATUS(status) == 0);
  return WIFSIGNALED(status);
}

// Waits until condition() or the child ends.
void wait_until(pid_t child, const std::function<bool()>& condition) {
  siginfo_t info{};
  while (!condition()) {
    waitid(P_PID, id_t(child), &info, WEXITED | WNOHANG | WNOWAIT);
    if (info.si_pid == child) return;
    std::this_thread::sleep_for(200us);
  }
}

bool has_leftover(const fs::path& output) {
  std::error_code vanished;
  for (auto entry = fs::directory_iterator(output, vanished);
       !vanished && entry != fs::directory_iterator(); entry.increment(vanished))
    if (entry->path().filename().string().starts_with(".checkpoint-")) return true;
  return false;
}

int64_t count_lines(const fs::path& file) {
  const std::string content = content_of(file);
  return std::count(content.begin(), content.end(), '\n');
}

void train_to_the_end(const TrainConfig& config) {
  CausalLM model = tiny_model();
  Trainer(model, config).run();
}

// What is a pure function of the run: no times, no memory.
std::string curve_of(const fs::path& output) {
  std::ifstream in(output / "metrics.jsonl");
  std::string curve;
  for (std::string line; std::getline(in, line);) {
    Json entry = parse_json(line, "line");
    for (const char* key : {"seconds", "tokens_per_second", "memory_gib"}) entry.erase(key);
    curve += entry.dump() + "\n";
  }
  return curve;
}

TEST(KillNine, TwentyKillsOfTrainingAndSavingEndInTheBitsOfAnUnbrokenRun) {
  const Scratch scratch;
  TrainConfig config = tiny_config(scratch, "killed");
  config.max_steps = kSteps;
  config.save_steps = 3;
  int kills = 0;
  for (uint64_t attempt = 0; kills < kKills && attempt < 3 * kKills; ++attempt) {
    const fs::path metrics = config.output_dir / "metrics.jsonl";
    const int64_t wanted = int64_t(random_below(1, attempt, 6));
    const auto delay = std::chrono::microseconds(random_below(2, attempt, 20'000));
    const pid_t child = start([&] { train_to_the_end(config); });
    const int64_t before = count_lines(metrics);
    wait_until(child, [&] { return count_lines(metrics) >= before + wanted; });
    std::this_thread::sleep_for(delay);
    kills += kill_now(child);
    const auto all = list_checkpoints(config.output_dir);
    for (const CheckpointFolder& found : all) EXPECT_EQ(missing_in(found.path), "") << found.path;
  }
  EXPECT_EQ(kills, kKills);
  ASSERT_TRUE(ended_well(start([&] { train_to_the_end(config); })));

  const TrainConfig killed = config;
  config.output_dir = scratch / "unbroken";
  ASSERT_TRUE(ended_well(start([&] { train_to_the_end(config); })));
  EXPECT_EQ(count_lines(config.output_dir / "metrics.jsonl"), kSteps);
  EXPECT_EQ(curve_of(killed.output_dir), curve_of(config.output_dir));
  const auto last = [](const TrainConfig& run) { return checkpoint_path(run.output_dir, kSteps); };
  for (const char* file : {"model.safetensors", "optimizer/model.safetensors"})
    EXPECT_EQ(content_of(last(killed) / file), content_of(last(config) / file)) << file;
}

// 13 MB of weights and moments: a save takes long enough to be hit anywhere.
CausalLM slow_to_save() {
  Json json = parse_json(kTinyQwen3Moe, "config");
  json["vocab_size"] = 16384;
  return CausalLM::from_config(json.dump(), /*seed=*/7);
}

TEST(KillNine, TwentyKillsInsideASaveLeaveACompleteCheckpointAndTheStepCanBeSavedAgain) {
  const Scratch scratch;
  TrainConfig config = tiny_config(scratch, "killed");
  config.max_steps = 1000;  // more than the saves that get away
  const auto step_and_save = [&](int64_t expected) {
    CausalLM model = slow_to_save();
    Trainer trainer(model, config);
    AUTOMOE_CHECK(trainer.resumed_step() == expected, "resumed at ", trainer.resumed_step(),
                  " instead of ", expected);
    trainer.step();
    trainer.save_checkpoint();
  };
  ASSERT_TRUE(ended_well(start([&] { step_and_save(0); })));
  Clock::time_point began;
  pid_t child = start([&] { step_and_save(1); });
  wait_until(child, [&] { return has_leftover(config.output_dir); });
  began = Clock::now();
  ASSERT_TRUE(ended_well(child));
  int64_t save_time =
      std::chrono::duration_cast<std::chrono::microseconds>(Clock::now() - began).count();

  int kills_inside = 0;
  int64_t newest = 2;
  for (uint64_t attempt = 0; kills_inside < kKills && attempt < 20 * kKills; ++attempt) {
    child = start([&] { step_and_save(newest); });
    wait_until(child, [&] { return has_leftover(config.output_dir); });
    std::this_thread::sleep_for(
        std::chrono::microseconds(random_below(3, attempt, uint64_t(save_time))));
    const bool inside = kill_now(child) && has_leftover(config.output_dir);
    kills_inside += inside;
    // The machine's load changes: a save that got away was faster than thought.
    if (!inside) save_time = std::max<int64_t>(save_time * 3 / 4, 1);
    const auto all = list_checkpoints(config.output_dir);
    ASSERT_FALSE(all.empty());
    for (const CheckpointFolder& found : all) EXPECT_EQ(missing_in(found.path), "") << found.path;
    newest = all.back().step;
  }
  EXPECT_EQ(kills_inside, kKills);
  ASSERT_TRUE(ended_well(start([&] { step_and_save(newest); })));
  EXPECT_EQ(missing_in(checkpoint_path(config.output_dir, newest + 1)), "");
  EXPECT_FALSE(has_leftover(config.output_dir));
}

}  // namespace
}  // namespace automoe::train
