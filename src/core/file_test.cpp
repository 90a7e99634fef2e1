#include "core/file.h"

#include <gtest/gtest.h>

#include <fstream>

#include "automoe/error.h"

namespace automoe {
namespace {
namespace fs = std::filesystem;

fs::path scratch() {
  const fs::path folder = fs::path(testing::TempDir()) / "automoe_file_test";
  fs::remove_all(folder);
  fs::create_directories(folder);
  return folder;
}

TEST(StagedFolder, AppearsWholeOnCommitAndLeavesNothingWithoutIt) {
  const fs::path folder = scratch();
  {
    StagedFolder staged(folder / "out");
    std::ofstream(staged.path() / "a") << "1";
  }
  EXPECT_TRUE(fs::is_empty(folder));
  StagedFolder staged(folder / "out");
  std::ofstream(staged.path() / "a") << "2";
  staged.commit();
  StagedFolder again(folder / "out");
  std::ofstream(again.path() / "b") << "3";
  again.commit();
  EXPECT_FALSE(fs::exists(folder / "out" / "a"));
  EXPECT_TRUE(fs::exists(folder / "out" / "b"));
  EXPECT_EQ(std::distance(fs::directory_iterator(folder), {}), 1);
}

TEST(MappedFile, HoldsTheBytesAndNamesAMissingFile) {
  const fs::path folder = scratch();
  write_file_atomically(folder / "x", "abc");
  const MappedFile file(folder / "x");
  EXPECT_EQ(file.bytes().size(), 3u);
  EXPECT_EQ(char(file.bytes()[2]), 'c');
  EXPECT_THROW(MappedFile(folder / "none"), ValueError);
}

TEST(FreeSpace, TheErrorTellsBytesNeededAndFree) {
  try {
    require_free_space(testing::TempDir(), uint64_t{1} << 62);
    FAIL();
  } catch (const RuntimeError& error) {
    EXPECT_NE(std::string(error.what()).find(std::to_string(uint64_t{1} << 62)), std::string::npos);
  }
}

}  // namespace
}  // namespace automoe
