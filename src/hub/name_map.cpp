#include "hub/name_map.h"

#include <algorithm>
#include <cctype>
#include <map>

#include "automoe/error.h"
#include "core/text.h"

namespace automoe::hub {
namespace {

size_t leading_digits(std::string_view text) {
  return size_t(
      std::find_if_not(text.begin(), text.end(), [](unsigned char c) { return std::isdigit(c); }) -
      text.begin());
}

std::vector<std::string> split_at_commas(const std::string& list) {
  std::vector<std::string> parts(1);
  for (const char c : list) {
    if (c == ',')
      parts.emplace_back();
    else
      parts.back() += c;
  }
  return parts;
}

}  // namespace

NamePattern::NamePattern(const std::string& pattern) {
  for (size_t at = 0; at < pattern.size();) {
    const size_t open = std::min(pattern.find('{', at), pattern.size());
    if (open > at) tokens_.push_back({Token::kLiteral, pattern.substr(at, open - at)});
    if (open == pattern.size()) break;
    const size_t close = pattern.find('}', open);
    AUTOMOE_CHECK_VALUE(close != std::string::npos, "[names] '", pattern, "': a '{' is not closed");
    add_placeholder(pattern, pattern.substr(open + 1, close - open - 1));
    at = close + 1;
  }
}

void NamePattern::add_placeholder(const std::string& pattern, const std::string& inside) {
  const bool is_choice = inside.find(',') != std::string::npos;
  const std::map<std::string, Token::Kind> kinds{
      {"layer", Token::kLayer}, {"rest", Token::kRest}, {"expert", Token::kExpert}};
  AUTOMOE_CHECK_VALUE(is_choice || kinds.contains(inside), "[names] '", pattern,
                      "': expected {layer}, {rest}, {expert} or {a,b,...}, found {", inside, "}");
  const auto kind = is_choice ? Token::kChoice : kinds.at(inside);
  AUTOMOE_CHECK_VALUE(!has(kind), "[names] '", pattern, "': {", inside,
                      "} is one too many of its kind");
  AUTOMOE_CHECK_VALUE(kind != Token::kRest || (!has_layer() && pattern.ends_with("{rest}")),
                      "[names] '", pattern, "': {rest} stands at the end, without {layer}");
  tokens_.push_back({kind, ""});
  if (is_choice) choices_ = split_at_commas(inside);
}

bool NamePattern::has(Token::Kind kind) const {
  return std::any_of(tokens_.begin(), tokens_.end(),
                     [&](const Token& t) { return t.kind == kind; });
}

std::optional<std::string> NamePattern::match(std::string_view name) const {
  std::string carried;
  if (!match_from(0, name, carried)) return std::nullopt;
  return carried;
}

bool NamePattern::match_from(size_t token, std::string_view name, std::string& carried) const {
  if (token == tokens_.size()) return name.empty();
  const Token& now = tokens_[token];
  if (now.kind == Token::kLiteral)
    return name.starts_with(now.literal) &&
           match_from(token + 1, name.substr(now.literal.size()), carried);
  if (now.kind == Token::kChoice)
    return std::any_of(choices_.begin(), choices_.end(), [&](const std::string& choice) {
      return name.starts_with(choice) && match_from(token + 1, name.substr(choice.size()), carried);
    });
  const size_t taken = now.kind == Token::kRest ? name.size() : leading_digits(name);
  if (taken == 0) return false;
  if (now.kind != Token::kExpert) carried = name.substr(0, taken);
  return match_from(token + 1, name.substr(taken), carried);
}

std::string NamePattern::fill(std::string_view carried, int64_t expert, size_t choice) const {
  std::string name;
  for (const Token& token : tokens_) {
    switch (token.kind) {
      case Token::kLiteral:
        name += token.literal;
        break;
      case Token::kLayer:
      case Token::kRest:
        name += carried;
        break;
      case Token::kExpert:
        name += std::to_string(expert);
        break;
      case Token::kChoice:
        name += choices_[choice];
        break;
    }
  }
  return name;
}

at::Tensor DiskTensor::part_of(const at::Tensor& parameter) const {
  const at::Tensor whole = expert ? parameter.select(0, *expert) : parameter;
  return first_row ? whole.narrow(0, *first_row, shape[0]) : whole;
}

NameTable::NameTable(const NameMap& rules) {
  for (const NameRule& rule : rules) {
    rules_.push_back({NamePattern(rule.disk), NamePattern(rule.parameter), rule.quantised});
    const Rule& now = rules_.back();
    AUTOMOE_CHECK_VALUE(now.disk.has_layer() == now.parameter.has_layer() &&
                            now.disk.has_rest() == now.parameter.has_rest(),
                        "[names] rule '", rule.disk, "' -> '", rule.parameter,
                        "': {layer} and {rest} must stand on both sides or on none");
    AUTOMOE_CHECK_VALUE(!now.parameter.has_expert() && now.parameter.choices().empty(),
                        "[names] rule '", rule.disk, "' -> '", rule.parameter,
                        "': {expert} and {a,b} belong on the disk side");
  }
}

std::vector<DiskTensor> NameTable::expand(const std::string& parameter,
                                          const std::vector<int64_t>& shape) const {
  std::optional<std::string> carried;
  const auto rule = std::find_if(rules_.begin(), rules_.end(), [&](const Rule& candidate) {
    return (carried = candidate.parameter.match(parameter)).has_value();
  });
  if (rule == rules_.end()) return {{.name = parameter, .shape = shape}};

  const bool by_expert = rule->disk.has_expert();
  const int64_t num_choices = int64_t(rule->disk.choices().size());
  const size_t dims_used = size_t(by_expert) + size_t(num_choices > 0);
  std::vector<int64_t> part(shape);
  const int64_t num_experts = by_expert && !shape.empty() ? shape[0] : 1;
  if (by_expert && !shape.empty()) part.erase(part.begin());
  AUTOMOE_CHECK_VALUE(shape.size() >= dims_used && (num_choices == 0 || part[0] % num_choices == 0),
                      "[names] parameter '", parameter, "' ", shape_text(shape),
                      " cannot be cut into ", by_expert ? "experts" : "",
                      by_expert && num_choices > 0 ? " and " : "",
                      num_choices > 0 ? text(num_choices, " equal parts") : "");
  if (num_choices > 0) part[0] /= num_choices;

  std::vector<DiskTensor> tensors;
  for (int64_t choice = 0; choice < std::max<int64_t>(num_choices, 1); ++choice)
    for (int64_t expert = 0; expert < num_experts; ++expert) {
      DiskTensor& tensor = tensors.emplace_back();
      tensor.name = rule->disk.fill(*carried, expert, size_t(choice));
      tensor.shape = part;
      if (by_expert) tensor.expert = expert;
      if (num_choices > 0) tensor.first_row = choice * part[0];
      tensor.block = num_experts > 1 ? choice : 0;
      tensor.quantised = rule->quantised;
    }
  return tensors;
}

}  // namespace automoe::hub
