#include "training/data/tokens.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <cstring>
#include <filesystem>
#include <limits>

#include "tests/training/data/support.h"

namespace tutti::training::tokens_test {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr std::uint64_t kSeed = 20261123;  // of the random cases; each failure prints its case

std::vector<std::uint16_t> random_tokens(Random& random, std::size_t count) {
  std::vector<std::uint16_t> tokens(count);
  for (std::uint16_t& token : tokens) token = static_cast<std::uint16_t>(random.next());
  return tokens;
}

std::vector<std::int64_t> read_all(const TokenFiles& files, std::size_t file = 0) {
  std::vector<std::int64_t> tokens(files.count(file));
  files.read(file, 0, tokens);
  return tokens;
}

/// llm.c's order, for u16 files: seek to the offset, read B*T + 1 tokens, and after the last step of a file go on to
/// the next one.
struct SeekingReader {
  std::vector<std::string> paths;
  long ranks, rank, rows, context;
  std::size_t file = 0;
  long step_of_file = 0;

  long steps_of(std::size_t i) const {
    const auto bytes = static_cast<long>(std::filesystem::file_size(paths[i])) - 1024;
    return (bytes - 2) / (ranks * rows * context * 2);
  }
  std::vector<std::uint16_t> next() {
    if (step_of_file == steps_of(file)) {
      file = (file + 1) % paths.size();
      step_of_file = 0;
    }
    std::vector<std::uint16_t> tokens(static_cast<std::size_t>(rows * context + 1));
    std::FILE* in = std::fopen(paths[file].c_str(), "rb");
    std::fseek(in, 1024 + step_of_file * ranks * rows * context * 2 + rank * rows * context * 2, SEEK_SET);
    EXPECT_EQ(std::fread(tokens.data(), 2, tokens.size(), in), tokens.size());
    std::fclose(in);
    ++step_of_file;
    return tokens;
  }
};

TEST(Tokens, FilesAreThoseOfLlmC) {
  const TempFolder folder;
  write_tokens(folder / "gpt2", std::vector<std::uint16_t>{1, 0xABCD});
  write_tokens(folder / "llama3", std::vector<std::uint32_t>{128'000});
  std::vector<std::uint8_t> gpt2(1024 + 4), llama3(1024 + 4);
  const std::int32_t gpt2_header[] = {20240520, 1, 2}, llama3_header[] = {20240801, 7, 1};
  std::memcpy(gpt2.data(), gpt2_header, 12);
  std::memcpy(llama3.data(), llama3_header, 12);
  const std::uint8_t gpt2_data[] = {1, 0, 0xCD, 0xAB}, llama3_data[] = {0x00, 0xF4, 0x01, 0x00};
  std::memcpy(gpt2.data() + 1024, gpt2_data, 4);
  std::memcpy(llama3.data() + 1024, llama3_data, 4);
  EXPECT_EQ(bytes_of_file(folder / "gpt2"), gpt2);
  EXPECT_EQ(bytes_of_file(folder / "llama3"), llama3);
  EXPECT_EQ(read_all(TokenFiles({folder / "gpt2"})), (std::vector<std::int64_t>{1, 0xABCD}));
  EXPECT_EQ(read_all(TokenFiles({folder / "llama3"})), (std::vector<std::int64_t>{128'000}));
}

TEST(Tokens, RowsComeInLlmCsOrder) {
  Random random(kSeed);
  for (int i = 0; i < 40; ++i) {
    const TempFolder folder;
    const int ranks = static_cast<int>(1 + random.below(4)), rows = static_cast<int>(1 + random.below(3));
    const int context = static_cast<int>(1 + random.below(7));
    SCOPED_TRACE(::testing::Message() << "case " << i << ": ranks " << ranks << " rows " << rows << " T " << context);
    std::vector<std::string> paths;
    for (std::uint64_t file = 0; file <= random.below(3); ++file) {
      paths.push_back(folder / std::to_string(file));
      const auto of_step = static_cast<std::size_t>(ranks * rows * context);
      write_tokens(paths.back(), random_tokens(random, of_step + 1 + random.below(4 * of_step)));
    }
    const TokenFiles files(paths);
    const TokenRows data(files, ranks, rows, context);
    for (int rank = 0; rank < ranks; ++rank) {
      SeekingReader reader{paths, ranks, rank, rows, context};
      for (std::uint64_t step = 0; step < 2 * data.steps_per_pass() + 1; ++step) {
        const std::vector<std::uint16_t> expected = reader.next();
        const Batch batch = data.batch(step, rank);
        ASSERT_EQ(batch.input.sizes(), (std::vector<std::int64_t>{rows, context}));
        ASSERT_EQ(batch.target.sizes(), batch.input.sizes());
        for (std::int64_t k = 0; k < rows * context; ++k) {
          ASSERT_EQ(batch.input.data_ptr<std::int64_t>()[k], expected[static_cast<std::size_t>(k)]);
          ASSERT_EQ(batch.target.data_ptr<std::int64_t>()[k], expected[static_cast<std::size_t>(k) + 1]);
        }
      }
    }
  }
}

TEST(Tokens, RanksTogetherSeeTheRowsOfOneProcess) {
  const TempFolder folder;
  Random random(kSeed, 2);
  write_tokens(folder / "a", random_tokens(random, 1000));
  const TokenFiles files({folder / "a"});
  const TokenRows whole(files, 1, 6, 8), parts(files, 3, 2, 8);
  ASSERT_EQ(whole.steps_per_pass(), parts.steps_per_pass());
  for (std::uint64_t step = 0; step < whole.steps_per_pass(); ++step) {
    for (int rank = 0; rank < 3; ++rank) {
      const Batch batch = whole.batch(step, 0), part = parts.batch(step, rank);
      EXPECT_TRUE(torch::equal(part.input, batch.input.slice(0, rank * 2, rank * 2 + 2)));
      EXPECT_TRUE(torch::equal(part.target, batch.target.slice(0, rank * 2, rank * 2 + 2)));
    }
  }
}

// 3 GB with holes: the disk holds a few pages of it.
TEST(Tokens, FilesPastTwoGiBAreReadToTheirEnd) {
  const TempFolder folder;
  const std::string path = folder / "large";
  constexpr std::int32_t kCount = 1'500'000'000;
  constexpr off_t kBytes = 1024 + off_t{2} * kCount;
  const int descriptor = ::open(path.c_str(), O_CREAT | O_RDWR | O_CLOEXEC, 0600);
  ASSERT_GE(descriptor, 0);
  const std::int32_t header[] = {20240520, 1, kCount};
  const std::uint16_t tail[] = {11, 22, 33};
  ASSERT_EQ(::ftruncate(descriptor, kBytes), 0);
  ASSERT_EQ(::pwrite(descriptor, header, sizeof header, 0), static_cast<ssize_t>(sizeof header));
  ASSERT_EQ(::pwrite(descriptor, tail, sizeof tail, kBytes - 6), 6);
  ::close(descriptor);

  const TokenFiles files({path, path});
  EXPECT_EQ(files.total(), std::uint64_t{2} * kCount);
  std::vector<std::int64_t> last(3);
  files.read(0, kCount - 3, last);
  EXPECT_EQ(last, (std::vector<std::int64_t>{11, 22, 33}));
  const TokenRows data(files, 1, 1, 1);
  ASSERT_EQ(data.steps_per_pass(), std::uint64_t{2} * (kCount - 1));
  for (std::uint64_t pass : {0, 1}) {
    const Batch batch = data.batch((pass + 1) * (kCount - 1) - 1, 0);
    EXPECT_EQ(batch.input.item<int>(), 22);
    EXPECT_EQ(batch.target.item<int>(), 33);
  }
}

TEST(Tokens, ErrorsNameTheFileAndWhatIsWrong) {
  const TempFolder folder;
  const std::string path = folder / "tokens.bin";
  write_tokens(path, std::vector<std::uint16_t>{1, 2, 3, 4, 5});
  const std::vector<std::uint8_t> good = bytes_of_file(path);
  const auto error_with = [&](std::size_t at, std::uint8_t value, std::size_t size) {
    std::vector<std::uint8_t> bytes = good;
    bytes[at] = value;
    bytes.resize(size);
    write_bytes(path, bytes);
    const std::string error = error_of([&] { TokenFiles({path}); });
    EXPECT_THAT(error, StartsWith("tokens: '" + path + "': "));
    return error;
  };
  EXPECT_THAT(error_with(0, good[0], 1000), EndsWith("has 1000 bytes, fewer than the 1024 of the header"));
  EXPECT_THAT(error_with(0, good[0] + 2, good.size()), HasSubstr("begins with 20240522; a file of tokens begins with"));
  EXPECT_THAT(error_with(4, 2, good.size()), EndsWith("is of version 2; with magic 20240520 only version 1 is known"));
  EXPECT_THAT(error_with(8, 0, good.size()), EndsWith("says that it holds 0 tokens"));
  EXPECT_THAT(error_with(11, 0x80, good.size()), EndsWith("says that it holds -2147483643 tokens"));
  EXPECT_THAT(error_with(8, 6, good.size()),
              EndsWith("has 1034 bytes; its header says 6 tokens, which make 1036 bytes"));
  EXPECT_THAT(error_with(0, good[0], good.size() + 1), HasSubstr("has 1035 bytes"));
}

TEST(Tokens, OtherMistakesAreNamed) {
  const TempFolder folder;
  const std::string small = folder / "u16", large = folder / "u32";
  write_tokens(small, std::vector<std::uint16_t>{1, 2, 3, 4, 50});
  write_tokens(large, std::vector<std::uint32_t>{1, 2});
  EXPECT_EQ(error_of([] { TokenFiles({}); }), "tokens: no file given");
  EXPECT_EQ(error_of([] { TokenFiles({"/no/such/file"}); }),
            "tokens: '/no/such/file': cannot be opened: No such file or directory");
  EXPECT_EQ(error_of([&] { TokenFiles({folder.path()}); }), "tokens: '" + folder.path() + "': is not a file");
  EXPECT_EQ(error_of([&] {
              TokenFiles({small, large});
            }),
            "tokens: '" + large + "': holds tokens of 4 bytes, '" + small + "' of 2");
  EXPECT_EQ(error_of([&] { write_tokens(small, std::vector<std::uint16_t>{}); }),
            "tokens: '" + small + "': a file holds 1 to 2^31 - 1 tokens, not 0");
  EXPECT_EQ(error_of([] { write_tokens("/no/such/folder/x", std::vector<std::uint16_t>{1}); }),
            "tokens: '/no/such/folder/x': cannot be written");

  const TokenFiles files({small});
  EXPECT_EQ(error_of([&] { TokenRows(files, 1, 1, 5); }),
            "TokenRows: '" + small + "': 5 tokens are too few; one step needs 1 ranks * 1 rows * 5 + 1");
  constexpr int kMost = std::numeric_limits<int>::max();
  EXPECT_THAT(error_of([&] { TokenRows(files, kMost, kMost, kMost); }), HasSubstr("too few"));
  EXPECT_THAT(error_of([&] { TokenRows(files, 1, 0, 5); }), HasSubstr("each must be at least 1"));
  const TokenRows data(files, 2, 1, 2, /*vocabulary=*/50);
  EXPECT_EQ(error_of([&] { data.batch(0, 2); }), "TokenRows: batch: rank 2 of 2 ranks is no rank");
  EXPECT_EQ(error_of([&] { data.batch(0, 0); }), "");
  EXPECT_EQ(error_of([&] { data.batch(0, 1); }),
            "rank 1: TokenRows: '" + small + "': token 4 is 50; the vocabulary has 50");
}

// Whatever a file holds: it is read, or refused by name. Run under a sanitizer this looks for more.
TEST(Tokens, DamagedFilesAreReadOrRefusedByName) {
  const TempFolder folder;
  const std::string path = folder / "tokens.bin";
  Random random(kSeed, 3);
  write_tokens(folder / "u16", random_tokens(random, 300));
  write_tokens(folder / "u32", std::vector<std::uint32_t>(300, 100'000));
  const std::vector<std::uint8_t> good[] = {bytes_of_file(folder / "u16"), bytes_of_file(folder / "u32")};
  int refused = 0;
  for (int i = 0; i < 600; ++i) {
    SCOPED_TRACE(::testing::Message() << "case " << i);
    write_bytes(path, mutated(good[i % 2], random));
    const std::string error = error_of([&] {
      const TokenFiles files({path});
      read_all(files);
      TokenRows(files, 2, 3, 4).batch(random.next(), 1);
    });
    if (error.empty()) continue;
    ++refused;
    EXPECT_THAT(error, HasSubstr("'" + path + "'"));
  }
  EXPECT_GT(refused, 300);
  EXPECT_LT(refused, 600);
}

}  // namespace
}  // namespace tutti::training::tokens_test
