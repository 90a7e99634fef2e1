#include "core/json.h"

#include <gtest/gtest.h>

#include "core/text.h"

namespace automoe {
namespace {

TEST(Json, AcceptsTheLiteralsThatPythonWrites) {
  const Json json =
      parse_json(R"({"limit": [0.0, Infinity], "x": NaN, "text": "Infinity"})", "test");
  EXPECT_GT(json["limit"][1].get<double>(), 1e200);
  EXPECT_TRUE(json["x"].is_null());
  EXPECT_EQ(json["text"], "Infinity");
}

TEST(Json, ErrorsNameTheKeyAndTheSource) {
  const Json json = parse_json(R"({"hidden_size": "wide"})", "test");
  try {
    require<int>(json, "hidden_size");
    FAIL();
  } catch (const ValueError& error) {
    EXPECT_NE(std::string(error.what()).find("hidden_size"), std::string::npos);
  }
  EXPECT_THROW(require<int>(json, "absent"), ValueError);
  EXPECT_EQ(value_or<int>(json, "absent", 7), 7);
  EXPECT_THROW(parse_json("{", "broken.json"), ValueError);
}

TEST(Text, NearestNameIsFoundAndAFarOneIsNot) {
  EXPECT_EQ(nearest("lerning_rate", {"learning_rate", "seed"}), "learning_rate");
  EXPECT_EQ(nearest("zzz", {"learning_rate", "seed"}), "");
}

}  // namespace
}  // namespace automoe
