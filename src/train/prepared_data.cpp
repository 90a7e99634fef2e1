#include "train/prepared_data.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <fstream>
#include <iterator>

#include "core/json.h"
#include "core/mix.h"

namespace automoe::train {
namespace fs = std::filesystem;
namespace {

static_assert(std::endian::native == std::endian::little, "prepared data is little-endian");

constexpr const char* kRepair = "; prepare the data again";

std::string read_text(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  AUTOMOE_CHECK_VALUE(in.good(), "[data] cannot open ", path.string(),
                      "; expected a folder written by `automoe data prepare`");
  return {std::istreambuf_iterator<char>(in), {}};
}

// NOTE: not require<int64_t>: nlohmann/json would convert 1e300 as well, which is undefined.
int64_t count_of(const Json& meta, const char* key, const std::string& file) {
  const auto found = meta.find(key);
  AUTOMOE_CHECK_VALUE(found != meta.end(), "[data] ", file, ": '", key, "' is missing", kRepair);
  const bool fits = found->is_number_unsigned()
                        ? found->get<uint64_t>() <= uint64_t(INT64_MAX)
                        : found->is_number_integer() && found->get<int64_t>() >= 0;
  AUTOMOE_CHECK_VALUE(fits, "[data] ", file, ": '", key, "' must be a count, found ",
                      found->dump(-1, ' ', false, Json::error_handler_t::replace), kRepair);
  return found->get<int64_t>();
}

struct Meta {
  int64_t tokens, documents, trained_tokens, max_document;
  std::optional<int64_t> vocab_size;
};

Meta read_meta(const std::string& content, const std::string& file) {
  const Json json = parse_json(content, file);
  AUTOMOE_CHECK_VALUE(json.is_object(), "[data] ", file, ": expected a JSON object", kRepair);
  const auto format = json.find("format");
  AUTOMOE_CHECK_VALUE(format != json.end() && *format == "automoe-data", "[data] ", file,
                      ": expected \"format\": \"automoe-data\"; is this a prepared folder?");
  const int64_t version = count_of(json, "version", file);
  AUTOMOE_CHECK_VALUE(version == 1, "[data] ", file, ": expected version 1, found ", version,
                      kRepair);
  Meta meta{.tokens = count_of(json, "tokens", file),
            .documents = count_of(json, "documents", file),
            .trained_tokens = count_of(json, "trained_tokens", file),
            .max_document = count_of(json, "max_document", file),
            .vocab_size = std::nullopt};
  AUTOMOE_CHECK_VALUE(meta.documents > 0, "[data] ", file, ": the folder holds no documents");
  const auto vocab = json.find("vocab_size");
  if (vocab != json.end() && !vocab->is_null())
    meta.vocab_size = count_of(json, "vocab_size", file);
  return meta;
}

template <typename T>
std::span<const T> typed(std::span<const std::byte> bytes, int64_t expected,
                         const std::string& file, const char* what) {
  AUTOMOE_CHECK_VALUE(
      bytes.size() % sizeof(T) == 0 && int64_t(bytes.size() / sizeof(T)) == expected, "[data] ",
      file, ": expected ", expected, " ", what, " of ", sizeof(T), " bytes, found ", bytes.size(),
      " bytes", kRepair);
  return {reinterpret_cast<const T*>(bytes.data()), size_t(expected)};
}

// Eight bytes a turn, so that it keeps up with the disk.
uint64_t hash_bytes(std::span<const std::byte> bytes, uint64_t hash) {
  size_t at = 0;
  for (; at + 8 <= bytes.size(); at += 8) {
    uint64_t word;
    std::memcpy(&word, bytes.data() + at, 8);
    hash = std::rotl((hash ^ word) * 0x9E3779B97F4A7C15u, 29);
  }
  uint64_t rest = 0;
  if (at < bytes.size()) std::memcpy(&rest, bytes.data() + at, bytes.size() - at);
  return mix(hash ^ rest ^ mix(bytes.size()));
}

}  // namespace

PreparedData::PreparedData(const fs::path& folder) : name_(folder.string()) {
  PreparedBytes bytes{
      .meta = read_text(folder / "meta.json"), .tokens = {}, .trained = {}, .offsets = {}};
  tokens_file_ = MappedFile(folder / "tokens.bin");
  trained_file_ = MappedFile(folder / "trained.bin");
  offsets_file_ = MappedFile(folder / "offsets.bin");
  bytes.tokens = tokens_file_.bytes();
  bytes.trained = trained_file_.bytes();
  bytes.offsets = offsets_file_.bytes();
  check(bytes);
}

PreparedData::PreparedData(const PreparedBytes& bytes, std::string name) : name_(std::move(name)) {
  check(bytes);
}

void PreparedData::check(const PreparedBytes& bytes) {
  const Meta meta = read_meta(bytes.meta, name_ + "/meta.json");
  AUTOMOE_CHECK_VALUE(meta.documents <= meta.tokens, "[data] ", name_,
                      "/meta.json: ", meta.documents, " documents cannot share ", meta.tokens,
                      " tokens", kRepair);
  tokens_ = typed<uint32_t>(bytes.tokens, meta.tokens, name_ + "/tokens.bin", "tokens");
  trained_ = typed<uint8_t>(bytes.trained, meta.tokens, name_ + "/trained.bin", "flags");
  const std::string offsets_name = name_ + "/offsets.bin";
  offsets_ = typed<int64_t>(bytes.offsets, meta.documents + 1, offsets_name, "offsets");

  AUTOMOE_CHECK_VALUE(offsets_.front() == 0, "[data] ", offsets_name,
                      ": expected the first offset to be 0, found ", offsets_.front(), kRepair);
  AUTOMOE_CHECK_VALUE(offsets_.back() == meta.tokens, "[data] ", offsets_name,
                      ": expected the last offset to be ", meta.tokens,
                      ", the number of tokens, found ", offsets_.back(), kRepair);
  for (size_t i = 1; i < offsets_.size(); ++i)
    AUTOMOE_CHECK_VALUE(offsets_[i - 1] < offsets_[i], "[data] ", offsets_name,
                        ": expected ascending offsets, found ", offsets_[i - 1], " before ",
                        offsets_[i], " at document ", i - 1, kRepair);
  const std::vector<int64_t> all_lengths = lengths();
  const int64_t longest = *std::max_element(all_lengths.begin(), all_lengths.end());
  AUTOMOE_CHECK_VALUE(longest == meta.max_document, "[data] ", name_,
                      "/meta.json: max_document is ", meta.max_document,
                      ", but the longest document of offsets.bin has ", longest, " tokens",
                      kRepair);

  int64_t trained_tokens = 0;
  uint8_t largest_flag = 0;
  for (const uint8_t flag : trained_) {
    trained_tokens += flag;
    largest_flag = std::max(largest_flag, flag);
  }
  AUTOMOE_CHECK_VALUE(largest_flag <= 1, "[data] ", name_,
                      "/trained.bin: expected flags of 0 or 1, found ", int(largest_flag), kRepair);
  AUTOMOE_CHECK_VALUE(trained_tokens == meta.trained_tokens, "[data] ", name_,
                      "/trained.bin: expected ", meta.trained_tokens,
                      " trained tokens as meta.json says, found ", trained_tokens, kRepair);
  max_token_ = *std::max_element(tokens_.begin(), tokens_.end());
  AUTOMOE_CHECK_VALUE(!meta.vocab_size || int64_t(max_token_) < *meta.vocab_size, "[data] ", name_,
                      "/tokens.bin: expected tokens below the vocabulary's ", *meta.vocab_size,
                      ", found ", max_token_, kRepair);
  fingerprint_ = hash_bytes(bytes.offsets, hash_bytes(bytes.trained, hash_bytes(bytes.tokens, 1)));
}

std::vector<int64_t> PreparedData::lengths() const {
  std::vector<int64_t> out(static_cast<size_t>(num_documents()));
  for (size_t i = 0; i < out.size(); ++i) out[i] = offsets_[i + 1] - offsets_[i];
  return out;
}

Document PreparedData::document(int64_t index) const {
  const size_t begin = size_t(offsets_[index]), count = size_t(length(index));
  return {tokens_.subspan(begin, count), trained_.subspan(begin, count)};
}

}  // namespace automoe::train
