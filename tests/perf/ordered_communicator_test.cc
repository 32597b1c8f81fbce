// What the baselines share: calls that were started run in order, before later blocking calls, and errors arrive.
#include "collectives/baseline/plugins/ordered_communicator.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <semaphore>
#include <thread>
#include <vector>

namespace tutti::ordered_communicator_test {
namespace {

class Recorder final : public OrderedCommunicator {
 public:
  Recorder() : OrderedCommunicator("recorder") {}
  ~Recorder() override { stop(); }
  int rank() const override { return 0; }
  int size() const override { return 1; }

  std::counting_semaphore<> gate{0};  // calls of 7 elements wait here
  bool streams = false;               // all calls go into a stream
  std::vector<std::size_t> counts;
  std::vector<std::thread::id> threads;

 private:
  Status execute(const Call& call) override {
    if (call.count == 7) gate.acquire();
    counts.push_back(call.count);
    threads.push_back(std::this_thread::get_id());
    if (call.algorithm == "bad") return lacks("bad");
    return {};
  }
  Status execute_group(std::span<const Transfer> transfers) override {
    counts.push_back(100 + transfers.size());
    threads.push_back(std::this_thread::get_id());
    return {};
  }
  bool goes_into_a_stream(const Call& /*call*/) const override { return streams; }
  bool goes_into_a_stream(std::span<const Transfer> /*transfers*/) const override { return streams; }
};

Call call_of(std::size_t count) {
  Call call;
  call.collective = Collective::all_reduce;
  call.count = count;
  return call;
}

TEST(OrderedCommunicator, StartedCallsRunInOrderAndBeforeABlockingOne) {
  Recorder recorder;
  ASSERT_TRUE(recorder.run(call_of(1)).ok());
  auto first = recorder.start(call_of(7));
  auto second = recorder.start(call_of(2));
  auto third = recorder.start_group(std::vector<Transfer>(3));
  ASSERT_TRUE(first.ok() && second.ok() && third.ok());
  EXPECT_FALSE(second.value()->wait_for(std::chrono::milliseconds(1))) << "the first one is still at the gate";
  recorder.gate.release();
  ASSERT_TRUE(recorder.run(call_of(3)).ok());
  EXPECT_EQ(recorder.counts, (std::vector<std::size_t>{1, 7, 2, 103, 3}));
  EXPECT_TRUE(third.value()->wait_for(std::chrono::nanoseconds::max()));
  EXPECT_EQ(recorder.threads.front(), std::this_thread::get_id()) << "blocking calls run on the caller's thread";
  EXPECT_NE(recorder.threads[1], std::this_thread::get_id());
}

// A caller that starts a call on a stream expects it there, behind earlier work.
TEST(OrderedCommunicator, WhatGoesIntoAStreamIsThereWhenStartReturns) {
  Recorder recorder;
  auto first = recorder.start(call_of(7));
  recorder.gate.release();
  recorder.streams = true;
  auto second = recorder.start(call_of(2));
  EXPECT_EQ(recorder.counts, (std::vector<std::size_t>{7, 2}));
  auto third = recorder.start_group(std::vector<Transfer>(3));
  EXPECT_EQ(recorder.counts, (std::vector<std::size_t>{7, 2, 103}));
  EXPECT_NE(recorder.threads[0], std::this_thread::get_id());
  EXPECT_EQ(recorder.threads[1], std::this_thread::get_id());
  EXPECT_EQ(recorder.threads[2], std::this_thread::get_id());
  Call bad = call_of(4);
  bad.algorithm = "bad";
  auto fourth = recorder.start(bad);
  ASSERT_TRUE(first.ok() && second.ok() && third.ok() && fourth.ok());
  for (auto* work : {&first, &second, &third, &fourth}) {
    EXPECT_TRUE(work->value()->wait_for(std::chrono::nanoseconds(0)));
  }
  EXPECT_TRUE(second.value()->status().ok());
  EXPECT_EQ(fourth.value()->status().message(), "backend recorder: bad is not supported");
}

TEST(OrderedCommunicator, DestructionWaitsForWhatWasStarted) {
  std::shared_ptr<PendingWork> work;
  {
    Recorder recorder;
    work = recorder.start(call_of(7)).take();
    recorder.gate.release();
  }
  EXPECT_TRUE(work->wait_for(std::chrono::nanoseconds(0)));
}

TEST(OrderedCommunicator, AStartedCallKeepsItsAlgorithmAndItsError) {
  Recorder recorder;
  std::string name = "bad";
  Call call = call_of(7);
  call.algorithm = name;
  auto work = recorder.start(call).take();
  name = "overwritten";
  recorder.gate.release();
  ASSERT_TRUE(work->wait_for(std::chrono::seconds(60)));
  EXPECT_EQ(work->status().code(), Code::unsupported);
  EXPECT_EQ(work->status().message(), "backend recorder: bad is not supported");
}

TEST(OrderedCommunicator, RefusesWhatNoBaselineHas) {
  Recorder recorder;
  Call deterministic = call_of(1);
  deterministic.deterministic = true;
  EXPECT_EQ(recorder.run(deterministic).code(), Code::unsupported);
  Call scaled = call_of(1);
  scaled.op = ReduceOp::premul_sum;
  EXPECT_EQ(recorder.run(scaled).code(), Code::unsupported);
  Call bits = call_of(1);
  bits.type = DataType::f32;
  bits.op = ReduceOp::bxor;
  EXPECT_EQ(recorder.run(bits).code(), Code::invalid_argument);
  EXPECT_EQ(recorder.shrink().status().code(), Code::unsupported);
  EXPECT_TRUE(recorder.counts.empty());
}

TEST(OrderedCommunicator, DivideTruncatesIntegers) {
  std::vector<std::int32_t> whole{7, -7, 6};
  divide(whole.data(), whole.size(), DataType::i32, 2);
  EXPECT_EQ(whole, (std::vector<std::int32_t>{3, -3, 3}));
  std::vector<float> real{7, -7};
  divide(real.data(), real.size(), DataType::f32, 2);
  EXPECT_EQ(real, (std::vector<float>{3.5f, -3.5f}));
}

TEST(OrderedCommunicator, InPlaceIsByTheCollectivesRule) {
  std::vector<float> data(8);
  Call call = call_of(2);
  call.type = DataType::f32;
  call.send = data.data() + 2;
  call.recv = data.data();
  call.collective = Collective::all_gather;
  EXPECT_TRUE(is_in_place(call, 1));
  EXPECT_FALSE(is_in_place(call, 0));
  call.send = data.data();
  call.recv = data.data() + 2;
  call.collective = Collective::reduce_scatter;
  EXPECT_TRUE(is_in_place(call, 1));
  call.collective = Collective::all_reduce;
  EXPECT_FALSE(is_in_place(call, 1));
}

}  // namespace
}  // namespace tutti::ordered_communicator_test
