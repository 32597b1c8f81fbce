#include "transport/bootstrap/message.h"

#include <fmt/format.h>

#include <concepts>
#include <cstring>
#include <type_traits>
#include <utility>

#include "base/check.h"

namespace tutti::bootstrap {
namespace {

template <class T>
concept Message = requires {
  T::kType;
};

class Writer {
 public:
  template <std::integral T>
  Writer& operator()(T value) {
    auto bits = static_cast<std::make_unsigned_t<T>>(value);
    for (std::size_t i = 0; i < sizeof(T); ++i) {
      bytes_ += static_cast<char>(bits & 0xff);
      bits = static_cast<decltype(bits)>(static_cast<std::uint64_t>(bits) >> 8);
    }
    return *this;
  }
  Writer& operator()(Code code) { return (*this)(static_cast<std::int32_t>(code)); }
  template <std::size_t N>
  Writer& operator()(const std::array<unsigned char, N>& array) {
    bytes_.append(reinterpret_cast<const char*>(array.data()), N);
    return *this;
  }
  /// Cuts a text that is too long: a long sentence or host name must not make a frame that the other side refuses.
  Writer& operator()(const std::string& text, std::size_t longest) {
    const std::string_view part = std::string_view(text).substr(0, longest);
    (*this)(static_cast<std::uint32_t>(part.size()));
    bytes_ += part;
    return *this;
  }
  Writer& operator()(Identity& identity) {
    identity.fields(*this);
    return *this;
  }
  Writer& operator()(std::vector<Identity>& list) {
    (*this)(static_cast<std::uint32_t>(list.size()));
    for (Identity& item : list) (*this)(item);
    return *this;
  }
  Writer& operator()(const std::vector<std::string>& list) {
    (*this)(static_cast<std::uint32_t>(list.size()));
    for (const std::string& item : list) (*this)(item, kMaxPayload);
    return *this;
  }
  Writer& operator()(const std::vector<std::int32_t>& list) {
    (*this)(static_cast<std::uint32_t>(list.size()));
    for (const std::int32_t item : list) (*this)(item);
    return *this;
  }
  std::string take() { return std::move(bytes_); }

 private:
  std::string bytes_;
};

class Reader {
 public:
  explicit Reader(std::string_view bytes) : rest_(bytes) {}

  template <std::integral T>
  Reader& operator()(T& value) {
    std::make_unsigned_t<T> bits = 0;
    if (!has(sizeof(T))) return *this;
    for (std::size_t i = 0; i < sizeof(T); ++i) {
      const auto byte = static_cast<std::uint64_t>(static_cast<unsigned char>(rest_[i]));
      bits = static_cast<decltype(bits)>(bits | byte << (8 * i));
    }
    rest_.remove_prefix(sizeof(T));
    value = static_cast<T>(bits);
    return *this;
  }
  Reader& operator()(Code& code) {
    std::int32_t number = 0;
    (*this)(number);
    if (number <= static_cast<int>(Code::ok) || number > static_cast<int>(Code::memory_limit)) return fail();
    code = static_cast<Code>(number);
    return *this;
  }
  template <std::size_t N>
  Reader& operator()(std::array<unsigned char, N>& array) {
    if (!has(N)) return *this;
    std::memcpy(array.data(), rest_.data(), N);
    rest_.remove_prefix(N);
    return *this;
  }
  Reader& operator()(std::string& text, std::size_t longest) {
    std::uint32_t size = 0;
    (*this)(size);
    if (size > longest || !has(size)) return fail();
    text.assign(rest_.substr(0, size));
    rest_.remove_prefix(size);
    return *this;
  }
  Reader& operator()(Identity& identity) {
    identity.fields(*this);
    return *this;
  }
  Reader& operator()(std::vector<Identity>& list) {
    return items(list, [this](Identity& item) { (*this)(item); });
  }
  Reader& operator()(std::vector<std::string>& list) {
    return items(list, [this](std::string& item) { (*this)(item, kMaxPayload); });
  }
  Reader& operator()(std::vector<std::int32_t>& list) {
    return items(list, [this](std::int32_t& item) { (*this)(item); });
  }
  bool finished_well() const { return good_ && rest_.empty(); }

 private:
  template <class T, class ReadItem>
  Reader& items(std::vector<T>& list, ReadItem read_item) {
    std::uint32_t count = 0;
    (*this)(count);
    // No item is shorter than four bytes, those of its length field or number, so a count beyond that is a lie and must
    // not reserve memory.
    if (count > rest_.size() / sizeof(std::uint32_t)) return fail();
    for (std::uint32_t i = 0; i < count && good_; ++i) read_item(list.emplace_back());
    return *this;
  }
  bool has(std::size_t bytes) {
    if (rest_.size() < bytes) good_ = false;
    return good_;
  }
  Reader& fail() {
    good_ = false;
    return *this;
  }

  std::string_view rest_;
  bool good_ = true;
};

const char* name_of(MessageType type) {
  constexpr const char* names[] = {"?",           "challenge", "join request", "welcome",           "refusal",
                                   "roster",      "gather",    "gathered",     "gather failed",     "deadline notice",
                                   "failure",     "left",      "goodbye",      "survivor exchange", "progress report",
                                   "leave notice"};
  return names[static_cast<int>(type)];
}

}  // namespace

std::string encode_frame(MessageType type, std::string_view payload) {
  TUTTI_CHECK_LE(payload.size(), kMaxPayload);
  Writer header;
  header(static_cast<std::uint32_t>(payload.size()))(static_cast<std::uint8_t>(type));
  return header.take().append(payload);
}

Result<std::optional<Frame>> FrameReader::next(std::size_t max_payload) {
  const std::string_view rest = std::string_view(buffer_).substr(at_);
  if (rest.size() < kHeaderBytes) return std::optional<Frame>();
  std::uint32_t length = 0;
  std::uint8_t type = 0;
  Reader header(rest.substr(0, kHeaderBytes));
  header(length)(type);
  if (length > max_payload) {
    return invalid_argument(fmt::format("a message of {} bytes where at most {} are allowed", length, max_payload));
  }
  if (type == 0 || type > kLastMessageType) {
    return invalid_argument(fmt::format("a message of unknown type {}", type));
  }
  if (rest.size() < kHeaderBytes + length) return std::optional<Frame>();
  Frame frame{static_cast<MessageType>(type), std::string(rest.substr(kHeaderBytes, length))};
  at_ += kHeaderBytes + length;
  // Moving the rest to the front costs its length, so it waits until the used part outweighs it.
  if (at_ * 2 > buffer_.size()) {
    buffer_.erase(0, at_);
    at_ = 0;
  }
  return std::optional<Frame>(std::move(frame));
}

template <class Message>
std::string encode(const Message& message) {
  Writer writer;
  Message copy = message;  // fields() is one function for reading and writing, so it wants a changeable object
  copy.fields(writer);
  return writer.take();
}

template <class Message>
Result<Message> decode(std::string_view payload) {
  Message message;
  Reader reader(payload);
  message.fields(reader);
  bool good = reader.finished_well();
  if constexpr (requires { message.magic; }) good = good && message.magic == Message{}.magic;
  if (!good) return invalid_argument(fmt::format("a malformed message of type {}", name_of(Message::kType)));
  return message;
}

#define TUTTI_MESSAGE(Type)                       \
  template std::string encode<Type>(const Type&); \
  template Result<Type> decode<Type>(std::string_view);
TUTTI_MESSAGE(Challenge)
TUTTI_MESSAGE(JoinRequest)
TUTTI_MESSAGE(Welcome)
TUTTI_MESSAGE(Refusal)
TUTTI_MESSAGE(Roster)
TUTTI_MESSAGE(Gather)
TUTTI_MESSAGE(SurvivorExchange)
TUTTI_MESSAGE(Gathered)
TUTTI_MESSAGE(GatherFailed)
TUTTI_MESSAGE(DeadlineNotice)
TUTTI_MESSAGE(FailureNote)
TUTTI_MESSAGE(ProgressReport)
TUTTI_MESSAGE(LeaveNotice)
TUTTI_MESSAGE(Left)
TUTTI_MESSAGE(Goodbye)
#undef TUTTI_MESSAGE

std::string rank_list(const std::vector<int>& sorted_ranks) {
  std::string text = sorted_ranks.size() == 1 ? "rank " : "ranks ";
  for (std::size_t i = 0; i < sorted_ranks.size();) {
    std::size_t last = i;
    while (last + 1 < sorted_ranks.size() && sorted_ranks[last + 1] == sorted_ranks[last] + 1) ++last;
    if (last < i + 3) last = i;  // "0, 1, 2" reads better than "0-2"
    if (i > 0) text += ", ";
    text += last > i ? fmt::format("{}-{}", sorted_ranks[i], sorted_ranks[last]) : fmt::format("{}", sorted_ranks[i]);
    i = last + 1;
  }
  return text;
}

}  // namespace tutti::bootstrap
