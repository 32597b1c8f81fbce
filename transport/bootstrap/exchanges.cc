#include "transport/bootstrap/exchanges.h"

#include <fmt/format.h>

#include <chrono>
#include <utility>

namespace tutti::bootstrap {
namespace {

/// Exchanges that may be under way at once. Ranks run ahead of each other only past failed ones.
constexpr std::size_t kMaxExchanges = 1024;

const char* has(const std::vector<int>& ranks) { return ranks.size() == 1 ? "has" : "have"; }

}  // namespace

Status Exchanges::on_gather(int from, Gather gather) {
  if (gather.sequence == 0) return invalid_argument("an exchange numbered 0");
  if (answered_with_failure(from, gather.sequence)) return {};
  if (open_.size() >= kMaxExchanges) return invalid_argument("too many exchanges at once");
  Open& open = open_[gather.sequence];
  open.blobs.resize(ranks_.all().size());
  std::optional<std::string>& blob = open.blobs[static_cast<std::size_t>(from)];
  if (blob) return invalid_argument("two contributions to one exchange");
  blob = std::move(gather.blob);
  ++open.contributed;
  if (open.contributed == ranks_.size()) {
    finish(gather.sequence, open);
  } else if (gone_) {
    fail(gather.sequence, gone_->code(), gone_->message());
  }
  return {};
}

void Exchanges::finish(std::uint64_t sequence, Open& open) {
  Gathered gathered;
  gathered.sequence = sequence;
  for (std::optional<std::string>& blob : open.blobs) gathered.blobs.push_back(std::move(*blob));
  std::string payload = encode(gathered);
  if (payload.size() > kMaxPayload) {
    return fail(
        sequence, Code::invalid_argument,
        fmt::format("the ranks gave {} bytes to one exchange; at most {} are allowed", payload.size(), kMaxPayload));
  }
  open_.erase(sequence);
  ranks_.broadcast(-1, {MessageType::gathered, std::move(payload)});
}

bool Exchanges::answered_with_failure(int rank, std::uint64_t sequence) {
  const auto failed = failed_.find(sequence);
  if (failed == failed_.end()) return false;
  ranks_.send(rank, {MessageType::gather_failed, encode(failed->second)});
  return true;
}

Status Exchanges::on_survivor_exchange(int from, SurvivorExchange exchange) {
  const auto own = static_cast<std::size_t>(from);
  const std::size_t size = ranks_.all().size();
  if (exchange.among.size() != size || exchange.among[own] == 0 || exchange.blob.empty() ||
      (exchange.sequence & SurvivorExchange::kName) == 0) {
    return invalid_argument("a malformed exchange of survivors");
  }
  if (answered_with_failure(from, exchange.sequence)) return {};
  if (finished_survivors_.count(exchange.sequence) != 0) return {};  // the outcome is on its way
  if (open_survivors_.size() >= kMaxExchanges) return invalid_argument("too many exchanges of survivors at once");
  OpenSurvivors& open = open_survivors_[exchange.sequence];
  if (open.blobs.empty()) open = {exchange.among, std::vector<std::string>(size)};
  for (std::size_t r = 0; r < size; ++r) {
    if (exchange.among[r] == 0) open.among[r] = 0;
  }
  open.blobs[own] = std::move(exchange.blob);
  finish_survivor_exchanges();
  return {};
}

int Exchanges::first_missing(const OpenSurvivors& open) const {
  for (const int rank : ranks_.that_are(Presence::here)) {
    const auto r = static_cast<std::size_t>(rank);
    if (open.among[r] != 0 && open.blobs[r].empty()) return rank;
  }
  return -1;
}

void Exchanges::finish_survivor_exchanges() {
  for (auto at = open_survivors_.begin(); at != open_survivors_.end();) {
    if (first_missing(at->second) >= 0) {
      ++at;
      continue;
    }
    Gathered gathered;
    gathered.sequence = at->first;
    gathered.blobs.resize(ranks_.all().size());
    std::vector<int> survivors;
    for (const int rank : ranks_.that_are(Presence::here)) {
      std::string& blob = at->second.blobs[static_cast<std::size_t>(rank)];
      if (blob.empty()) continue;
      gathered.blobs[static_cast<std::size_t>(rank)] = std::move(blob);
      survivors.push_back(rank);
    }
    finished_survivors_.insert(at->first);
    at = open_survivors_.erase(at);
    for (const int rank : survivors) ranks_.send(rank, {MessageType::gathered, encode(gathered)});
  }
}

void Exchanges::on_deadline(const DeadlineNotice& notice) {
  const std::string limit = seconds_text(std::chrono::milliseconds(notice.waited_ms));
  if (const auto survivors = open_survivors_.find(notice.sequence); survivors != open_survivors_.end()) {
    const int late = first_missing(survivors->second);
    open_survivors_.erase(survivors);
    return fail(notice.sequence, Code::timeout,
                fmt::format("rank {} has not come to the exchange of survivors within {}", late, limit), late);
  }
  const auto found = open_.find(notice.sequence);
  if (found == open_.end()) return;  // the outcome is on its way to the rank that asks
  const std::vector<std::optional<std::string>>& blobs = found->second.blobs;
  std::vector<int> missing;
  std::vector<int> given;
  for (std::size_t r = 0; r < blobs.size(); ++r) (blobs[r] ? given : missing).push_back(static_cast<int>(r));
  fail(notice.sequence, Code::timeout,
       fmt::format("{} of {} {} not come to exchange {} within {}; {} {} there", rank_list(missing), blobs.size(),
                   has(missing), notice.sequence, limit, rank_list(given), given.size() == 1 ? "is" : "are"));
}

void Exchanges::fail(std::uint64_t sequence, Code code, std::string text, int late) {
  open_.erase(sequence);
  GatherFailed failed;
  failed.sequence = sequence;
  failed.code = code;
  failed.text = std::move(text);
  failed.rank = late;
  ranks_.broadcast(-1, {MessageType::gather_failed, encode(failed)});
  failed_[sequence] = std::move(failed);
  if (failed_.size() > kMaxExchanges) failed_.erase(failed_.begin());
}

void Exchanges::fail_all(Status why) {
  if (gone_) return;
  gone_ = std::move(why);
  while (!open_.empty()) fail(open_.begin()->first, gone_->code(), gone_->message());
}

std::string Exchanges::who_is_waited_for() const {
  for (const auto& [sequence, open] : open_) {
    std::vector<int> missing;
    for (const int rank : ranks_.that_are(Presence::here)) {
      if (!open.blobs[static_cast<std::size_t>(rank)]) missing.push_back(rank);
    }
    if (missing.empty()) continue;
    return fmt::format("; {} {} not come to exchange {}", rank_list(missing), has(missing), sequence);
  }
  return {};
}

}  // namespace tutti::bootstrap
