#include "train/train_state.h"

#include <numeric>
#include <system_error>

#include "core/file.h"
#include "core/text.h"
#include "train/checkpoints.h"

namespace automoe::train {
namespace fs = std::filesystem;
namespace {

constexpr const char* kOptimizerFolder = "optimizer";
constexpr uint64_t kSmallFilesBytes = 64 << 20;  // room for tokenizer, config and headers

uint64_t bytes_of(const std::vector<NamedTensor>& tensors) {
  return std::accumulate(
      tensors.begin(), tensors.end(), uint64_t{0},
      [](uint64_t sum, const NamedTensor& entry) { return sum + entry.tensor.nbytes(); });
}

// With an adapter nothing else is saved.
std::vector<NamedTensor> saved_with(const CausalLM& model) {
  std::vector<NamedTensor> saved = model.parameters();
  if (model.adapter())
    std::erase_if(saved, [](const NamedTensor& p) { return !p.tensor.requires_grad(); });
  return saved;
}

Json state_json(const fs::path& folder, const Progress& progress, const Json& settings,
                const Json& config) {
  Json files = Json::object();
  for (const auto& [name, bytes] : files_of(folder)) files[name] = bytes;
  return Json{{"global_step", progress.step},
              {"epoch", progress.epoch},
              {"num_input_tokens_seen", progress.tokens},
              {"num_labelled_tokens_seen", progress.labelled_tokens},
              {"updates", progress.updates},
              {"settings", settings},
              {"config", config},
              {"files", files}};
}

void fill(const fs::path& folder, const CausalLM& model, const Optimizer& optimizer,
          const Progress& progress, const Json& settings, const Json& config) {
  model.save_pretrained(folder);
  fs::create_directory(folder / kOptimizerFolder);
  if (const auto state = optimizer.state(); !state.empty())
    save_checkpoint(folder / kOptimizerFolder, {}, state);
  write_file_atomically(folder / kStateFile,
                        state_json(folder, progress, settings, config).dump(2) + "\n");
}

// "learning_rate was 1e-05 and is 2e-05", for each setting that differs.
std::vector<std::string> differences(const Json& before, const Json& now) {
  std::vector<std::string> out;
  for (const auto& [key, value] : now.items()) {
    const auto found = before.find(key);
    if (found == before.end() || *found != value)
      out.push_back(text(key, " was ", found == before.end() ? "absent" : found->dump(), " and is ",
                         value.dump()));
  }
  return out;
}

}  // namespace

void write_checkpoint(const fs::path& folder, const CausalLM& model, const Optimizer& optimizer,
                      const Progress& progress, const Json& settings, const Json& config) {
  const uint64_t needed =
      bytes_of(saved_with(model)) + bytes_of(optimizer.state()) + kSmallFilesBytes;
  require_free_space(folder, needed);
  try {
    StagedFolder staged(folder);
    fill(staged.path(), model, optimizer, progress, settings, config);
    staged.commit();
  } catch (const std::exception& error) {
    std::error_code unknown;
    const fs::space_info space = fs::space(folder.parent_path(), unknown);
    throw RuntimeError(text("[checkpoint] cannot save ", folder.string(), ", which needs ", needed,
                            " bytes, ",
                            unknown ? std::string("unknown") : std::to_string(space.available),
                            " are free: ", error.what(), "; older checkpoints are as they were"));
  }
}

Progress read_checkpoint(const fs::path& folder, CausalLM& model, Optimizer& optimizer,
                         const Json& settings) {
  const Json state = read_json(folder / kStateFile);
  const auto differing = differences(value_or<Json>(state, "settings", Json::object()), settings);
  AUTOMOE_CHECK_VALUE(differing.empty(), "[resume] ", folder.string(),
                      " belongs to another run: ", join(differing, "; "),
                      ". Set that back, or start afresh with resume_from_checkpoint = never ",
                      "and another output_dir");
  Progress progress{.step = require<int64_t>(state, "global_step"),
                    .epoch = require<double>(state, "epoch"),
                    .updates = require<int64_t>(state, "updates"),
                    .tokens = require<int64_t>(state, "num_input_tokens_seen"),
                    .labelled_tokens = require<int64_t>(state, "num_labelled_tokens_seen")};
  if (model.adapter())
    model.load_adapter(folder);
  else
    model.load_weights(folder);
  if (const auto moments = optimizer.state(); !moments.empty())
    load_checkpoint(folder / kOptimizerFolder, {}, moments);
  optimizer.set_updates(progress.updates);
  return progress;
}

}  // namespace automoe::train
