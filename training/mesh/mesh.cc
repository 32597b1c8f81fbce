#include "training/mesh/mesh.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstddef>
#include <fstream>
#include <functional>
#include <iterator>
#include <system_error>
#include <utility>

#include "training/hash.h"

namespace tutti::training {
namespace {

struct Dimension {
  std::string_view name;
  int MeshShape::*size;
};
constexpr std::array<Dimension, 4> kDimensions{
    {{"dp", &MeshShape::dp}, {"fsdp", &MeshShape::fsdp}, {"tp", &MeshShape::tp}, {"pp", &MeshShape::pp}}};
constexpr int kMostRanks = 1 << 20;  // keeps products far from overflow

[[noreturn]] void refuse(const std::string& what) { throw Error(Code::invalid_argument, what); }

/// Returns a number that is the same on all ranks of a host, and different on another host.
std::uint64_t host_hash(const std::string& given) {
  std::string text = given;
  if (text.empty()) {
    std::array<char, 256> name{};
    gethostname(name.data(), name.size() - 1);
    std::ifstream boot("/proc/sys/kernel/random/boot_id");
    text = name.data() + std::string(std::istreambuf_iterator<char>(boot), {});
  }
  return ByteHash::of(text.data(), text.size());
}

}  // namespace

int place_on_host(Communicator comm) {
  const std::uint64_t mine = host_hash({});
  std::vector<std::uint64_t> all(static_cast<std::size_t>(comm.size()));
  comm.all_gather(&mine, all.data(), 1, DataType::u64);
  return static_cast<int>(std::count(all.begin(), all.begin() + comm.rank(), mine));
}

MeshShape parse_mesh(std::string_view text, int ranks) {
  const auto fail = [&](const std::string& what) {
    refuse(fmt::format("mesh '{}': {}; expected dimensions such as 'dp=2,tp=2', of dp, fsdp, tp and pp", text, what));
  };
  MeshShape shape;
  std::vector<std::string_view> seen;
  for (std::string_view rest = text; !rest.empty() || seen.empty();) {
    const std::size_t comma = rest.find(',');
    const std::string_view item = rest.substr(0, comma);
    const std::size_t equals = item.find('=');
    const std::string_view name = item.substr(0, equals);
    const auto* dimension = std::find_if(kDimensions.begin(), kDimensions.end(),
                                         [&](const Dimension& candidate) { return candidate.name == name; });
    if (dimension == kDimensions.end() || equals == item.npos) fail(fmt::format("'{}' is none of them", item));
    if (std::find(seen.begin(), seen.end(), name) != seen.end()) fail(fmt::format("{} is given twice", name));
    seen.push_back(name);
    const std::string_view number = item.substr(equals + 1);
    int size = 0;
    const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), size);
    if (error != std::errc() || end != number.data() + number.size() || size < 1 || size > kMostRanks) {
      fail(fmt::format("'{}' is no number of ranks", number));
    }
    shape.*dimension->size = size;
    if (comma != rest.npos && comma + 1 == rest.size()) fail("it ends with a comma");
    rest = comma == rest.npos ? std::string_view() : rest.substr(comma + 1);
  }
  std::int64_t product = 1;
  for (const Dimension& dimension : kDimensions) {
    product *= shape.*dimension.size;
    if (product > kMostRanks) break;
  }
  const bool dp_is_open = std::find(seen.begin(), seen.end(), "dp") == seen.end();
  if (dp_is_open && product <= ranks && ranks % product == 0) {
    shape.dp = ranks / static_cast<int>(product);
  } else if (product != ranks) {
    fail(fmt::format("there are {} ranks, which is not {} {}", ranks, dp_is_open ? "a multiple of" : "the product",
                     product));
  }
  return shape;
}

std::string to_text(const MeshShape& shape) {
  std::string text;
  for (const Dimension& dimension : kDimensions) {
    const int size = shape.*dimension.size;
    if (size > 1) text += fmt::format("{}{}={}", text.empty() ? "" : ",", dimension.name, size);
  }
  return text.empty() ? "dp=1" : text;
}

MeshPlace place_of(const MeshShape& shape, int rank) {
  MeshPlace place;
  place.tp = rank % shape.tp;
  rank /= shape.tp;
  place.fsdp = rank % shape.fsdp;
  rank /= shape.fsdp;
  place.dp = rank % shape.dp;
  place.pp = rank / shape.dp;
  return place;
}

int rank_at(const MeshShape& shape, const MeshPlace& place) {
  return ((place.pp * shape.dp + place.dp) * shape.fsdp + place.fsdp) * shape.tp + place.tp;
}

Mesh::Mesh(Communicator world, const MeshShape& shape, const MeshOptions& options)
    : shape_(shape), world_(std::move(world)) {
  const int rank = world_.rank(), ranks = world_.size();
  // What the ranks must agree on comes first, so that all of them see a difference and none starts to split.
  struct RankShape {
    std::uint64_t shape, host;
  };
  const std::string text =
      fmt::format("{} {} {} {} {}", shape.dp, shape.fsdp, shape.tp, shape.pp, options.tp_across_hosts);
  const RankShape mine{ByteHash::of(text.data(), text.size()), host_hash(options.host)};
  std::vector<RankShape> announced(static_cast<std::size_t>(ranks));
  world_.all_gather(&mine, announced.data(), 2, DataType::u64);
  for (std::size_t other = 1; other < announced.size(); ++other) {
    if (announced[other].shape != announced[0].shape) {
      refuse(fmt::format("Mesh: the shape or the options of rank {} differ from those of rank 0", other));
    }
  }
  if (shape_.dp < 1 || shape_.fsdp < 1 || shape_.tp < 1 || shape_.pp < 1 || shape_.ranks() != ranks) {
    refuse(
        fmt::format("Mesh: dp={}, fsdp={}, tp={}, pp={} cannot be laid on {} ranks; expected dimensions of at least "
                    "1 whose product is the number of ranks",
                    shape_.dp, shape_.fsdp, shape_.tp, shape_.pp, ranks));
  }
  place_ = place_of(shape_, rank);
  std::vector<std::uint64_t> hosts;
  for (const RankShape& one : announced) {
    auto found = std::find(hosts.begin(), hosts.end(), one.host);
    if (found == hosts.end()) found = hosts.insert(hosts.end(), one.host);
    host_of_.push_back(static_cast<int>(found - hosts.begin()));
  }
  hosts_ = static_cast<int>(hosts.size());
  for (int first = 0; first < ranks && !options.tp_across_hosts; first += shape_.tp) {
    for (int other = first + 1; other < first + shape_.tp; ++other) {
      if (host_of_[static_cast<std::size_t>(other)] == host_of_[static_cast<std::size_t>(first)]) continue;
      refuse(
          fmt::format("Mesh: tp={} puts ranks {} and {}, which are on different hosts, into one group; choose a tp "
                      "that divides the ranks of a host, or set tp_across_hosts",
                      shape_.tp, first, other));
    }
  }

  Options alone;
  alone.backend = "tutti";  // one rank needs no other
  // Equal colours are those of equal places, the dimension itself set to 0; ranks are in its order already.
  const auto along = [&](const char* name, int size, const std::function<void(MeshPlace&)>& forget) {
    if (size == ranks) return world_;
    if (size == 1) return Communicator::in_process(1, alone).front();
    MeshPlace place = place_;
    forget(place);
    return world_.split(rank_at(shape_, place), rank, name);
  };
  dp_ = along("dp", shape_.dp, [](MeshPlace& place) { place.dp = 0; });
  fsdp_ = along("fsdp", shape_.fsdp, [](MeshPlace& place) { place.fsdp = 0; });
  tp_ = along("tp", shape_.tp, [](MeshPlace& place) { place.tp = 0; });
  pp_ = along("pp", shape_.pp, [](MeshPlace& place) { place.pp = 0; });
  if (shape_.fsdp == 1 || shape_.dp == 1) {
    data_ = shape_.fsdp == 1 ? dp_ : fsdp_;
  } else {
    data_ = along("data", shape_.data_ranks(), [](MeshPlace& place) { place.dp = place.fsdp = 0; });
  }
}

Traffic Mesh::traffic() const {
  Traffic sum;
  std::vector<const CommunicatorInterface*> counted;
  for (const Communicator* comm : {&dp_, &fsdp_, &tp_, &pp_, &data_}) {
    if (std::find(counted.begin(), counted.end(), comm->impl().get()) != counted.end()) continue;
    counted.push_back(comm->impl().get());
    const Traffic one = comm->traffic();
    sum.calls += one.calls;
    sum.bytes_put += one.bytes_put;
    sum.signals += one.signals;
  }
  return sum;
}

std::string Mesh::describe() const {
  const int ranks = shape_.ranks();
  std::string text = fmt::format("mesh of {} rank{} on {} host{}: {}\n", ranks, ranks == 1 ? "" : "s", hosts_,
                                 hosts_ == 1 ? "" : "s", to_text(shape_));
  const std::size_t width = std::to_string(ranks - 1).size();
  for (int pp = 0; pp < shape_.pp; ++pp) {
    for (int dp = 0; dp < shape_.dp; ++dp) {
      text += fmt::format("stage {}  replica {} ", pp, dp);
      for (int fsdp = 0; fsdp < shape_.fsdp; ++fsdp) {
        const int first = rank_at(shape_, {dp, fsdp, 0, pp});
        const int host = host_of_[static_cast<std::size_t>(first)];
        text += hosts_ > 1 ? fmt::format(" host {} [", host) : std::string(" [");
        for (int tp = 0; tp < shape_.tp; ++tp) text += fmt::format("{}{:>{}}", tp == 0 ? "" : " ", first + tp, width);
        text += "]";
      }
      text += "\n";
    }
  }
  return text;
}

}  // namespace tutti::training
