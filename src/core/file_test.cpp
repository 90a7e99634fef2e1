#include "core/file.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <fstream>
#include <thread>

#include "automoe/error.h"
#include "core/testing.h"

namespace automoe {
namespace {
namespace fs = std::filesystem;

fs::path scratch() {
  const fs::path folder = fs::path(testing::TempDir()) / text("automoe_file_test_", getpid());
  fs::remove_all(folder);
  fs::create_directories(folder);
  return folder;
}

// The id of a process that has just ended.
pid_t dead_process() {
  const pid_t child = fork();
  if (child == 0) _exit(0);
  waitpid(child, nullptr, 0);
  return child;
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

TEST(StagedFolder, ATargetWithATrailingSlashIsTheSameTarget) {
  const fs::path folder = scratch();
  StagedFolder staged(folder / "out" / "");
  std::ofstream(staged.path() / "a") << "1";
  staged.commit();
  EXPECT_EQ(content_of(folder / "out" / "a"), "1");
  EXPECT_EQ(std::distance(fs::directory_iterator(folder), {}), 1);
}

TEST(StagedFolder, KilledAtAnyMomentOfReplacingTheOldOrTheNewFolderStandsWhole) {
  const fs::path folder = scratch();
  for (int round = 0; round < 25; ++round) {
    const pid_t child = fork();
    if (child == 0) {
      for (int i = 0;; ++i) {
        StagedFolder staged(folder / "out");
        for (const char* name : {"a", "b"})
          std::ofstream(staged.path() / name) << round << '.' << i;
        staged.commit();
      }
    }
    while (!fs::exists(folder / "out")) usleep(100);
    usleep(useconds_t(500 + 700 * round));
    kill(child, SIGKILL);
    waitpid(child, nullptr, 0);
    ASSERT_EQ(content_of(folder / "out" / "a"), content_of(folder / "out" / "b"));
    ASSERT_FALSE(content_of(folder / "out" / "a").empty());
  }
  StagedFolder staged(folder / "out");  // and removes what the dead left
  EXPECT_EQ(std::distance(fs::directory_iterator(folder), {}), 2);
}

TEST(StagedFolder, AFolderSetAsideByACrashComesBack) {
  const fs::path folder = scratch();
  fs::create_directories(folder / ".out.old");
  std::ofstream(folder / ".out.old" / "a") << "kept";
  { StagedFolder staged(folder / "out"); }
  EXPECT_EQ(content_of(folder / "out" / "a"), "kept");
  EXPECT_FALSE(fs::exists(folder / ".out.old"));
}

TEST(StagedFolder, RemovesTemporariesOfDeadProcessesAndNoOthers) {
  const fs::path folder = scratch();
  fs::create_directories(folder / text(".out.tmp-", dead_process()) / "deep");
  fs::create_directories(folder / ".out.tmp-1");
  fs::create_directories(folder / text(".outer.tmp-", dead_process()));
  { StagedFolder staged(folder / "out"); }
  EXPECT_EQ(std::distance(fs::directory_iterator(folder), {}), 2);
  EXPECT_TRUE(fs::exists(folder / ".out.tmp-1"));
}

TEST(AtomicFile, AFailedWriteKeepsTheOldFileAndNoTemporary) {
  const fs::path folder = scratch();
  write_file_atomically(folder / "x", "old");
  rlimit before{};
  getrlimit(RLIMIT_FSIZE, &before);
  const rlimit small{.rlim_cur = 10, .rlim_max = before.rlim_max};
  setrlimit(RLIMIT_FSIZE, &small);
  const std::string message =
      message_of<RuntimeError>([&] { write_file_atomically(folder / "x", std::string(11, 'n')); });
  setrlimit(RLIMIT_FSIZE, &before);
  EXPECT_NE(message.find("11 bytes are needed"), std::string::npos) << message;
  EXPECT_NE(message.find("at most 10 bytes"), std::string::npos) << message;
  EXPECT_EQ(content_of(folder / "x"), "old");
  EXPECT_EQ(std::distance(fs::directory_iterator(folder), {}), 1);
}

TEST(File, ReadsAndWritesAtPlacesFromSeveralThreads) {
  const fs::path folder = scratch();
  const File file = File::create(folder / "x");
  file.reserve(700);
  std::vector<std::thread> writers;
  for (int i = 0; i < 7; ++i)
    writers.emplace_back([&, i] {
      std::array<std::byte, 100> block;
      block.fill(std::byte(i));
      file.write_at(uint64_t(100 * i), block);
    });
  for (std::thread& writer : writers) writer.join();
  const File again = File::open(folder / "x");
  EXPECT_EQ(again.size(), 700u);
  std::array<std::byte, 3> seen;
  again.read_at(299, seen);
  EXPECT_EQ(seen, (std::array{std::byte(2), std::byte(3), std::byte(3)}));
}

TEST(File, ErrorsNameThePathAndWhatIsMissing) {
  const fs::path folder = scratch();
  std::ofstream(folder / "x") << "12345";
  std::array<std::byte, 4> out;
  const std::string ends =
      message_of<RuntimeError>([&] { File::open(folder / "x").read_at(3, out); });
  EXPECT_NE(ends.find((folder / "x").string() + " is truncated: it ends at byte 5, 2 more"),
            std::string::npos)
      << ends;
  EXPECT_THROW(File::open(folder / "none"), ValueError);
  const std::string full =
      message_of<RuntimeError>([&] { File::create("/dev/full").write_at(0, out); });
  EXPECT_NE(full.find("cannot write /dev/full: No space left"), std::string::npos) << full;
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
