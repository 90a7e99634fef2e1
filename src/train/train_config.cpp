#include "train/train_config.h"

#include <algorithm>
#include <cmath>

#include "core/json.h"
#include "core/text.h"
#include "train/schedule.h"

namespace automoe {
namespace {

namespace fs = std::filesystem;

[[noreturn]] void wrong_type(const std::string& key, const char* expected, const Json& found) {
  throw ValueError(text("[train] ", key, " must be ", expected, ", got ", found.dump()));
}

void read(const std::string& key, const Json& json, std::string& value) {
  if (!json.is_string()) wrong_type(key, "text", json);
  value = json.get<std::string>();
}

void read(const std::string& key, const Json& json, fs::path& value) {
  if (!json.is_string()) wrong_type(key, "a path", json);
  value = json.get<std::string>();
}

void read(const std::string& key, const Json& json, bool& value) {
  if (!json.is_boolean()) wrong_type(key, "true or false", json);
  value = json.get<bool>();
}

void read(const std::string& key, const Json& json, double& value) {
  if (!json.is_number()) wrong_type(key, "a number", json);
  value = json.get<double>();
}

// Whole numbers may be spelled as floats, like 1e3.
void read(const std::string& key, const Json& json, int64_t& value) {
  const bool whole = json.is_number_float() && std::abs(json.get<double>()) < 9e15 &&
                     json.get<double>() == std::floor(json.get<double>());
  const bool fits = json.is_number_unsigned() ? json.get<uint64_t>() <= uint64_t(INT64_MAX)
                                              : json.is_number_integer();
  if (!whole && !fits) wrong_type(key, "a whole number", json);
  value = whole ? int64_t(json.get<double>()) : json.get<int64_t>();
}

void read(const std::string& key, const Json& json, uint64_t& value) {
  if (!json.is_number_unsigned()) wrong_type(key, "a whole number of at least 0", json);
  value = json.get<uint64_t>();
}

void read(const std::string& key, const Json& json, std::optional<bool>& value) {
  if (json.is_null())
    value.reset();
  else
    read(key, json, value.emplace());
}

void read(const std::string& key, const Json& json, std::vector<std::string>& value) {
  if (!json.is_array()) wrong_type(key, "a list of texts", json);
  value.clear();
  for (const Json& item : json) read(key, item, value.emplace_back());
}

template <typename T>
Json written(const T& value) {
  if constexpr (std::is_same_v<T, fs::path>)
    return value.string();
  else if constexpr (std::is_same_v<T, std::optional<bool>>)
    return value ? Json(*value) : Json(nullptr);
  else
    return value;
}

}  // namespace

TrainConfig TrainConfig::from_json(const std::string& json) {
  const Json object = parse_json(json, "the training config");
  AUTOMOE_CHECK_VALUE(object.is_object(), "[train] the config must be a JSON object, got ",
                      object.dump());
  TrainConfig config;
  std::vector<std::string> known;
  train::each_field(config, [&](const char* key, auto& value) {
    known.emplace_back(key);
    if (const auto found = object.find(key); found != object.end()) read(key, *found, value);
  });
  for (const auto& [key, value] : object.items())
    AUTOMOE_CHECK_VALUE(std::find(known.begin(), known.end(), key) != known.end(),
                        "[train] unknown key '", key, "' in the config.", did_you_mean(key, known),
                        " Known: ", join(known));
  train::check_config(config);
  return config;
}

std::string TrainConfig::to_json() const {
  Json object = Json::object();
  train::each_field(*this,
                    [&](const char* key, const auto& value) { object[key] = written(value); });
  return object.dump(2);
}

namespace train {
namespace {

template <typename T>
void require(bool allowed, const char* key, const T& value, const std::string& expected) {
  AUTOMOE_CHECK_VALUE(allowed, "[train] ", key, " must be ", expected, ", got ", value);
}

void require_one_of(const char* key, const std::string& value,
                    const std::vector<std::string>& allowed) {
  AUTOMOE_CHECK_VALUE(std::find(allowed.begin(), allowed.end(), value) != allowed.end(), "[train] ",
                      key, " must be one of ", join(allowed), ", got '", value, "'.",
                      did_you_mean(value, allowed));
}

void require_ratio(const char* key, double value) {
  require(value >= 0 && value <= 1, key, value, "from 0 to 1");
}

void require_at_least(const char* key, int64_t value, int64_t least) {
  require(value >= least, key, value, text("at least ", least));
}

}  // namespace

void check_config(const TrainConfig& config) {
  require_at_least("max_length", config.max_length, 2);
  require_at_least("per_device_train_batch_size", config.per_device_train_batch_size, 1);
  require_at_least("gradient_accumulation_steps", config.gradient_accumulation_steps, 1);
  require(config.num_train_epochs > 0 && std::isfinite(config.num_train_epochs), "num_train_epochs",
          config.num_train_epochs, "above 0");
  require(config.max_steps == -1 || config.max_steps > 0, "max_steps", config.max_steps,
          "above 0, or -1 for epochs");
  require_one_of("optim", config.optim, {"adamw", "adamw_bf16"});
  require(config.learning_rate > 0 && std::isfinite(config.learning_rate), "learning_rate",
          config.learning_rate, "above 0");
  require(config.weight_decay >= 0 && std::isfinite(config.weight_decay), "weight_decay",
          config.weight_decay, "at least 0");
  require(config.adam_beta1 >= 0 && config.adam_beta1 < 1, "adam_beta1", config.adam_beta1,
          "from 0 to below 1");
  require(config.adam_beta2 >= 0 && config.adam_beta2 < 1, "adam_beta2", config.adam_beta2,
          "from 0 to below 1");
  require(config.adam_epsilon > 0, "adam_epsilon", config.adam_epsilon, "above 0");
  require(!std::isnan(config.max_grad_norm), "max_grad_norm", config.max_grad_norm,
          "a number; 0 for no clipping");
  require_one_of("lr_scheduler_type", config.lr_scheduler_type, schedule_names());
  require_at_least("warmup_steps", config.warmup_steps, 0);
  require_ratio("warmup_ratio", config.warmup_ratio);
  require_ratio("decay_ratio", config.decay_ratio);
  require_ratio("min_lr_ratio", config.min_lr_ratio);
  require_one_of("recompute", config.recompute, {"none", "norms", "layer"});
  require_at_least("logging_steps", config.logging_steps, 1);
  require_at_least("eval_steps", config.eval_steps, 0);
  require_at_least("save_steps", config.save_steps, 0);
  require_at_least("save_total_limit", config.save_total_limit, 0);
  AUTOMOE_CHECK_VALUE(config.eval_steps == 0 || !config.eval_data.empty(), "[train] eval_steps is ",
                      config.eval_steps, " but there is no eval_data; name a prepared folder");
  AUTOMOE_CHECK_VALUE(
      !config.resume_from_checkpoint.empty(),
      "[train] resume_from_checkpoint must be auto, never or a checkpoint folder, got ''");
}

}  // namespace train
}  // namespace automoe
