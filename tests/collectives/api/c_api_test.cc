// The C ABI: what it adds to the C++ API (handles, codes, last error, structs with a size), and that each collective
// reaches the one it names. Whether collectives compute right is the conformance suite's matter.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "tutti/tutti.h"

extern "C" int tutti_c_program(char* message, size_t capacity);  // c_api_compiles.c

namespace {

constexpr int kRanks = 3;

/// Runs `body` as each rank of a communicator of `ranks` threads.
void on_ranks(int ranks, const std::function<void(tutti_comm_t, int)>& body) {
  std::vector<tutti_comm_t> comms(ranks);
  ASSERT_EQ(tutti_comm_create_in_process(ranks, nullptr, comms.data()), TUTTI_OK) << tutti_last_error();
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank) threads.emplace_back([&, rank] { body(comms[rank], rank); });
  for (std::thread& thread : threads) thread.join();
  for (tutti_comm_t comm : comms) tutti_comm_destroy(comm);
}

#define EXPECT_DONE(call) EXPECT_EQ(call, TUTTI_OK) << tutti_last_error()

std::vector<int32_t> numbers(std::size_t count, int first) {
  std::vector<int32_t> result(count);
  std::iota(result.begin(), result.end(), first);
  return result;
}

std::string text_of(tutti_status_t (*get)(tutti_comm_t, char*, size_t, size_t*), tutti_comm_t comm) {
  std::size_t length = 0;
  EXPECT_DONE(get(comm, nullptr, 0, &length));
  std::string text(length + 1, '?');
  EXPECT_DONE(get(comm, text.data(), text.size(), &length));
  EXPECT_EQ(std::strlen(text.c_str()), std::min(length, text.size() - 1));
  return text.c_str();
}

TEST(CApi, ACProgramUsesIt) {
  char message[512] = "";
  EXPECT_EQ(tutti_c_program(message, sizeof(message)), 0) << message;
}

TEST(CApi, NamesAndSizes) {
  EXPECT_STREQ(tutti_version(), TUTTI_VERSION);
  EXPECT_STREQ(tutti_status_name(TUTTI_RUNNING), "running");
  EXPECT_STREQ(tutti_status_name(TUTTI_PEER_DIED), "peer died");
  EXPECT_STREQ(tutti_status_name(static_cast<tutti_status_t>(99)), "unknown");
  EXPECT_EQ(tutti_size_of(TUTTI_F8E5M2), 1u);
  EXPECT_EQ(tutti_size_of(TUTTI_F64), 8u);
  EXPECT_EQ(tutti_size_of(static_cast<tutti_type_t>(12)), 0u);
}

TEST(CApi, WrongArgumentsAreNamedAndHarmless) {
  EXPECT_EQ(tutti_comm_create_from_environment(nullptr, nullptr), TUTTI_INVALID_ARGUMENT);
  EXPECT_NE(std::string(tutti_last_error()).find("place for the communicator"), std::string::npos);
  EXPECT_EQ(tutti_barrier(nullptr), TUTTI_INVALID_ARGUMENT);
  EXPECT_NE(std::string(tutti_last_error()).find("communicator is null"), std::string::npos);
  EXPECT_EQ(tutti_work_wait(nullptr, 0), TUTTI_INVALID_ARGUMENT);
  tutti_comm_destroy(nullptr);
  tutti_work_free(nullptr);
  tutti_free(nullptr);

  tutti_options_t options = TUTTI_OPTIONS_INIT;
  options.size = 3;
  tutti_comm_t comm = nullptr;
  EXPECT_EQ(tutti_comm_create_in_process(1, &options, &comm), TUTTI_INVALID_ARGUMENT);
  EXPECT_EQ(comm, nullptr);
  EXPECT_NE(std::string(tutti_last_error()).find("TUTTI_OPTIONS_INIT"), std::string::npos);

  on_ranks(1, [](tutti_comm_t alone, int) {
    int32_t value = 7;
    tutti_work_t work = nullptr;
    EXPECT_EQ(tutti_all_reduce(alone, &value, &value, 1, static_cast<tutti_type_t>(12), TUTTI_SUM, nullptr),
              TUTTI_INVALID_ARGUMENT);
    EXPECT_EQ(tutti_all_reduce(alone, &value, &value, 1, TUTTI_I32, static_cast<tutti_op_t>(-1), nullptr),
              TUTTI_INVALID_ARGUMENT);
    EXPECT_EQ(tutti_all_reduce_async(alone, &value, &value, 1, TUTTI_I32, TUTTI_SUM, nullptr, nullptr),
              TUTTI_INVALID_ARGUMENT);
    EXPECT_EQ(tutti_all_to_allv(alone, &value, nullptr, nullptr, &value, nullptr, nullptr, TUTTI_I32, nullptr),
              TUTTI_INVALID_ARGUMENT);
    EXPECT_EQ(work, nullptr);
    EXPECT_DONE(tutti_broadcast_async(alone, &value, &value, 1, TUTTI_I32, 5, nullptr, &work));
    EXPECT_EQ(tutti_work_wait(work, -1), TUTTI_INVALID_ARGUMENT) << "a root that is no rank is the work's to tell";
    EXPECT_EQ(tutti_work_status(work), TUTTI_INVALID_ARGUMENT);
    tutti_work_free(work);
    EXPECT_DONE(tutti_all_reduce(alone, &value, &value, 1, TUTTI_I32, TUTTI_SUM, nullptr));
    EXPECT_EQ(value, 7);
  });
}

TEST(CApi, TheLastErrorBelongsToItsThread) {
  EXPECT_EQ(tutti_barrier(nullptr), TUTTI_INVALID_ARGUMENT);
  const std::string here = tutti_last_error();
  EXPECT_FALSE(here.empty());
  std::thread([] { EXPECT_STREQ(tutti_last_error(), ""); }).join();
  EXPECT_EQ(here, tutti_last_error());
}

TEST(CApi, EachCollectiveIsTheOneItsNameSays) {
  on_ranks(kRanks, [](tutti_comm_t comm, int rank) {
    int got_rank = -1, size = -1;
    EXPECT_DONE(tutti_comm_rank(comm, &got_rank));
    EXPECT_DONE(tutti_comm_size(comm, &size));
    EXPECT_EQ(got_rank, rank);
    EXPECT_EQ(size, kRanks);

    const std::vector<int32_t> mine = numbers(kRanks, 10 * rank);  // rank r: 10 r, 10 r + 1, 10 r + 2
    std::vector<int32_t> out(kRanks, -1);
    EXPECT_DONE(tutti_all_reduce(comm, mine.data(), out.data(), kRanks, TUTTI_I32, TUTTI_SUM, nullptr));
    EXPECT_EQ(out, (std::vector<int32_t>{30, 33, 36}));
    EXPECT_DONE(tutti_all_reduce(comm, mine.data(), out.data(), kRanks, TUTTI_I32, TUTTI_MAX, nullptr));
    EXPECT_EQ(out, (std::vector<int32_t>{20, 21, 22}));

    int32_t one = -1;
    EXPECT_DONE(tutti_reduce_scatter(comm, mine.data(), &one, 1, TUTTI_I32, TUTTI_SUM, nullptr));
    EXPECT_EQ(one, 30 + 3 * rank);
    EXPECT_DONE(tutti_all_gather(comm, mine.data(), out.data(), 1, TUTTI_I32, nullptr));
    EXPECT_EQ(out, (std::vector<int32_t>{0, 10, 20}));
    EXPECT_DONE(tutti_broadcast(comm, mine.data(), out.data(), kRanks, TUTTI_I32, 2, nullptr));
    EXPECT_EQ(out, numbers(kRanks, 20));
    EXPECT_DONE(tutti_all_to_all(comm, mine.data(), out.data(), 1, TUTTI_I32, nullptr));
    EXPECT_EQ(out, (std::vector<int32_t>{rank, 10 + rank, 20 + rank}));

    out.assign(kRanks, -1);
    EXPECT_DONE(tutti_reduce(comm, mine.data(), out.data(), kRanks, TUTTI_I32, TUTTI_SUM, 1, nullptr));
    if (rank == 1) {
      EXPECT_EQ(out, (std::vector<int32_t>{30, 33, 36}));
    }
    out.assign(kRanks, -1);
    EXPECT_DONE(tutti_gather(comm, mine.data(), out.data(), 1, TUTTI_I32, 1, nullptr));
    if (rank == 1) {
      EXPECT_EQ(out, (std::vector<int32_t>{0, 10, 20}));
    }
    EXPECT_DONE(tutti_scatter(comm, mine.data(), &one, 1, TUTTI_I32, 2, nullptr));
    EXPECT_EQ(one, 20 + rank);

    // Rank r sends r + 1 elements to every peer, all from the start of its buffer.
    const std::vector<std::size_t> send_counts(kRanks, rank + 1), send_offsets(kRanks, 0);
    const std::vector<std::size_t> recv_counts = {1, 2, 3}, recv_offsets = {0, 1, 3};
    std::vector<int32_t> all(6, -1);
    EXPECT_DONE(tutti_all_to_allv(comm, mine.data(), send_counts.data(), send_offsets.data(), all.data(),
                                  recv_counts.data(), recv_offsets.data(), TUTTI_I32, nullptr));
    EXPECT_EQ(all, (std::vector<int32_t>{0, 10, 11, 20, 21, 22}));
    EXPECT_DONE(tutti_barrier(comm));

    const int next = (rank + 1) % kRanks, previous = (rank + kRanks - 1) % kRanks;
    EXPECT_DONE(tutti_group_start(comm));
    EXPECT_DONE(tutti_recv(comm, out.data(), kRanks, TUTTI_I32, previous));
    EXPECT_DONE(tutti_send(comm, mine.data(), kRanks, TUTTI_I32, next));
    EXPECT_DONE(tutti_group_end(comm));
    EXPECT_EQ(out, numbers(kRanks, 10 * previous));
  });
}

/// Waits for the work, frees it, and says how it ended.
tutti_status_t finish(tutti_work_t work) {
  const tutti_status_t result = tutti_work_wait(work, -1);
  int done = 0;
  EXPECT_DONE(tutti_work_test(work, &done));
  EXPECT_EQ(done, 1);
  EXPECT_EQ(tutti_work_status(work), result);
  tutti_work_free(work);
  return result;
}

TEST(CApi, EachCollectiveInTheBackground) {
  on_ranks(kRanks, [](tutti_comm_t comm, int rank) {
    const std::vector<int32_t> mine = numbers(kRanks, 10 * rank);
    std::vector<int32_t> reduced(kRanks), gathered(kRanks), sent(kRanks), exchanged(kRanks), at_root(kRanks);
    std::vector<int32_t> collected(kRanks), all(6);
    int32_t scattered = -1, dealt = -1;
    const std::vector<std::size_t> send_counts(kRanks, rank + 1), send_offsets(kRanks, 0);
    const std::vector<std::size_t> recv_counts = {1, 2, 3}, recv_offsets = {0, 1, 3};

    tutti_work_t works[10] = {};
    EXPECT_DONE(
        tutti_all_reduce_async(comm, mine.data(), reduced.data(), kRanks, TUTTI_I32, TUTTI_SUM, nullptr, &works[0]));
    EXPECT_DONE(tutti_reduce_scatter_async(comm, mine.data(), &scattered, 1, TUTTI_I32, TUTTI_SUM, nullptr, &works[1]));
    EXPECT_DONE(tutti_all_gather_async(comm, mine.data(), gathered.data(), 1, TUTTI_I32, nullptr, &works[2]));
    EXPECT_DONE(tutti_broadcast_async(comm, mine.data(), sent.data(), kRanks, TUTTI_I32, 2, nullptr, &works[3]));
    EXPECT_DONE(
        tutti_reduce_async(comm, mine.data(), at_root.data(), kRanks, TUTTI_I32, TUTTI_SUM, 1, nullptr, &works[4]));
    EXPECT_DONE(tutti_all_to_all_async(comm, mine.data(), exchanged.data(), 1, TUTTI_I32, nullptr, &works[5]));
    EXPECT_DONE(tutti_all_to_allv_async(comm, mine.data(), send_counts.data(), send_offsets.data(), all.data(),
                                        recv_counts.data(), recv_offsets.data(), TUTTI_I32, nullptr, &works[6]));
    EXPECT_DONE(tutti_gather_async(comm, mine.data(), collected.data(), 1, TUTTI_I32, 1, nullptr, &works[7]));
    EXPECT_DONE(tutti_scatter_async(comm, mine.data(), &dealt, 1, TUTTI_I32, 2, nullptr, &works[8]));
    EXPECT_DONE(tutti_barrier_async(comm, &works[9]));
    for (tutti_work_t work : works) EXPECT_DONE(finish(work));

    EXPECT_EQ(reduced, (std::vector<int32_t>{30, 33, 36}));
    EXPECT_EQ(scattered, 30 + 3 * rank);
    EXPECT_EQ(gathered, (std::vector<int32_t>{0, 10, 20}));
    EXPECT_EQ(sent, numbers(kRanks, 20));
    if (rank == 1) {
      EXPECT_EQ(at_root, (std::vector<int32_t>{30, 33, 36}));
    }
    EXPECT_EQ(exchanged, (std::vector<int32_t>{rank, 10 + rank, 20 + rank}));
    EXPECT_EQ(all, (std::vector<int32_t>{0, 10, 11, 20, 21, 22}));
    if (rank == 1) {
      EXPECT_EQ(collected, (std::vector<int32_t>{0, 10, 20}));
    }
    EXPECT_EQ(dealt, 20 + rank);
  });
}

TEST(CApi, AWorkIsRunningUntilItsPeerComes) {
  std::atomic<bool> looked = false;
  on_ranks(2, [&](tutti_comm_t comm, int rank) {
    int32_t value = 40 + rank;
    if (rank == 1) {
      while (!looked) std::this_thread::yield();
      EXPECT_DONE(tutti_send(comm, &value, 1, TUTTI_I32, 0));
      return;
    }
    tutti_work_t work = nullptr;
    EXPECT_DONE(tutti_recv_async(comm, &value, 1, TUTTI_I32, 1, &work));
    int done = -1;
    EXPECT_DONE(tutti_work_test(work, &done));
    EXPECT_EQ(done, 0);
    EXPECT_EQ(tutti_work_status(work), TUTTI_RUNNING);
    EXPECT_EQ(tutti_work_wait(work, 1), TUTTI_RUNNING);
    looked = true;
    EXPECT_DONE(finish(work));
    EXPECT_EQ(value, 41);
  });
}

TEST(CApi, TagsAndAnySource) {
  on_ranks(2, [](tutti_comm_t comm, int rank) {
    int32_t out[] = {10, 20, 30}, in[] = {0, 0, 0};
    int source = -1;
    tutti_work_t work = nullptr;
    if (rank == 0) {
      for (int i = 0; i < 3; ++i) EXPECT_DONE(tutti_send_tagged(comm, &out[i], 1, TUTTI_I32, 1, i));
      EXPECT_EQ(tutti_send_tagged(comm, out, 1, TUTTI_I32, 1, -1), TUTTI_INVALID_ARGUMENT);
      EXPECT_EQ(tutti_send_tagged(comm, out, 1, TUTTI_I32, TUTTI_ANY_SOURCE, 0), TUTTI_INVALID_ARGUMENT);
      return;
    }
    EXPECT_DONE(tutti_recv_tagged(comm, &in[2], 1, TUTTI_I32, TUTTI_ANY_SOURCE, 2, &source));
    EXPECT_EQ(source, 0);
    tutti_memory_t memory = TUTTI_MEMORY_INIT;
    EXPECT_DONE(tutti_comm_memory(comm, &memory));
    EXPECT_GT(memory.messages, 0u);
    memory.size = offsetof(tutti_memory_t, messages);  // a program that was built before there was such a field
    memory.messages = 77;
    EXPECT_DONE(tutti_comm_memory(comm, &memory));
    EXPECT_EQ(memory.messages, 77u);
    source = -1;
    EXPECT_DONE(tutti_recv_tagged_async(comm, &in[1], 1, TUTTI_I32, TUTTI_ANY_SOURCE, 1, &source, &work));
    EXPECT_DONE(finish(work));
    EXPECT_EQ(source, 0);
    EXPECT_DONE(tutti_group_start(comm));
    EXPECT_DONE(tutti_recv(comm, &in[0], 1, TUTTI_I32, 0));
    EXPECT_DONE(tutti_group_end_async(comm, &work));
    EXPECT_DONE(finish(work));
    for (int i = 0; i < 3; ++i) EXPECT_EQ(in[i], out[i]);
    EXPECT_EQ(tutti_recv_tagged_async(comm, in, 1, TUTTI_I32, 0, 0, nullptr, nullptr), TUTTI_INVALID_ARGUMENT);
    EXPECT_EQ(tutti_group_end_async(comm, nullptr), TUTTI_INVALID_ARGUMENT);
  });
}

TEST(CApi, CallOptionsReachTheCall) {
  on_ranks(2, [](tutti_comm_t comm, int rank) {
    tutti_call_options_t options = TUTTI_CALL_OPTIONS_INIT;
    options.factor = rank + 2;  // 1 * 2 + 10 * 3
    const float mine = rank == 0 ? 1 : 10;
    float sum = 0;
    EXPECT_DONE(tutti_all_reduce(comm, &mine, &sum, 1, TUTTI_F32, TUTTI_PREMUL_SUM, &options));
    EXPECT_EQ(sum, 32);

    const uint8_t bits = rank == 0 ? 0x0e : 0x07;
    uint8_t joined = 0;
    EXPECT_DONE(tutti_all_reduce(comm, &bits, &joined, 1, TUTTI_U8, TUTTI_BAND, nullptr));
    EXPECT_EQ(joined, 0x06);
    EXPECT_DONE(tutti_all_reduce(comm, &bits, &joined, 1, TUTTI_U8, TUTTI_BOR, nullptr));
    EXPECT_EQ(joined, 0x0f);
    EXPECT_DONE(tutti_all_reduce(comm, &bits, &joined, 1, TUTTI_U8, TUTTI_BXOR, nullptr));
    EXPECT_EQ(joined, 0x09);
    EXPECT_EQ(tutti_all_reduce(comm, &mine, &sum, 1, TUTTI_F32, TUTTI_BXOR, nullptr), TUTTI_INVALID_ARGUMENT);

    options = TUTTI_CALL_OPTIONS_INIT;
    options.algorithm = "ring";
    EXPECT_DONE(tutti_all_reduce(comm, &mine, &sum, 1, TUTTI_F32, TUTTI_SUM, &options));
    EXPECT_NE(text_of(tutti_comm_explain_last_call, comm).find("ring"), std::string::npos);

    options.algorithm = "no such algorithm";
    EXPECT_NE(tutti_all_reduce(comm, &mine, &sum, 1, TUTTI_F32, TUTTI_SUM, &options), TUTTI_OK);
    EXPECT_NE(std::string(tutti_last_error()).find("no such algorithm"), std::string::npos);
  });
}

TEST(CApi, UniqueIdSplitAndMemory) {
  tutti_unique_id_t id;
  ASSERT_EQ(tutti_make_unique_id(&id), TUTTI_OK) << tutti_last_error();
  std::vector<std::thread> threads;
  for (int rank = 0; rank < kRanks; ++rank) {
    threads.emplace_back([&, rank] {
      tutti_comm_t comm = nullptr, part = nullptr;
      ASSERT_EQ(tutti_comm_create_from_unique_id(&id, rank, kRanks, nullptr, &comm), TUTTI_OK) << tutti_last_error();
      EXPECT_DONE(tutti_comm_split(comm, rank == 1 ? -1 : 0, -rank, &part));
      if (rank == 1) {
        EXPECT_EQ(part, nullptr);
      } else {
        int size = 0, new_rank = -1;
        EXPECT_DONE(tutti_comm_size(part, &size));
        EXPECT_DONE(tutti_comm_rank(part, &new_rank));
        EXPECT_EQ(size, 2);
        EXPECT_EQ(new_rank, rank == 2 ? 0 : 1) << "key -2 comes before key 0";
      }

      tutti_comm_t named = nullptr;
      EXPECT_EQ(tutti_comm_split_named(comm, 0, 0, "two\nlines", &named), TUTTI_INVALID_ARGUMENT);
      EXPECT_DONE(tutti_comm_split_named(comm, 0, -rank, "the C API's", &named));
      float x = 0;
      EXPECT_EQ(tutti_broadcast(named, &x, &x, 1, TUTTI_F32, kRanks, nullptr), TUTTI_INVALID_ARGUMENT);
      const std::string group_rank = "rank " + std::to_string(kRanks - 1 - rank);
      EXPECT_EQ(std::string(tutti_last_error())
                    .find(group_rank + " of group 'the C API's' (job rank " + std::to_string(rank) + ", host "),
                0u)
          << tutti_last_error();
      tutti_comm_destroy(named);

      void* memory = nullptr;
      ASSERT_EQ(tutti_allocate(4096, &memory), TUTTI_OK) << tutti_last_error();
      EXPECT_EQ(reinterpret_cast<std::uintptr_t>(memory) % 64, 0u);
      auto* data = static_cast<int32_t*>(memory);
      EXPECT_EQ(data[1023], 0);
      for (int i = 0; i < 1024; ++i) data[i] = rank * i;
      EXPECT_DONE(tutti_all_reduce(comm, data, data, 1024, TUTTI_I32, TUTTI_SUM, nullptr));
      EXPECT_EQ(data[1023], 3 * 1023);

      tutti_memory_t report = TUTTI_MEMORY_INIT;
      EXPECT_DONE(tutti_comm_memory(comm, &report));
      EXPECT_GT(report.scratch, 0u);
      tutti_traffic_t traffic = TUTTI_TRAFFIC_INIT;
      EXPECT_DONE(tutti_comm_traffic(comm, &traffic));
      EXPECT_GE(traffic.calls, 1u);
      report.size = 0;
      EXPECT_EQ(tutti_comm_memory(comm, &report), TUTTI_INVALID_ARGUMENT);

      EXPECT_NE(text_of(tutti_comm_flight_recorder_text, comm).find("all_reduce"), std::string::npos);
      EXPECT_NE(text_of(tutti_comm_flight_recorder_json, comm).find("all_reduce"), std::string::npos);
      char cut[5] = "????";
      std::size_t length = 0;
      EXPECT_DONE(tutti_comm_flight_recorder_text(comm, cut, sizeof(cut), &length));
      EXPECT_EQ(std::strlen(cut), 4u);
      EXPECT_GT(length, 4u);
      EXPECT_EQ(tutti_comm_flight_recorder_text(comm, nullptr, 5, nullptr), TUTTI_INVALID_ARGUMENT);

      EXPECT_DONE(tutti_barrier(comm));  // no rank frees memory that a peer may still look at
      tutti_free(memory);
      tutti_comm_destroy(part);
      tutti_comm_destroy(comm);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(CApi, AbortEndsEveryRankAndShrinkGoesOn) {
  on_ranks(2, [](tutti_comm_t comm, int rank) {
    int32_t value = 1;
    if (rank == 0) {
      EXPECT_DONE(tutti_comm_status(comm));
      EXPECT_DONE(tutti_comm_abort(comm, "the test says so"));
      EXPECT_EQ(tutti_comm_status(comm), TUTTI_ABORTED);
    }
    EXPECT_EQ(tutti_recv(comm, &value, 1, TUTTI_I32, 1 - rank), TUTTI_ABORTED);
    EXPECT_NE(std::string(tutti_last_error()).find("the test says so"), std::string::npos) << tutti_last_error();
    tutti_comm_t survivors = nullptr;
    EXPECT_DONE(tutti_comm_shrink(comm, &survivors));
    int32_t sum = 0;
    EXPECT_DONE(tutti_all_reduce(survivors, &value, &sum, 1, TUTTI_I32, TUTTI_SUM, nullptr));
    EXPECT_EQ(sum, 2);
    tutti_comm_destroy(survivors);
  });
}

}  // namespace
