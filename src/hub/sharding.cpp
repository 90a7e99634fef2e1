#include "hub/sharding.h"

#include <algorithm>
#include <cctype>
#include <compare>
#include <cstdio>

#include "hub/shard_index.h"

namespace automoe::hub {
namespace {

bool is_digit(char c) { return std::isdigit(static_cast<unsigned char>(c)) != 0; }

// The next piece between dots; `rest` moves behind it.
std::string_view next_piece(std::string_view& rest) {
  const size_t dot = std::min(rest.find('.'), rest.size());
  const std::string_view piece = rest.substr(0, dot);
  rest.remove_prefix(std::min(dot + 1, rest.size()));
  return piece;
}

// Numbers of any length, by value.
std::strong_ordering compare_numbers(std::string_view a, std::string_view b) {
  a.remove_prefix(std::min(a.find_first_not_of('0'), a.size()));
  b.remove_prefix(std::min(b.find_first_not_of('0'), b.size()));
  if (const auto by_length = a.size() <=> b.size(); by_length != 0) return by_length;
  return a.compare(b) <=> 0;
}

std::strong_ordering compare_pieces(std::string_view a, std::string_view b) {
  const auto word_length = [](std::string_view piece) {
    return size_t(piece.rend() - std::find_if_not(piece.rbegin(), piece.rend(), is_digit));
  };
  const size_t word_a = word_length(a), word_b = word_length(b);
  const bool is_number_a = word_a == 0 && !a.empty(), is_number_b = word_b == 0 && !b.empty();
  if (is_number_a != is_number_b)
    return is_number_a ? std::strong_ordering::less : std::strong_ordering::greater;
  if (const int by_word = a.substr(0, word_a).compare(b.substr(0, word_b)); by_word != 0)
    return by_word <=> 0;
  const std::string_view number_a = a.substr(word_a), number_b = b.substr(word_b);
  if (number_a.empty() || number_b.empty()) return !number_a.empty() <=> !number_b.empty();
  return compare_numbers(number_a, number_b);
}

}  // namespace

bool natural_less(std::string_view a, std::string_view b) {
  while (!a.empty() && !b.empty())
    if (const auto order = compare_pieces(next_piece(a), next_piece(b)); order != 0)
      return order < 0;
  return a.empty() && !b.empty();
}

std::vector<std::vector<size_t>> split_into_shards(const std::vector<uint64_t>& block_bytes,
                                                   uint64_t max_bytes) {
  std::vector<std::vector<size_t>> shards;
  std::vector<size_t> open;
  uint64_t open_bytes = 0;
  for (size_t block = 0; block < block_bytes.size(); ++block) {
    const uint64_t bytes = block_bytes[block];
    if (bytes > max_bytes) {
      shards.push_back({block});
      continue;
    }
    if (open_bytes + bytes > max_bytes) {
      shards.push_back(std::move(open));
      open.clear();
      open_bytes = 0;
    }
    open.push_back(block);
    open_bytes += bytes;
  }
  if (!open.empty() || shards.empty()) shards.push_back(std::move(open));
  return shards;
}

std::string shard_file_name(size_t shard, size_t num_shards) {
  if (num_shards == 1) return kWeightsFile;
  char name[80];
  std::snprintf(name, sizeof name, "model-%05zu-of-%05zu.safetensors", shard + 1, num_shards);
  return name;
}

bool is_shard_file_name(std::string_view name) {
  static constexpr std::string_view kShape = "model-00000-of-00000.safetensors";
  return name.size() == kShape.size() &&
         std::equal(name.begin(), name.end(), kShape.begin(),
                    [](char c, char shape) { return shape == '0' ? is_digit(c) : c == shape; });
}

}  // namespace automoe::hub
