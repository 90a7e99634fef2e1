// metrics.jsonl: one line a step, one line an evaluation.
#pragma once

#include <filesystem>
#include <string>

#include "automoe/trainer.h"

namespace automoe::train {

/// {"step": ..., "epoch": ..., "loss": ..., ...}: the fields of StepMetrics, then tokens_per_second
/// and, a model with experts given, expert_max_over_mean and dead_experts per layer. Numbers read
/// back to the bit.
std::string step_line(const StepMetrics& metrics);

/// {"step": ..., "eval_loss": ..., "eval_perplexity": ..., "eval_labelled_tokens": ...}
std::string evaluation_line(int64_t step, const EvalMetrics& metrics);

/// Appends one line with its newline in one write, so that a killed process leaves at most one cut
/// line.
void append_line(const std::filesystem::path& file, const std::string& line);

/// Drops lines of later steps than `step`, and lines cut by a crash. Atomic; a missing file is
/// fine.
void keep_lines_until(const std::filesystem::path& file, int64_t step);

}  // namespace automoe::train
