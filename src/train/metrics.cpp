#include "train/metrics.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <numeric>

#include "core/file.h"
#include "core/json.h"

namespace automoe::train {
namespace fs = std::filesystem;

std::string step_line(const StepMetrics& metrics) {
  Json line{
      {"step", metrics.step},
      {"epoch", metrics.epoch},
      {"loss", metrics.loss},
      {"aux_loss", metrics.aux_loss},
      {"grad_norm", metrics.grad_norm},
      {"learning_rate", metrics.learning_rate},
      {"tokens", metrics.tokens},
      {"labelled_tokens", metrics.labelled_tokens},
      {"seconds", metrics.seconds},
      {"tokens_per_second", metrics.seconds > 0 ? double(metrics.tokens) / metrics.seconds : 0.0},
      {"memory_gib", metrics.memory_gib}};
  if (!metrics.expert_load.empty()) {
    Json ratios = Json::array(), dead = Json::array();
    for (const std::vector<int64_t>& layer : metrics.expert_load) {
      const double mean =
          double(std::accumulate(layer.begin(), layer.end(), int64_t{0})) / double(layer.size());
      ratios.push_back(mean > 0 ? double(*std::max_element(layer.begin(), layer.end())) / mean
                                : 0.0);
      dead.push_back(std::count(layer.begin(), layer.end(), int64_t{0}));
    }
    line["expert_max_over_mean"] = ratios;
    line["dead_experts"] = dead;
    line["expert_load"] = metrics.expert_load;
  }
  return line.dump();
}

std::string evaluation_line(int64_t step, const EvalMetrics& metrics) {
  return Json{{"step", step},
              {"eval_loss", metrics.loss},
              {"eval_perplexity", metrics.perplexity},
              {"eval_labelled_tokens", metrics.labelled_tokens}}
      .dump();
}

void append_line(const fs::path& path, const std::string& line) {
  const int file = ::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  AUTOMOE_CHECK(file >= 0, "[metrics] cannot open ", path.string(), ": ", std::strerror(errno));
  const std::string bytes = line + "\n";
  const ssize_t written = ::write(file, bytes.data(), bytes.size());
  const int error = errno;
  ::close(file);
  AUTOMOE_CHECK(written == ssize_t(bytes.size()), "[metrics] cannot append to ", path.string(),
                ": ", written < 0 ? std::strerror(error) : "the disk is full");
}

void keep_lines_until(const fs::path& path, int64_t step) {
  std::ifstream in(path);
  if (!in.good()) return;
  std::string kept;
  bool dropped = false;
  for (std::string line; std::getline(in, line);) {
    const Json parsed = Json::parse(line, nullptr, /*allow_exceptions=*/false);
    const bool keep = !in.eof() && parsed.is_object() && parsed.contains("step") &&
                      parsed["step"].is_number_integer() && parsed["step"].get<int64_t>() <= step;
    if (keep) kept += line + "\n";
    dropped = dropped || !keep;
  }
  if (dropped) write_file_atomically(path, kept);
}

}  // namespace automoe::train
