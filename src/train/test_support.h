// What the unit tests of this folder share: prepared data, a tiny Qwen3-MoE.
#pragma once

#include <ATen/ATen.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "automoe/trainer.h"
#include "core/json.h"
#include "core/mix.h"
#include "core/testing.h"

namespace automoe::train {
namespace fs = std::filesystem;

struct TestDocument {
  std::vector<uint32_t> tokens;
  std::vector<uint8_t> trained;
};

/// All tokens but the first `prompt` ones are trained.
inline TestDocument make_document(std::vector<uint32_t> tokens, size_t prompt = 0) {
  std::vector<uint8_t> trained(tokens.size(), 1);
  std::fill_n(trained.begin(), std::min(prompt, trained.size()), uint8_t{0});
  return {std::move(tokens), std::move(trained)};
}

template <typename T>
std::string bytes_of(const std::vector<T>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
}

inline fs::path write_prepared(const fs::path& folder, const std::vector<TestDocument>& documents) {
  std::vector<uint32_t> tokens;
  std::vector<uint8_t> trained;
  std::vector<int64_t> offsets{0};
  int64_t longest = 0, trained_tokens = 0;
  for (const TestDocument& document : documents) {
    tokens.insert(tokens.end(), document.tokens.begin(), document.tokens.end());
    trained.insert(trained.end(), document.trained.begin(), document.trained.end());
    offsets.push_back(int64_t(tokens.size()));
    longest = std::max(longest, int64_t(document.tokens.size()));
    for (const uint8_t flag : document.trained) trained_tokens += flag;
  }
  fs::create_directories(folder);
  write_content(folder / "tokens.bin", bytes_of(tokens));
  write_content(folder / "trained.bin", bytes_of(trained));
  write_content(folder / "offsets.bin", bytes_of(offsets));
  const Json meta{{"format", "automoe-data"},
                  {"version", 1},
                  {"tokens", tokens.size()},
                  {"documents", documents.size()},
                  {"trained_tokens", trained_tokens},
                  {"max_document", longest},
                  {"vocab_size", nullptr},
                  {"eos_token_ids", {0}}};
  write_content(folder / "meta.json", meta.dump());
  return folder;
}

/// Documents of `lengths`, tokens below 64 out of `seed`, the first `prompt` of each not trained.
inline std::vector<TestDocument> random_documents(const std::vector<int64_t>& lengths,
                                                  uint64_t seed, size_t prompt = 0) {
  std::vector<TestDocument> documents;
  uint64_t counter = 0;
  for (const int64_t length : lengths) {
    std::vector<uint32_t> tokens;
    for (int64_t i = 0; i < length; ++i)
      tokens.push_back(uint32_t(random_below(mix(seed), counter++, 64)));
    documents.push_back(make_document(std::move(tokens), prompt));
  }
  return documents;
}

constexpr const char* kTinyQwen3Moe = R"({
  "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "vocab_size": 64, "hidden_size": 32,
  "intermediate_size": 48, "moe_intermediate_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4,
  "num_key_value_heads": 2, "head_dim": 8, "num_experts": 8, "num_experts_per_tok": 2, "norm_topk_prob": true,
  "decoder_sparse_step": 1, "mlp_only_layers": [], "max_position_embeddings": 256, "rms_norm_eps": 1e-6,
  "rope_theta": 10000.0, "hidden_act": "silu", "tie_word_embeddings": false, "initializer_range": 0.02,
  "router_aux_loss_coef": 0.01, "attention_bias": false})";

inline CausalLM tiny_model(at::ScalarType dtype = at::kFloat) {
  return CausalLM::from_config(kTinyQwen3Moe, /*seed=*/7, dtype);
}

inline std::vector<at::Tensor> copies(const CausalLM& model) {
  std::vector<at::Tensor> out;
  for (const NamedTensor& parameter : model.parameters())
    out.push_back(parameter.tensor.detach().clone());
  return out;
}

inline bool same_bits(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b) {
  for (size_t i = 0; i < a.size(); ++i)
    if (!a[i].equal(b[i])) return false;
  return a.size() == b.size();
}

/// Eleven documents in rows of 24 tokens; two micro-batches of one row a step.
inline TrainConfig tiny_config(const Scratch& scratch, const std::string& output = "out") {
  TrainConfig config;
  config.train_data = scratch / "data";
  config.output_dir = scratch / output;
  if (!fs::exists(config.train_data))
    write_prepared(config.train_data,
                   random_documents({5, 24, 11, 9, 3, 17, 8, 21, 13, 2, 19}, 1, /*prompt=*/1));
  config.max_length = 24;
  config.gradient_accumulation_steps = 2;
  config.num_train_epochs = 3;
  config.learning_rate = 3e-3;
  config.weight_decay = 0.1;
  config.warmup_steps = 2;
  return config;
}

}  // namespace automoe::train
