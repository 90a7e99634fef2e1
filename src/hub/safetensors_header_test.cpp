#include "hub/safetensors_header.h"

#include "hub/test_support.h"

namespace automoe::hub {
namespace {

std::vector<TensorEntry> parse(const std::string& json, uint64_t data_bytes) {
  return parse_header(json, kLengthBytes + json.size() + data_bytes, "m.safetensors");
}

std::string refusal(const std::string& json, uint64_t data_bytes) {
  return message_of([&] { parse(json, data_bytes); });
}

std::string one(const std::string& dtype, const std::string& shape, const std::string& offsets) {
  return R"({"w":{"dtype":")" + dtype + R"(","shape":)" + shape + R"(,"data_offsets":)" + offsets +
         "}}";
}

std::string length_of(std::string first, uint64_t file_bytes) {
  return message_of([&] { header_length(first, file_bytes, "m.safetensors"); });
}

TEST(SafetensorsHeader, ReadsTensorsInFileOrderWhateverTheJsonOrder) {
  const std::string json =
      R"({"b":{"dtype":"BF16","shape":[2,3],"data_offsets":[4,16]},"__metadata__":{"k":"v"},)"
      R"("a":{"shape":[],"data_offsets":[0,4],"dtype":"F32"},"none":{"dtype":"I8","shape":[0,5],)"
      R"("data_offsets":[4,4]}}   )";
  const uint64_t data = kLengthBytes + json.size();
  const auto tensors = parse(json, 16);
  ASSERT_EQ(tensors.size(), 3u);
  EXPECT_EQ(tensors[0], (TensorEntry{"a", Dtype::kF32, {}, data, data + 4}));
  EXPECT_EQ(tensors[1], (TensorEntry{"none", Dtype::kI8, {0, 5}, data + 4, data + 4}));
  EXPECT_EQ(tensors[2], (TensorEntry{"b", Dtype::kBF16, {2, 3}, data + 4, data + 16}));
}

TEST(SafetensorsHeader, WhatItLaysOutItReadsBack) {
  std::vector<TensorEntry> tensors{{"x", Dtype::kF32, {3}}, {"é\n\"", Dtype::kF4, {2, 7}},
                                   {"b", Dtype::kI64, {}},  {"a", Dtype::kF32, {0}},
                                   {"y", Dtype::kF32, {0}}, {"c", Dtype::kBF16, {0}}};
  const std::string header = lay_out(tensors);
  EXPECT_EQ(header.size() % 8, 0u);
  const uint64_t file_bytes = header.size() + 8 + 12 + 7;
  EXPECT_EQ(header_length(header.substr(0, 8), file_bytes, "m"), header.size() - 8);
  EXPECT_EQ(parse_header(header.substr(8), file_bytes, "m"), tensors);
}

TEST(SafetensorsHeader, BytesEqualThoseOfThePythonLibraryForEveryDtypeAndOddNames) {
  const Scratch folder;
  const bool ran = run_python("safetensors.torch", R"(
import sys, torch
from safetensors.torch import save_file, _SIZE
tensors = {}
for dtype, size in _SIZE.items():
    if dtype is not None:
        tensors["t." + str(dtype)] = torch.zeros(3 * size, dtype=torch.uint8).view(dtype)
tensors["t"] = torch.zeros(())
tensors["\x7f\x1f\"\\/\u00e9\U0001f600\n\b\f\t\r\u2028"] = torch.zeros(0, 3)
for i in range(12):
    tensors[f"layer.{i}"] = torch.zeros(i, 2, dtype=torch.bfloat16)
save_file(tensors, sys.argv[1] + "/m", metadata={"format": "pt"})
save_file({}, sys.argv[1] + "/empty", metadata={"format": "pt"})
)",
                              folder);
  if (!ran) GTEST_SKIP() << "no Python with safetensors and torch (set AUTOMOE_PYTHON)";
  for (const char* name : {"m", "empty"}) {
    const std::string file = content_of(folder / name);
    const uint64_t length = header_length(file, file.size(), name);
    const auto tensors = parse_header(std::string_view(file).substr(8, length), file.size(), name);
    auto shuffled = tensors;
    std::reverse(shuffled.begin(), shuffled.end());
    for (TensorEntry& tensor : shuffled) tensor.begin = tensor.end = 0;
    EXPECT_EQ(lay_out(shuffled), file.substr(0, 8 + length));
    EXPECT_EQ(shuffled, tensors);
  }
}

TEST(SafetensorsHeader, ALengthThatCannotBeIsRefused) {
  const std::string eight("\x10\0\0\0\0\0\0\0", 8);
  EXPECT_EQ(header_length(eight, 24, "m"), 16u);
  EXPECT_SAYS(length_of(eight, 23),
              "the header takes 16 bytes, but the file has 23: it is truncated");
  EXPECT_SAYS(length_of(eight.substr(0, 7), 7), "m.safetensors has 7 bytes, too few for a header");
  EXPECT_SAYS(length_of("", 0), "has 0 bytes");
  EXPECT_SAYS(length_of(std::string(8, '\xff'), ~uint64_t{0}),
              "a header of 18446744073709551615 bytes");
  EXPECT_SAYS(length_of("PK\3\4zip ", 1 << 30), "no safetensors file");
  EXPECT_SAYS(length_of("version https://git-lfs", 130), "git lfs pull");
}

TEST(SafetensorsHeader, AMalformedEntryIsNamedWithWhatWasFound) {
  EXPECT_SAYS(refusal("[]", 0), "m.safetensors: the header must begin with '{'");
  EXPECT_SAYS(refusal(R"({"w":1})", 0), "tensor 'w' must be described by an object, found number");
  EXPECT_SAYS(refusal(R"({"w":{"shape":[],"data_offsets":[0,4]}})", 4), "'w' has no 'dtype'");
  EXPECT_SAYS(refusal(one("F33", "[]", "[0,4]"), 4), "'w' has an unknown dtype \"F33\"");
  EXPECT_SAYS(refusal(one("F32", "{}", "[0,4]"), 4),
              "'shape' must be a list of sizes, found object");
  EXPECT_SAYS(refusal(one("F32", "[-1]", "[0,4]"), 4), "'shape' must hold sizes, found -1");
  EXPECT_SAYS(refusal(one("F32", "[1.0]", "[0,4]"), 4), "found 1.0");
  EXPECT_SAYS(refusal(one("F32", "[18446744073709551615]", "[0,4]"), 4),
              "found 18446744073709551615");
  EXPECT_SAYS(refusal(one("F32", "[]", "[0,4,5]"), 4), "must be [begin, end], found 3 numbers");
  EXPECT_SAYS(refusal(one("F32", "[]", "[4,0]"), 4), "must be [begin, end], found [4, 0]");
  EXPECT_SAYS(refusal(R"({"__metadata__":{"a":1}})", 0), "__metadata__ must map text to text");
  EXPECT_SAYS(refusal(R"({"a":{},"a":{}})", 0), "holds 'a' twice");
  EXPECT_SAYS(refusal("{\"\xc3\x28\":{}}", 0), "not valid JSON near its byte");
}

TEST(SafetensorsHeader, SizesThatDoNotAddUpAreRefused) {
  EXPECT_SAYS(refusal(one("F32", "[2,3]", "[0,20]"), 20),
              "'w': F32 [2, 3] takes 24 bytes, but data_offsets [0, 20] span 20");
  EXPECT_SAYS(refusal(one("F4", "[3]", "[0,1]"), 1), "F4 [3] is no whole number of bytes");
  const std::string huge = "[4294967296,4294967296]";
  EXPECT_SAYS(refusal(one("F32", huge, "[0,0]"), 0), "more than any file holds");
  EXPECT_SAYS(refusal(one("F32", "[4294967296,4294967296,0]", "[0,0]"), 0),
              "more than any file holds");
}

TEST(SafetensorsHeader, GapsOverlapsTruncationAndTrailingBytesAreRefused) {
  const auto two = [](const std::string& a, const std::string& b) {
    return R"({"a":{"dtype":"F32","shape":[1],"data_offsets":)" + a +
           R"(},"b":{"dtype":"F32","shape":[1],"data_offsets":)" + b + "}}";
  };
  EXPECT_EQ(refusal(two("[0,4]", "[4,8]"), 8), "no error");
  EXPECT_SAYS(refusal(two("[0,4]", "[5,9]"), 9), "'b' begins at byte");
  EXPECT_SAYS(refusal(two("[0,4]", "[5,9]"), 9), "a gap lies before it");
  EXPECT_SAYS(refusal(two("[4,8]", "[8,12]"), 12), "'a' begins");
  EXPECT_SAYS(refusal(two("[0,4]", "[2,6]"), 8), "overlaps another tensor");
  EXPECT_SAYS(refusal(two("[0,4]", "[0,4]"), 4), "overlaps another tensor");
  EXPECT_SAYS(refusal(two("[0,4]", "[4,8]"), 7), "'b' ends at byte");
  EXPECT_SAYS(refusal(two("[0,4]", "[4,8]"), 7), "truncated");
  EXPECT_SAYS(refusal(two("[0,4]", "[4,8]"), 9), "the tensors end at byte");
}

}  // namespace
}  // namespace automoe::hub
