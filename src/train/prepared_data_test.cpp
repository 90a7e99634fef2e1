#include "train/prepared_data.h"

#include "train/test_support.h"

namespace automoe::train {
namespace {

fs::path sample(const Scratch& scratch) {
  return write_prepared(scratch / "data",
                        {make_document({5, 6, 7}, 1), make_document({8}), make_document({9, 2})});
}

void edit_meta(const fs::path& folder, const std::string& key, const Json& value) {
  Json meta = read_json(folder / "meta.json");
  meta[key] = value;
  write_content(folder / "meta.json", meta.dump());
}

std::string fault_of(const fs::path& folder) {
  return message_of([&] { PreparedData data(folder); });
}

TEST(PreparedData, DocumentsReadBackAsWritten) {
  const Scratch scratch;
  const PreparedData data(sample(scratch));
  ASSERT_EQ(data.num_documents(), 3);
  EXPECT_EQ(data.num_tokens(), 6);
  EXPECT_EQ(data.max_token(), 9u);
  EXPECT_EQ(data.lengths(), (std::vector<int64_t>{3, 1, 2}));
  const Document first = data.document(0), last = data.document(2);
  EXPECT_EQ(std::vector<uint32_t>(first.tokens.begin(), first.tokens.end()),
            (std::vector<uint32_t>{5, 6, 7}));
  EXPECT_EQ(std::vector<uint8_t>(first.trained.begin(), first.trained.end()),
            (std::vector<uint8_t>{0, 1, 1}));
  EXPECT_EQ(last.tokens[1], 2u);
}

TEST(PreparedData, ExtraKeysAreFree) {
  const Scratch scratch;
  const fs::path folder = sample(scratch);
  edit_meta(folder, "tokenizer", "anything");
  edit_meta(folder, "vocab_size", 10);
  EXPECT_EQ(PreparedData(folder).num_documents(), 3);
}

TEST(PreparedData, EachFaultOfMetaNamesFileExpectationAndFinding) {
  const Scratch scratch;
  const fs::path folder = sample(scratch);
  const auto with = [&](const std::string& key, const Json& value) {
    sample(scratch);
    edit_meta(folder, key, value);
    return fault_of(folder);
  };
  EXPECT_SAYS(with("format", "other"), "meta.json: expected \"format\": \"automoe-data\"");
  EXPECT_SAYS(with("version", 2), "expected version 1, found 2");
  EXPECT_SAYS(with("tokens", 7), "tokens.bin: expected 7 tokens of 4 bytes, found 24 bytes");
  EXPECT_SAYS(with("tokens", -1), "'tokens' must be a count, found -1");
  EXPECT_SAYS(with("tokens", 1e300), "'tokens' must be a count, found 1e+300");
  EXPECT_SAYS(with("documents", 0), "holds no documents");
  EXPECT_SAYS(with("documents", 4), "offsets.bin: expected 5 offsets of 8 bytes, found 32 bytes");
  EXPECT_SAYS(with("documents", uint64_t(INT64_MAX)), "cannot share 6 tokens");
  EXPECT_SAYS(with("trained_tokens", 4), "expected 4 trained tokens as meta.json says, found 5");
  EXPECT_SAYS(with("max_document", 2),
              "max_document is 2, but the longest document of offsets.bin has 3");
  EXPECT_SAYS(with("vocab_size", 9),
              "tokens.bin: expected tokens below the vocabulary's 9, found 9");
  write_content(folder / "meta.json", "{\"format\"");
  EXPECT_SAYS(fault_of(folder), "meta.json is not valid JSON");
  write_content(folder / "meta.json", "[]");
  EXPECT_SAYS(fault_of(folder), "expected a JSON object");
}

TEST(PreparedData, EachFaultOfTheBinaryFilesNamesFileExpectationAndFinding) {
  const Scratch scratch;
  const fs::path folder = sample(scratch);
  const auto with = [&](const std::string& file, const std::string& bytes) {
    sample(scratch);
    write_content(folder / file, bytes);
    return fault_of(folder);
  };
  EXPECT_SAYS(with("tokens.bin", "abc"), "tokens.bin: expected 6 tokens of 4 bytes, found 3 bytes");
  EXPECT_SAYS(with("trained.bin", ""), "trained.bin: expected 6 flags of 1 bytes, found 0 bytes");
  EXPECT_SAYS(with("trained.bin", std::string("\0\1\2\1\0\1", 6)),
              "expected flags of 0 or 1, found 2");
  EXPECT_SAYS(with("offsets.bin", bytes_of<int64_t>({1, 3, 4, 6})),
              "expected the first offset to be 0, found 1");
  EXPECT_SAYS(with("offsets.bin", bytes_of<int64_t>({0, 3, 4, 5})),
              "the number of tokens, found 5");
  EXPECT_SAYS(with("offsets.bin", bytes_of<int64_t>({0, 3, 3, 6})),
              "found 3 before 3 at document 1");
  EXPECT_SAYS(with("offsets.bin", bytes_of<int64_t>({0, 9, 4, 6})),
              "found 9 before 4 at document 1");
  fs::remove(folder / "offsets.bin");
  EXPECT_SAYS(fault_of(folder), "offsets.bin");
  EXPECT_SAYS(fault_of(scratch / "none"), "none/meta.json");
}

TEST(PreparedData, TheFingerprintFollowsEveryByteAndNotTheFolder) {
  const Scratch scratch;
  const uint64_t original = PreparedData(sample(scratch)).fingerprint();
  const auto of = [&](const std::vector<TestDocument>& documents) {
    return PreparedData(write_prepared(scratch / "other", documents)).fingerprint();
  };
  EXPECT_EQ(of({make_document({5, 6, 7}, 1), make_document({8}), make_document({9, 2})}), original);
  EXPECT_NE(of({make_document({5, 6, 7}, 1), make_document({8}), make_document({9, 3})}), original);
  EXPECT_NE(of({make_document({5, 6, 7}, 1), make_document({8}), make_document({9, 2}, 1)}),
            original);
  EXPECT_NE(of({make_document({5, 6, 7}, 1), make_document({8, 9}), make_document({2})}), original);
}

}  // namespace
}  // namespace automoe::train
