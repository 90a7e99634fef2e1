// The NameMap engine: from a parameter to the file tensors that fill it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "automoe/checkpoint.h"

namespace automoe::hub {

/// A name with placeholders, taken apart: {layer} or, at the end, {rest}; {expert}; one choice
/// {a,b,...}; each at most once.
class NamePattern {
 public:
  explicit NamePattern(const std::string& pattern);  // ValueError for anything else in braces

  bool matches(std::string_view name) const { return match(name).has_value(); }
  /// What stands for {layer} or {rest} in `name`, "" if the pattern has neither; nothing if no
  /// match.
  std::optional<std::string> match(std::string_view name) const;
  /// The name for a layer or rest, an expert and one of choices().
  std::string fill(std::string_view carried, int64_t expert, size_t choice) const;

  bool has_layer() const { return has(Token::kLayer); }
  bool has_rest() const { return has(Token::kRest); }
  bool has_expert() const { return has(Token::kExpert); }
  const std::vector<std::string>& choices() const { return choices_; }  // empty if it has none

 private:
  struct Token {
    enum Kind { kLiteral, kLayer, kRest, kExpert, kChoice } kind;
    std::string literal;
  };
  bool has(Token::Kind kind) const;
  void add_placeholder(const std::string& pattern, const std::string& inside);
  bool match_from(size_t token, std::string_view name, std::string& carried) const;

  std::vector<Token> tokens_;
  std::vector<std::string> choices_;
};

/// One file tensor and the part of its parameter that it fills.
struct DiskTensor {
  std::string name;
  std::vector<int64_t> shape;
  std::optional<int64_t> expert = std::nullopt;     // parameter[expert]; else the parameter
  std::optional<int64_t> first_row = std::nullopt;  // shape[0] rows of that from here; else all
  int64_t block = 0;                                // one block goes into one shard: see expand()
  Quantised quantised = Quantised::kNone;           // what may stand there instead

  at::Tensor part_of(const at::Tensor& parameter) const;
};

/// A NameMap ready for use.
class NameTable {
 public:
  explicit NameTable(const NameMap& rules);  // ValueError naming a rule that makes no sense

  /// The file tensors that make up a parameter, in Transformers' order: choices, then experts. The
  /// first matching rule counts. Blocks are numbered from 0; Transformers cuts a parameter of
  /// several experts and choices into one storage per choice, any other into views of one storage,
  /// and never spreads tensors of one storage over shards.
  std::vector<DiskTensor> expand(const std::string& parameter,
                                 const std::vector<int64_t>& shape) const;

 private:
  struct Rule {
    NamePattern disk, parameter;
    Quantised quantised;
  };
  std::vector<Rule> rules_;
};

}  // namespace automoe::hub
