// Prepared data on disk, as docs/data.md describes it: memory-mapped and checked. Needs no Torch
// header.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/file.h"

namespace automoe::train {

/// The contents of a prepared folder's four files. The .bin parts must be aligned for their types
/// and outlive whoever reads them.
struct PreparedBytes {
  std::string meta;                    // meta.json
  std::span<const std::byte> tokens;   // uint32[N]
  std::span<const std::byte> trained;  // uint8[N], 1 = the token is a target
  std::span<const std::byte> offsets;  // int64[D + 1]
};

struct Document {
  std::span<const uint32_t> tokens;
  std::span<const uint8_t> trained;
};

/// One split. Every byte is checked once, at construction: what is read later needs no check.
/// Throws ValueError naming the file, what was expected and what was found.
class PreparedData {
 public:
  explicit PreparedData(const std::filesystem::path& folder);

  /// Reads `bytes` in place; `name` stands for the folder in errors.
  PreparedData(const PreparedBytes& bytes, std::string name);

  const std::string& name() const { return name_; }
  int64_t num_documents() const { return int64_t(offsets_.size()) - 1; }
  int64_t num_tokens() const { return int64_t(tokens_.size()); }
  int64_t length(int64_t document) const { return offsets_[document + 1] - offsets_[document]; }
  std::vector<int64_t> lengths() const;
  Document document(int64_t index) const;

  uint32_t max_token() const { return max_token_; }

  /// Depends on tokens, targets and boundaries alone, not on where the folder lies.
  uint64_t fingerprint() const { return fingerprint_; }

 private:
  void check(const PreparedBytes& bytes);

  std::string name_;
  MappedFile tokens_file_, trained_file_, offsets_file_;
  std::span<const uint32_t> tokens_;
  std::span<const uint8_t> trained_;
  std::span<const int64_t> offsets_;
  uint32_t max_token_ = 0;
  uint64_t fingerprint_ = 0;
};

}  // namespace automoe::train
