#include "train/data_check.h"

#include <cmath>
#include <optional>

#include "automoe/error.h"

namespace automoe::train {
namespace {

constexpr const char* kWhereToLook =
    "; look at an example with `automoe data preview`: the chat template, the roles and which "
    "tokens are trained";
constexpr double kSuspiciousShare = 0.05;  // of ln(vocab), the loss of a guess

}  // namespace

TargetSummary summarize_targets(const PreparedData& data) {
  TargetSummary summary;
  std::optional<uint32_t> first;
  bool several = false;
  for (int64_t index = 0; index < data.num_documents(); ++index) {
    const Document document = data.document(index);
    const int64_t before = summary.targets;
    for (size_t i = 1; i < document.tokens.size(); ++i) {
      if (document.trained[i] == 0) continue;
      ++summary.targets;
      if (!first) first = document.tokens[i];
      several = several || document.tokens[i] != *first;
    }
    summary.documents_without_targets += summary.targets == before;
  }
  summary.one_token_only = summary.targets > 1 && !several;
  return summary;
}

namespace {

TargetSummary checked_targets(const PreparedData& data, int64_t vocab_size) {
  AUTOMOE_CHECK_VALUE(int64_t(data.max_token()) < vocab_size, "[data check] ", data.name(),
                      " holds token ", data.max_token(), ", but the model's vocabulary has ",
                      vocab_size, "; prepare the data with this model's tokenizer");
  const TargetSummary summary = summarize_targets(data);
  AUTOMOE_CHECK_VALUE(summary.targets > 0, "[data check] ", data.name(), " holds no trained tokens",
                      kWhereToLook);
  return summary;
}

}  // namespace

void check_evaluation_data(const PreparedData& data, int64_t vocab_size) {
  checked_targets(data, vocab_size);
}

std::string check_training_data(const PreparedData& data, int64_t vocab_size) {
  const TargetSummary summary = checked_targets(data, vocab_size);
  AUTOMOE_CHECK_VALUE(!summary.one_token_only, "[data check] all ", summary.targets,
                      " trained tokens of ", data.name(), " are the same token", kWhereToLook);
  if (summary.documents_without_targets == 0) return "";
  return text("[data check] ", summary.documents_without_targets, " of ", data.num_documents(),
              " documents of ", data.name(), " have no trained token and teach nothing");
}

std::string check_first_loss(double loss, int64_t vocab_size) {
  const double guess = std::log(double(vocab_size));
  AUTOMOE_CHECK_VALUE(loss != 0.0,
                      "[data check] the loss of the first step is exactly 0 where a guess has ln(",
                      vocab_size, ") = ", guess, kWhereToLook);
  if (loss >= kSuspiciousShare * guess) return "";
  return text("[data check] the loss of the first step is ", loss, ", far below ln(", vocab_size,
              ") = ", guess, ": the model knows this text, or what is trained is trivial",
              kWhereToLook);
}

}  // namespace automoe::train
