#include "csrc/backend/invitation.h"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace tutti_torch {

namespace {

constexpr std::chrono::milliseconds kShortest{1};
constexpr std::chrono::milliseconds kLongest{50};

std::string join_key(int rank) { return "join/" + std::to_string(rank); }
std::string id_key(const std::string& word) { return "id/" + word; }

/// Returns the group's description; none where this version of PyTorch does not pass it on.
template <class Options>
std::string description_of(const Options& options) {
  if constexpr (requires { options.group_desc; }) {
    return options.group_desc == "undefined" ? std::string() : options.group_desc;
  }
  return {};
}

}  // namespace

std::string random_nonce() {
  std::random_device random;
  return std::to_string(random()) + "-" + std::to_string(random());
}

std::string text_of(const std::vector<std::uint64_t>& ranks) {
  std::string text;
  for (const std::uint64_t rank : ranks) text += (text.empty() ? "[" : ", ") + std::to_string(rank);
  return text + "]";
}

std::string name_of(const TuttiBackend::Options& options) {
  const std::vector<std::uint64_t>& ranks = options.global_ranks_in_group;
  return ranks.empty() ? "the default group" : "the group " + text_of(ranks);
}

std::string group_name(const c10d::Backend::Options& options) {
  std::string name = description_of(options);
  if (name.empty()) name = options.group_name;
  constexpr std::size_t kMost = 64;
  if (name.size() > kMost) name.resize(kMost);
  std::replace_if(
      name.begin(), name.end(), [](char c) { return c < ' ' || c > '~'; }, '?');
  return name;
}

Invitations::Invitations(c10::intrusive_ptr<c10d::Store> store, int size, Invitation invitation)
    : store_(std::move(store)), size_(size), invitation_(std::move(invitation)) {
  thread_ = std::thread([this] { answer_until_ended(); });
}

Invitations::~Invitations() {
  ended_ = true;
  thread_.join();
}

void Invitations::answer_until_ended() try {
  const auto* bytes = reinterpret_cast<const std::uint8_t*>(invitation_.id.bytes);
  std::vector<std::uint8_t> text(bytes, bytes + sizeof(invitation_.id.bytes));
  text.insert(text.end(), invitation_.making.begin(), invitation_.making.end());
  std::vector<std::string> answered(static_cast<std::size_t>(size_));
  for (auto pause = kShortest; !ended_; pause = std::min(2 * pause, kLongest)) {
    for (int rank = 1; rank < size_ && !ended_; ++rank) {
      if (!store_->check({join_key(rank)})) continue;
      std::string word = store_->get_to_str(join_key(rank));
      std::string& last = answered[static_cast<std::size_t>(rank)];
      if (word == last) continue;
      store_->set(id_key(word), text);
      last = std::move(word);
      pause = kShortest;
    }
    std::this_thread::sleep_for(pause);
  }
} catch (const std::exception&) {
  // The store has ended. The ranks that had no answer say so, and this one at its deadline.
}

Invitation wait_for_invitation(c10d::Store& store, int rank, const TuttiBackend::Options& options) {
  const std::string word = random_nonce();
  store.set(join_key(rank), word);
  try {
    store.wait({id_key(word)}, options.timeout);
  } catch (const c10::DistStoreError&) {
    TORCH_CHECK_WITH(
        DistBackendError, false, "rank ", rank, " of ", name_of(options), " waited ", options.timeout.count(),
        " ms and timed out: its rank 0 has not begun to make it; expected every rank of a group to make it, "
        "and those of one list of ranks as often as each other");
  }
  const std::vector<std::uint8_t> answer = store.get(id_key(word));
  Invitation invitation;
  constexpr std::size_t kBytes = sizeof(invitation.id.bytes);
  TORCH_CHECK_WITH(DistBackendError, answer.size() > kBytes, "rank ", rank, " found ", answer.size(),
                   " bytes in the store; expected more than the ", kBytes, " of Tutti's id");
  std::memcpy(invitation.id.bytes, answer.data(), kBytes);
  invitation.making.assign(answer.begin() + static_cast<std::ptrdiff_t>(kBytes), answer.end());
  return invitation;
}

}  // namespace tutti_torch
