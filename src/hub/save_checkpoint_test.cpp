#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include <set>

#include "hub/publish.h"
#include "hub/safetensors.h"
#include "hub/test_checkpoints.h"

namespace automoe::hub {
namespace {
namespace fs = std::filesystem;

std::set<std::string> names_in(const fs::path& folder) {
  std::set<std::string> names;
  for (const auto& [name, content] : files_in(folder)) names.insert(name);
  return names;
}

TEST(SaveCheckpoint, ExpertsAreSavedApartAsTheyCameAndLoadBackBitwise) {
  const Scratch folder;
  for (const NameMap& names : {kQwen3Moe, kMixtral})
    for (const int64_t shard_bytes : {1 << 30, 300, 1}) {
      const auto saved = moe_parameters(at::kBFloat16);
      save_checkpoint(folder, names, saved, {.max_shard_bytes = shard_bytes});
      auto loaded = blank(saved);
      load_checkpoint(folder, names, loaded);
      expect_equal(loaded, saved);
      const auto first = files_in(folder);
      save_checkpoint(folder, names, loaded, {.max_shard_bytes = shard_bytes});
      EXPECT_EQ(files_in(folder), first);
      EXPECT_EQ(first.contains(kIndexFile), shard_bytes < (1 << 30));
    }
}

TEST(SaveCheckpoint, NamesOnDiskDependOnTheArchitectureOnlyNotOnTheFilesItCameFrom) {
  const Scratch folder;
  const auto saved = moe_parameters();
  save_checkpoint(folder / "apart", kQwen3Moe, saved);
  save_checkpoint(folder / "fused", {}, saved);
  auto loaded = blank(saved);
  load_checkpoint(folder / "fused", kQwen3Moe, loaded);
  save_checkpoint(folder / "again", kQwen3Moe, loaded);
  EXPECT_EQ(files_in(folder / "again"), files_in(folder / "apart"));
}

TEST(SaveCheckpoint, ParametersThatAreNotContiguousAreWrittenInTheirOrder) {
  const Scratch folder;
  const auto saved = moe_parameters();
  std::vector<NamedTensor> strided;
  for (const auto& [name, tensor] : saved)
    strided.push_back({name, tensor.transpose(0, -1).contiguous().transpose(0, -1)});
  save_checkpoint(folder / "a", kQwen3Moe, saved);
  save_checkpoint(folder / "b", kQwen3Moe, strided);
  EXPECT_EQ(files_in(folder / "b"), files_in(folder / "a"));
}

// What a model does not run, in types that it would not have, and one tensor of over 16 MiB.
std::vector<NamedTensor> tensors_to_carry() {
  return {{"extra.0.weight", random_tensor({5, 3}).to(at::kFloat8_e4m3fn)},
          {"extra.0.scale", random_tensor({})},
          {"extra.1.ids", at::randint(256, {7}).to(at::kByte)},
          {"extra.1.large", at::randint(256, {(17 << 20) + 3}).to(at::kByte)}};
}

TEST(SaveCheckpoint, CarriedTensorsAreSavedBitForBitBesideTheParameters) {
  const Scratch folder;
  const auto saved = moe_parameters(), carried = tensors_to_carry();
  auto all = saved;
  all.insert(all.end(), carried.begin(), carried.end());
  all.push_back({"other.weight", random_tensor({2})});  // not asked for
  for (const int64_t shard_bytes : {1 << 30, 300}) {
    save_checkpoint(folder / "source", kQwen3Moe, all, {.max_shard_bytes = shard_bytes});
    for (const char* target : {"new", "source"}) {
      save_checkpoint(folder / target, kQwen3Moe, saved,
                      {.max_shard_bytes = shard_bytes,
                       .carry = {"extra.{rest}", "model.norm.weight"},  // this one is a parameter
                       .carry_from = folder / "source"});
      auto loaded = blank(saved), again = blank(carried);
      load_checkpoint(folder / target, kQwen3Moe, loaded, {.ignore = {"extra.{rest}"}});
      load_checkpoint(folder / target, {}, again, {.ignore = {"model.{rest}"}});
      expect_equal(loaded, saved);
      expect_equal(again, carried);
    }
  }
}

TEST(SaveCheckpoint, AFolderThatIsGoneCarriesNothingAndFailsNoSave) {
  const Scratch folder;
  const auto saved = moe_parameters();
  testing::internal::CaptureStderr();
  save_checkpoint(folder / "a", kQwen3Moe, saved,
                  {.carry = {"extra.{rest}"}, .carry_from = folder / "gone"});
  EXPECT_SAYS(testing::internal::GetCapturedStderr(), "extra.{rest} cannot be saved along");
  save_checkpoint(folder / "b", kQwen3Moe, saved);
  EXPECT_EQ(files_in(folder / "a"), files_in(folder / "b"));
}

TEST(SaveCheckpoint, StaleShardsGoAndOtherFilesStay) {
  const Scratch folder;
  const auto saved = moe_parameters();
  write_content(folder / "config.json", "{}");
  write_content(folder / "model-notes.safetensors", "mine");
  fs::create_directories(folder / "checkpoint-3");
  save_checkpoint(folder, kQwen3Moe, saved, {.max_shard_bytes = 300});
  EXPECT_GT(names_in(folder).size(), 6u);
  save_checkpoint(folder, kQwen3Moe, saved);
  EXPECT_EQ(names_in(folder),
            (std::set<std::string>{"config.json", "checkpoint-3", "model.safetensors",
                                   "model-notes.safetensors"}));
  save_checkpoint(folder, kQwen3Moe, saved, {.max_shard_bytes = 1000});
  EXPECT_FALSE(fs::exists(folder / kWeightsFile));
  save_checkpoint(folder, kQwen3Moe, {saved[0], saved[3]}, {.max_shard_bytes = 300});
  EXPECT_EQ(names_in(folder),
            (std::set<std::string>{"config.json", "checkpoint-3", "model-notes.safetensors",
                                   kIndexFile, "model-00001-of-00002.safetensors",
                                   "model-00002-of-00002.safetensors"}));
}

TEST(SaveCheckpoint, WhatCannotBeSavedIsNamedAndNothingIsWritten) {
  const Scratch folder;
  const at::Tensor w = random_tensor({2});
  const auto said = [&](const std::vector<NamedTensor>& parameters) {
    return message_of([&] { save_checkpoint(folder / "out", kQwen3Moe, parameters); });
  };
  EXPECT_SAYS(said({{"w", w}, {"tied", w}}),
              "'w' and 'tied' share their memory; list tied weights once");
  EXPECT_SAYS(said({{"w", w}, {"w", random_tensor({2})}}), "parameter 'w' is listed twice");
  EXPECT_SAYS(said({{"w", w.to(at::kComplexDouble)}}), "no type for ComplexDouble");
  EXPECT_SAYS(said({{"model.layers.0.mlp.experts.down_proj", random_tensor({2, 3, 4})},
                    {"model.layers.0.mlp.experts.1.down_proj.weight", random_tensor({3, 4})}}),
              "two parameters would be saved as 'model.layers.0.mlp.experts.1.down_proj.weight'");
  EXPECT_SAYS(message_of([&] {
                save_checkpoint(folder / "out", {}, {{"w", w}}, {.max_shard_bytes = 0});
              }),
              "max_shard_bytes must be positive, found 0");
  EXPECT_TRUE(fs::is_empty(folder));
  write_content(folder / "out", "a file");
  EXPECT_SAYS(said({{"w", w}}), "it is a file, expected a folder");
}

TEST(SaveCheckpoint, TheDiskTooSmallIsFoundBeforeWritingWithBytesNeededAndFree) {
  const Scratch folder;
  save_checkpoint(folder, {}, {{"w", random_tensor({2})}});
  const auto before = files_in(folder);
  const std::vector<NamedTensor> giant{{"w", at::zeros({1}).expand({int64_t{1} << 46})}};
  const std::string message = message_of<RuntimeError>([&] { save_checkpoint(folder, {}, giant); });
  EXPECT_SAYS(message, "not enough room in " + static_cast<const fs::path&>(folder).string() +
                           ": 28147497671");
  EXPECT_SAYS(message, " bytes are needed, ");
  EXPECT_EQ(files_in(folder), before);
}

TEST(SaveCheckpoint, AFileSizeLimitKeepsTheOldWeightsAndLeavesNoTemporaries) {
  const Scratch folder;
  const auto saved = moe_parameters();
  save_checkpoint(folder, kQwen3Moe, saved);
  const auto before = files_in(folder);
  rlimit unlimited{};
  getrlimit(RLIMIT_FSIZE, &unlimited);
  const rlimit limit{.rlim_cur = 1000, .rlim_max = unlimited.rlim_max};
  setrlimit(RLIMIT_FSIZE, &limit);
  const std::string message =
      message_of<RuntimeError>([&] { save_checkpoint(folder, kQwen3Moe, moe_parameters()); });
  setrlimit(RLIMIT_FSIZE, &unlimited);
  EXPECT_SAYS(message, " bytes are needed, this process may write files of at most 1000 bytes");
  EXPECT_EQ(files_in(folder), before);
}

TEST(SaveCheckpoint, AFailureWhileWritingKeepsTheOldWeightsAndLeavesNoTemporaries) {
  const Scratch folder;
  save_checkpoint(folder, {}, {{"w", random_tensor({2})}});
  const auto before = files_in(folder);
  // Memory that cannot be read: the write fails with EFAULT in the middle of the file.
  const at::Tensor unreadable = at::from_blob(reinterpret_cast<void*>(4096), {5}, at::kFloat);
  const std::string message = message_of<RuntimeError>([&] {
    save_checkpoint(folder, {}, {{"v", random_tensor({9})}, {"w", unreadable}});
  });
  EXPECT_SAYS(message, "cannot write ");
  EXPECT_EQ(files_in(folder), before);
}

// A folder's weights for the crash tests: all elements of all parameters hold one number.
std::vector<NamedTensor> filled_with(float value) {
  std::vector<NamedTensor> parameters = moe_parameters();
  for (NamedTensor& parameter : parameters) parameter.tensor.fill_(value);
  return parameters;
}

// The number that every element holds; NaN if they differ.
float number_in(const fs::path& folder) {
  auto loaded = filled_with(-1);
  load_checkpoint(folder, kQwen3Moe, loaded);
  const float first = loaded[0].tensor.flatten()[0].item<float>();
  for (const NamedTensor& parameter : loaded)
    if (!parameter.tensor.eq(first).all().item<bool>()) return std::nanf("");
  return first;
}

// What save_checkpoint has on disk when publication begins, and the steps from there.
std::vector<std::function<void()>> staged(const fs::path& folder, float value,
                                          int64_t shard_bytes) {
  const fs::path elsewhere = folder.string() + "_new";
  save_checkpoint(elsewhere, kQwen3Moe, filled_with(value), {.max_shard_bytes = shard_bytes});
  std::vector<StagedShard> shards;
  for (const std::string& name : names_in(elsewhere)) {
    if (name == kIndexFile) continue;
    StagedShard& shard = shards.emplace_back(StagedShard{temporary_for(folder, name), name, {}});
    fs::rename(elsewhere / name, shard.temporary);
    const SafetensorsFile file(shard.temporary);
    for (const TensorEntry& entry : file.tensors()) shard.tensors.push_back(entry.name);
  }
  fs::remove_all(elsewhere);
  return publication(folder, shards, 0, 0);
}

TEST(SaveCheckpoint, StoppedBetweenAnyTwoStepsTheFolderHoldsAllOldOrAllNewWeights) {
  const Scratch scratch;
  const fs::path folder = scratch / "out";
  for (const int64_t old_shards : {1 << 30, 300, 700})
    for (const int64_t new_shards : {1 << 30, 300}) {
      bool seen_old = false, seen_new = false;
      for (size_t stop = 0, count = 1; stop <= count; ++stop) {
        fs::remove_all(folder);
        save_checkpoint(folder, kQwen3Moe, filled_with(1), {.max_shard_bytes = old_shards});
        const auto steps = staged(folder, 2, new_shards);
        count = steps.size();
        for (size_t i = 0; i < stop; ++i) steps[i]();
        const float found = number_in(folder);
        seen_old = seen_old || found == 1;
        seen_new = seen_new || found == 2;
        EXPECT_TRUE(found == 1 ? !seen_new : found == 2) << found << " after step " << stop;
        // Saving again from there succeeds and leaves nothing behind.
        save_checkpoint(folder, kQwen3Moe, filled_with(3), {.max_shard_bytes = new_shards});
        EXPECT_EQ(number_in(folder), 3);
        for (const std::string& name : names_in(folder))
          EXPECT_FALSE(name.starts_with('.')) << name;
      }
      EXPECT_TRUE(seen_old && seen_new);
    }
}

TEST(SaveCheckpoint, KilledAtRandomMomentsTheFolderLoadsWholeAndSavesAgain) {
  const Scratch scratch;
  const fs::path folder = scratch / "out";
  save_checkpoint(folder, kQwen3Moe, filled_with(0), {.max_shard_bytes = 300});
  for (int round = 0; round < 20; ++round) {
    const pid_t child = fork();
    if (child == 0)
      for (int i = 1;; ++i)
        save_checkpoint(folder, kQwen3Moe, filled_with(float(i)),
                        {.max_shard_bytes = i % 3 == 0   ? 1 << 30
                                            : i % 3 == 1 ? 300
                                                         : 310});
    usleep(useconds_t(3000 + 2700 * round));
    kill(child, SIGKILL);
    waitpid(child, nullptr, 0);
    ASSERT_FALSE(std::isnan(number_in(folder))) << round;
  }
  save_checkpoint(folder, kQwen3Moe, filled_with(7), {.max_shard_bytes = 300});
  EXPECT_EQ(number_in(folder), 7);
  for (const std::string& name : names_in(folder)) EXPECT_FALSE(name.starts_with('.')) << name;
}

TEST(SaveCheckpoint, TemporariesOfTheDeadGoAndThoseOfTheLivingStay) {
  const Scratch folder;
  const pid_t dead = fork();
  if (dead == 0) _exit(0);
  waitpid(dead, nullptr, 0);
  const std::string living = ".automoe-1-5-model.safetensors";
  for (const std::string& name : {living, text(".automoe-", dead, "-5-model.safetensors"),
                                  text(".automoe-", getpid(), "-5-model.safetensors.link")})
    write_content(folder / name, "x");
  save_checkpoint(folder, {}, {{"w", random_tensor({2})}});
  EXPECT_EQ(names_in(folder), (std::set<std::string>{living, kWeightsFile}));
}

}  // namespace
}  // namespace automoe::hub
