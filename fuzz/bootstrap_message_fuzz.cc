// The bytes that strangers send to the bootstrap server: any stream, cut anywhere, and any payload. What a decoder
// accepts must be written back as the same bytes.
#include <cstdint>
#include <cstdlib>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "transport/bootstrap/bootstrap.h"
#include "transport/bootstrap/environment.h"
#include "transport/bootstrap/message.h"

namespace tutti::bootstrap {
namespace {

template <class Message>
void try_payload(std::string_view payload) {
  const Result<Message> message = decode<Message>(payload);
  if (message.ok() && encode(message.value()) != payload) std::abort();
}

void try_stream(std::string_view bytes, std::size_t max_payload) {
  FrameReader reader;
  const std::size_t middle = bytes.empty() ? 0 : static_cast<unsigned char>(bytes[0]) % bytes.size();
  for (const std::string_view part : {bytes.substr(0, middle), bytes.substr(middle)}) {
    reader.append(part);
    for (;;) {
      const Result<std::optional<Frame>> frame = reader.next(max_payload);
      if (!frame.ok()) return;
      if (!frame.value()) break;
      if (frame.value()->payload.size() > max_payload) std::abort();
    }
  }
}

void try_all(std::string_view bytes) {
  try_stream(bytes, kMaxUnprovenPayload);
  try_stream(bytes, kMaxPayload);
  try_payload<Challenge>(bytes);
  try_payload<JoinRequest>(bytes);
  try_payload<Welcome>(bytes);
  try_payload<Refusal>(bytes);
  try_payload<Roster>(bytes);
  try_payload<Gather>(bytes);
  try_payload<Gathered>(bytes);
  try_payload<GatherFailed>(bytes);
  try_payload<DeadlineNotice>(bytes);
  try_payload<FailureNote>(bytes);
  try_payload<ProgressReport>(bytes);
  try_payload<LeaveNotice>(bytes);
  try_payload<Left>(bytes);
  if (bytes.size() >= 128) {
    const Result<JoinInfo> info = decode_join_info(std::span<const char, 128>(bytes.data(), 128));
    if (info.ok() && !encode_join_info(info.value()).ok()) std::abort();
  }
  (void)first_host(std::string(bytes));
}

}  // namespace
}  // namespace tutti::bootstrap

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  tutti::bootstrap::try_all({reinterpret_cast<const char*>(data), size});
  return 0;
}
