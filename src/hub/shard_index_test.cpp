#include "hub/shard_index.h"

#include "hub/test_support.h"

namespace automoe::hub {
namespace {

std::string refusal(const std::string& json) {
  return message_of([&] { parse_index(json, "index.json"); });
}

TEST(ShardIndex, WhatItWritesItReadsBack) {
  const std::map<std::string, std::string> weight_map{{"b.é😀", "model-2.safetensors"},
                                                      {"a", "model-1.safetensors"}};
  EXPECT_EQ(parse_index(emit_index(weight_map, 3, 12), "x"), weight_map);
}

TEST(ShardIndex, TextEqualsWhatPythonsJsonModuleWrites) {
  EXPECT_EQ(emit_index({{"b.é😀\x7f", "2.safetensors"}, {"B\"", "1.safetensors"}}, 5, 18),
            R"({
  "metadata": {
    "total_parameters": 5,
    "total_size": 18
  },
  "weight_map": {
    "B\"": "1.safetensors",
    "b.\u00e9\ud83d\ude00\u007f": "2.safetensors"
  }
}
)");
}

TEST(ShardIndex, AnIndexThatIsDamagedOrPointsElsewhereIsRefused) {
  EXPECT_SAYS(refusal("{"), "[checkpoint] index.json is not valid JSON");
  EXPECT_SAYS(refusal("[]"), "index.json has no 'weight_map'");
  EXPECT_SAYS(refusal(R"({"weight_map":[]})"), "has no 'weight_map'");
  EXPECT_SAYS(refusal(R"({"weight_map":{"a":"1.safetensors","a":"2.safetensors"}})"),
              "holds 'a' twice");
  for (const char* file : {"3", "\"\"", "\"a.bin\"", "\"../m.safetensors\"", "\"/m.safetensors\"",
                           "\"d/m.safetensors\"", "\"\\u0000.safetensors\""})
    EXPECT_SAYS(refusal(text("{\"weight_map\":{\"w\":", file, "}}")),
                text("tensor 'w' must name a .safetensors file beside the index, found ", file));
}

}  // namespace
}  // namespace automoe::hub
