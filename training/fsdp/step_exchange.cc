#include "training/fsdp/step_exchange.h"

#include <fmt/format.h>

#include <exception>
#include <utility>

namespace tutti::training {
namespace {

constexpr const char* kReason =
    "the ranks' steps differ: the loss of one of them used no parameter, its backward was left out or run twice, or it "
    "used parameters outside of its step";

}  // namespace

std::string with_reason(const std::string& message) {
  const bool of_calls =
      message.find(" called ") != std::string::npos || message.find(" where rank ") != std::string::npos;
  // Two ranks that wait in different communicators see each other late, not in another call.
  const bool late = message.find(" has not entered it; ") != std::string::npos;
  if ((!of_calls && !late) || message.find(kReason) != std::string::npos) return message;
  return fmt::format("{}; {}{}", message, late ? "unless that rank is stopped or busy, " : "", kReason);
}

StepExchange::StepExchange(Communicator gathers, Communicator reductions)
    : ways_{Way{std::move(gathers), {}, {}}, Way{std::move(reductions), {}, {}}} {
  for (Way& way : ways_) way.words.resize(kWords * static_cast<std::size_t>(way.comm.size()));
}

// The exchanges write into this object.
StepExchange::~StepExchange() {
  for (Way& way : ways_) {
    try {
      if (way.work) way.work.wait();
    } catch (const std::exception&) {
      // It has ended, which is all that matters here.
    }
  }
}

void StepExchange::on_zero_grad() {
  if (!std::exchange(begun_by_write_, false)) begin_step();
}

void StepExchange::on_write() {
  if (due_) return;
  begin_step();
  begun_by_write_ = true;
}

void StepExchange::begin_step() {
  ++steps_;
  due_ = true;
}

void StepExchange::meet() {
  if (!std::exchange(due_, false) || ways_[0].comm.size() == 1) return;
  told_with_reason([this] {
    for (Way& way : ways_) {
      std::uint64_t* mine = way.words.data() + kWords * static_cast<std::size_t>(way.comm.rank());
      mine[0] = steps_;
      mine[1] = passes_;
      way.work = way.comm.all_gather_async(mine, way.words.data(), kWords, DataType::u64);
    }
    // Reductions first: a rank of the step before waits there, or for a rank that is in one.
    for (std::size_t i = ways_.size(); i-- > 0;) ways_[i].work.wait();
  });
  const std::string found = difference();
  if (!found.empty()) throw Error(Code::mismatch, with_reason(found));
}

std::string StepExchange::difference() const {
  const std::vector<std::uint64_t>& words = ways_[0].words;
  for (std::size_t rank = 1; rank < words.size() / kWords; ++rank) {
    for (std::size_t i = 0; i < kWords; ++i) {
      const std::uint64_t theirs = words[kWords * rank + i];
      if (theirs == words[i]) continue;
      return fmt::format("rank {} has {} {} {} where rank 0 has {} {}", rank, i == 0 ? "begun" : "done", theirs,
                         i == 0 ? "steps" : "backward passes", i == 0 ? "begun" : "done", words[i]);
    }
  }
  return {};
}

}  // namespace tutti::training
