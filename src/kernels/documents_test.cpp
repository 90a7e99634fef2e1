#include "kernels/documents.h"

#include "automoe/error.h"
#include "kernels/testing.h"

namespace automoe::kernels {
namespace {

TEST(Documents, DescribeWhereEachOneLies) {
  const Documents documents = Documents::from_ends({4, 13, 14}, at::kCPU);
  EXPECT_EQ(documents.count(), 3);
  EXPECT_EQ(documents.tokens(), 14);
  EXPECT_EQ(documents.longest, 9);
  EXPECT_FALSE(documents.equal);
  EXPECT_EQ(documents.offsets.scalar_type(), at::kInt);
  EXPECT_TRUE(documents.offsets.equal(at::tensor({0, 4, 13, 14}, at::kInt)));
}

TEST(Documents, AreEqualIfAllHaveOneLength) {
  EXPECT_TRUE(Documents::from_ends({5}, at::kCPU).equal);
  EXPECT_TRUE(Documents::from_ends({3, 6, 9}, at::kCPU).equal);
  EXPECT_FALSE(Documents::from_ends({3, 6, 8}, at::kCPU).equal);
}

TEST(Documents, MayBeNone) {
  const Documents none = Documents::from_ends({}, at::kCPU);
  EXPECT_EQ(none.count(), 0);
  EXPECT_EQ(none.tokens(), 0);
  EXPECT_TRUE(none.offsets.equal(at::tensor({0}, at::kInt)));
}

TEST(Documents, RefuseEndsThatDoNotAscend) {
  for (const std::vector<int64_t>& ends :
       std::vector<std::vector<int64_t>>{{0}, {3, 3}, {4, 2}, {-1}})
    EXPECT_THROW(Documents::from_ends(ends, at::kCPU), ValueError);
}

TEST(Documents, RefuseMoreTokensThanOffsetsCanCount) {
  EXPECT_THROW(Documents::from_ends({int64_t{1} << 31}, at::kCPU), ValueError);
}

}  // namespace
}  // namespace automoe::kernels
