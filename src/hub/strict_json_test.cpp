#include "hub/strict_json.h"

#include <gtest/gtest.h>

#include "automoe/error.h"

namespace automoe::hub {
namespace {

std::string message_of(std::string_view json) {
  try {
    parse_strict_json(json, "x.json");
  } catch (const ValueError& error) {
    return error.what();
  }
  return "accepted";
}

TEST(StrictJson, ReadsEveryKindOfValue) {
  const char* json = R"({"a":[1,-2,2.5,true,null,{"b":"é\n"}],"c":{},"d":18446744073709551615})";
  EXPECT_EQ(parse_strict_json(json, "x"), nlohmann::json::parse(json));
  EXPECT_EQ(parse_strict_json(" 7 ", "x"), nlohmann::json(7));
}

TEST(StrictJson, AKeyThatAppearsTwiceIsNamed) {
  EXPECT_EQ(message_of(R"({"a":1,"b":{"a":2},"a":3})"), "x.json holds 'a' twice");
  EXPECT_EQ(message_of(R"([{"a":1},{"a":1}])"), "accepted");
}

TEST(StrictJson, RefusesWhatIsNoJsonWithoutQuotingItsBytes) {
  for (const char* json :
       {"", "{", "{\"a\"}", "{\"a\":1} x", "[1,]", "NaN", "\"\xff\"", "{\"a\":01}"}) {
    const std::string message = message_of(json);
    EXPECT_TRUE(message.starts_with("x.json is not valid JSON near its byte ")) << json << message;
    EXPECT_EQ(message.find('\xff'), std::string::npos);
  }
}

TEST(StrictJson, DeepNestingIsRefusedBeforeItCostsMemory) {
  EXPECT_EQ(message_of("[[[[[[[[]]]]]]]]"), "accepted");
  EXPECT_EQ(message_of(std::string(1'000'000, '[')), "x.json is nested deeper than 8");
}

}  // namespace
}  // namespace automoe::hub
