#include "hub/sharding.h"

#include "hub/test_support.h"

namespace automoe::hub {
namespace {

using Shards = std::vector<std::vector<size_t>>;

TEST(Sharding, NamesAreOrderedWithNumbersByValue) {
  const std::vector<std::string> ordered{"0",
                                         "2.a",
                                         "10.a",
                                         "a",
                                         "a.1",
                                         "a.b",
                                         "a2",
                                         "a2.x",
                                         "a11",
                                         "b.00000000000000000000001.x",
                                         "b.18446744073709551617.x",
                                         "b.x9",
                                         "b.x10"};
  for (size_t i = 0; i < ordered.size(); ++i)
    for (size_t j = 0; j < ordered.size(); ++j)
      EXPECT_EQ(natural_less(ordered[i], ordered[j]), i < j) << ordered[i] << ' ' << ordered[j];
}

TEST(Sharding, AShardIsClosedWhenABlockDoesNotFitAndAGiantStandsAlone) {
  EXPECT_EQ(split_into_shards({6, 6, 2, 6, 2, 2}, 10), (Shards{{0}, {1, 2}, {3, 4, 5}}));
  EXPECT_EQ(split_into_shards({3, 11, 3, 5}, 10), (Shards{{1}, {0, 2}, {3}}));
  EXPECT_EQ(split_into_shards({10, 10}, 10), (Shards{{0}, {1}}));
  EXPECT_EQ(split_into_shards({4, 0, 6, 0}, 10), (Shards{{0, 1, 2, 3}}));
  EXPECT_EQ(split_into_shards({11}, 10), (Shards{{0}}));
  EXPECT_EQ(split_into_shards({}, 10), (Shards{{}}));
}

TEST(Sharding, FileNamesAreThoseOfTransformers) {
  EXPECT_EQ(shard_file_name(0, 1), "model.safetensors");
  EXPECT_EQ(shard_file_name(0, 2), "model-00001-of-00002.safetensors");
  EXPECT_EQ(shard_file_name(41, 123), "model-00042-of-00123.safetensors");
  EXPECT_TRUE(is_shard_file_name("model-00042-of-00123.safetensors"));
  for (const char* other :
       {"model.safetensors", "model-00042-of-0012x.safetensors",
        "model-00042-of-00123.safetensors.bak", "xodel-00042-of-00123.safetensors"})
    EXPECT_FALSE(is_shard_file_name(other)) << other;
}

}  // namespace
}  // namespace automoe::hub
