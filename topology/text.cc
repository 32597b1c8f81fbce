#include "topology/text.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <iterator>
#include <limits>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "base/parse.h"
#include "topology/cpu_list.h"

namespace tutti::topology {

namespace {

using Json = nlohmann::json;
using OrderedJson = nlohmann::ordered_json;  // for printing only: its look-up of a key is a search

constexpr int kForm = 1;
// A short list may name many CPUs: the limit for all lists together.
constexpr std::size_t kMostListedCpus = std::size_t{1} << 22;

constexpr std::pair<PlaceKind, const char*> kParts[] = {{PlaceKind::package, "package"},
                                                        {PlaceKind::numa_node, "numa_node"},
                                                        {PlaceKind::core, "core"},
                                                        {PlaceKind::device, "device"}};
constexpr DeviceKind kDeviceKinds[] = {DeviceKind::pci_switch, DeviceKind::nic, DeviceKind::gpu, DeviceKind::nvswitch};

// A value and its place in the text, for errors.
struct At {
  const Json& value;
  std::string where;

  Status wrong(const std::string& what) const { return invalid_argument(fmt::format("{}: {}", where, what)); }
};

class Reader {
 public:
  Result<Topology> topology(const At& at) {
    TUTTI_TRY(object(at, {"tutti_topology", "hosts", "switches", "links", "ranks"}));
    int form = 0;
    TUTTI_TRY(integer(at, "tutti_topology", form));
    if (form != kForm) return at.wrong(fmt::format("tutti_topology is {}; this build reads {}", form, kForm));
    Topology t;
    TUTTI_TRY(list(at, "hosts", true, [&](const At& one) { return host(one, t.hosts.emplace_back()); }));
    TUTTI_TRY(list(at, "switches", false, [&](const At& one) {
      TUTTI_TRY(object(one, {"name"}));
      return text(one, "name", t.switches.emplace_back().name);
    }));
    TUTTI_TRY(list(at, "links", false, [&](const At& one) { return link(one, t.links.emplace_back()); }));
    TUTTI_TRY(list(at, "ranks", false, [&](const At& one) { return place(one, t.ranks.emplace_back()); }));
    TUTTI_TRY(check(t));
    return t;
  }

 private:
  static std::string joined(const At& at, const char* key) { return at.where.empty() ? key : at.where + "." + key; }

  static Status object(const At& at, std::initializer_list<const char*> keys) {
    if (!at.value.is_object()) return at.wrong(fmt::format("is {}; expected an object", at.value.type_name()));
    for (const auto& [key, value] : at.value.items()) {
      bool known = false;
      for (const char* k : keys) known = known || key == k;
      if (!known) return at.wrong(fmt::format("unknown key {}", quote(key)));
    }
    return {};
  }

  template <class Each>
  static Status list(const At& at, const char* key, bool required, const Each& each) {
    const auto found = at.value.find(key);
    if (found == at.value.end()) return required ? at.wrong(fmt::format("has no \"{}\"", key)) : Status();
    const At here{*found, joined(at, key)};
    if (!found->is_array()) return here.wrong(fmt::format("is {}; expected a list", found->type_name()));
    for (std::size_t i = 0; i < found->size(); ++i) {
      TUTTI_TRY(each(At{(*found)[i], fmt::format("{}[{}]", here.where, i)}));
    }
    return {};
  }

  /// Returns a whole number from 0 to the largest that T holds.
  template <class T>
  static Status integer_of(const At& at, T& number) {
    if (!at.value.is_number_unsigned() ||
        at.value.get<std::uint64_t>() > static_cast<std::uint64_t>(std::numeric_limits<T>::max())) {
      return at.wrong("expected a whole number, 0 or more");
    }
    number = at.value.get<T>();
    return {};
  }

  template <class T>
  static Status integer(const At& at, const char* key, T& number) {
    TUTTI_ASSIGN(const At here, member(at, key));
    return integer_of(here, number);
  }

  static Status real(const At& at, const char* key, double& number) {
    TUTTI_ASSIGN(const At here, member(at, key));
    if (!here.value.is_number()) return here.wrong("expected a number");
    number = here.value.get<double>();
    return {};
  }

  // For optional keys.
  template <class T>
  static Status maybe_integer(const At& at, const char* key, T& number) {
    return at.value.contains(key) ? integer(at, key, number) : Status();
  }
  static Status maybe_real(const At& at, const char* key, double& number) {
    return at.value.contains(key) ? real(at, key, number) : Status();
  }
  static Status maybe_text(const At& at, const char* key, std::string& out) {
    return at.value.contains(key) ? text(at, key, out) : Status();
  }

  static Status text(const At& at, const char* key, std::string& out) {
    TUTTI_ASSIGN(const At here, member(at, key));
    if (!here.value.is_string()) return here.wrong("expected a text");
    out = here.value.get_ref<const std::string&>();
    return {};
  }

  static Result<At> member(const At& at, const char* key) {
    const auto found = at.value.find(key);
    if (found == at.value.end()) return at.wrong(fmt::format("has no \"{}\"", key));
    return At{*found, joined(at, key)};
  }

  Status cpus(const At& at, CpuList& out) {
    std::string words;
    TUTTI_TRY(text(at, "cpus", words));
    Result<CpuList> list = parse_cpus(words);
    if (!list.ok()) return at.wrong("cpus: " + list.status().message());
    out = list.take();
    listed_ += out.size();
    if (listed_ > kMostListedCpus) return at.wrong(fmt::format("more than {} CPUs are listed by now", kMostListedCpus));
    return {};
  }

  Status host(const At& at, Host& host) {
    TUTTI_TRY(object(
        at, {"name", "machine", "cpu_model", "packages", "core_gb_per_s", "numa_nodes", "cores", "caches", "devices"}));
    TUTTI_TRY(text(at, "name", host.name));
    TUTTI_TRY(maybe_text(at, "machine", host.machine));
    TUTTI_TRY(text(at, "cpu_model", host.cpu_model));
    TUTTI_TRY(integer(at, "packages", host.packages));
    TUTTI_TRY(maybe_real(at, "core_gb_per_s", host.core_gb_per_s));
    TUTTI_TRY(list(at, "numa_nodes", true, [&](const At& one) {
      NumaNode& node = host.numa_nodes.emplace_back();
      TUTTI_TRY(object(one, {"bytes", "gb_per_s", "distances"}));
      TUTTI_TRY(integer(one, "bytes", node.bytes));
      TUTTI_TRY(maybe_real(one, "gb_per_s", node.gb_per_s));
      return list(one, "distances", false, [&](const At& d) { return integer_of(d, node.distances.emplace_back()); });
    }));
    TUTTI_TRY(list(at, "cores", true, [&](const At& one) {
      Core& core = host.cores.emplace_back();
      TUTTI_TRY(object(one, {"package", "numa_node", "cpus"}));
      TUTTI_TRY(integer(one, "package", core.package));
      TUTTI_TRY(integer(one, "numa_node", core.numa_node));
      return cpus(one, core.cpus);
    }));
    TUTTI_TRY(list(at, "devices", false, [&](const At& one) { return device(one, host.devices.emplace_back()); }));
    return list(at, "caches", false, [&](const At& one) {
      Cache& cache = host.caches.emplace_back();
      TUTTI_TRY(object(one, {"level", "bytes", "cpus"}));
      TUTTI_TRY(integer(one, "level", cache.level));
      TUTTI_TRY(integer(one, "bytes", cache.bytes));
      return cpus(one, cache.cpus);
    });
  }

  static Status device(const At& at, Device& device) {
    TUTTI_TRY(object(at, {"kind", "name", "pci", "rdma", "numa_node", "parent", "up_gb_per_s", "up_latency_us",
                          "gb_per_s", "bytes"}));
    std::string kind;
    TUTTI_TRY(text(at, "kind", kind));
    const auto* found = std::find_if(std::begin(kDeviceKinds), std::end(kDeviceKinds),
                                     [&](DeviceKind known) { return kind == name_of(known); });
    if (found == std::end(kDeviceKinds)) {
      return at.wrong(fmt::format("kind is {}; expected pci_switch, nic, gpu or nvswitch", quote(kind)));
    }
    device.kind = *found;
    TUTTI_TRY(maybe_text(at, "name", device.name));
    TUTTI_TRY(maybe_text(at, "pci", device.pci));
    TUTTI_TRY(maybe_text(at, "rdma", device.rdma));
    TUTTI_TRY(maybe_integer(at, "numa_node", device.numa_node));
    TUTTI_TRY(maybe_integer(at, "parent", device.parent));
    TUTTI_TRY(maybe_real(at, "up_gb_per_s", device.up_gb_per_s));
    TUTTI_TRY(maybe_real(at, "up_latency_us", device.up_latency_us));
    TUTTI_TRY(maybe_real(at, "gb_per_s", device.gb_per_s));
    return maybe_integer(at, "bytes", device.bytes);
  }

  static Status place(const At& at, Place& place) {
    if (at.value.is_object() && at.value.contains("switch")) {
      TUTTI_TRY(object(at, {"switch"}));
      place.kind = PlaceKind::network;
      return integer(at, "switch", place.index);
    }
    TUTTI_TRY(object(at, {"host", "package", "numa_node", "core", "device"}));
    TUTTI_TRY(integer(at, "host", place.host));
    const char* before = nullptr;
    for (const auto& [kind, name] : kParts) {
      if (!at.value.contains(name)) continue;
      if (before != nullptr) return at.wrong(fmt::format("names a {} and a {}; expected one of them", before, name));
      before = name;
      place.kind = kind;
      TUTTI_TRY(integer(at, name, place.index));
    }
    return {};
  }

  static Status end_of(const At& at, const char* key, Place& out) {
    TUTTI_ASSIGN(const At here, member(at, key));
    return place(here, out);
  }

  static Status link(const At& at, Link& link) {
    TUTTI_TRY(object(at, {"a", "b", "gb_per_s", "latency_us"}));
    TUTTI_TRY(end_of(at, "a", link.a));
    TUTTI_TRY(end_of(at, "b", link.b));
    TUTTI_TRY(real(at, "gb_per_s", link.gb_per_s));
    return real(at, "latency_us", link.latency_us);
  }

  std::size_t listed_ = 0;
};

// A name from the system may have any bytes; JSON is UTF-8.
std::string dump(const OrderedJson& value) { return value.dump(-1, ' ', false, OrderedJson::error_handler_t::replace); }

template <class T, class Each>
void print_list(std::string& text, const char* indent, const char* key, const std::vector<T>& all, const Each& each) {
  text += fmt::format("{}\"{}\": [", indent, key);
  for (std::size_t i = 0; i < all.size(); ++i) {
    text += fmt::format("{}\n{}  {}", i == 0 ? "" : ",", indent, dump(each(all[i])));
  }
  text += all.empty() ? "]" : fmt::format("\n{}]", indent);
}

OrderedJson json_of(const Place& place) {
  if (place.kind == PlaceKind::network) return OrderedJson{{"switch", place.index}};
  OrderedJson json{{"host", place.host}};
  for (const auto& [kind, name] : kParts) {
    if (place.kind == kind) json[name] = place.index;
  }
  return json;
}

/// Leaves out values that are the default.
template <class T>
void add(OrderedJson& json, const char* key, const T& value, const T& usual) {
  if (value != usual) json[key] = value;
}

OrderedJson json_of(const NumaNode& node) {
  OrderedJson json{{"bytes", node.bytes}};
  add(json, "gb_per_s", node.gb_per_s, 0.0);
  if (!node.distances.empty()) json["distances"] = node.distances;
  return json;
}

OrderedJson json_of(const Device& device) {
  const Device usual;
  OrderedJson json{{"kind", name_of(device.kind)}};
  add(json, "name", device.name, usual.name);
  add(json, "pci", device.pci, usual.pci);
  add(json, "rdma", device.rdma, usual.rdma);
  add(json, "numa_node", device.numa_node, usual.numa_node);
  add(json, "parent", device.parent, usual.parent);
  add(json, "up_gb_per_s", device.up_gb_per_s, usual.up_gb_per_s);
  add(json, "up_latency_us", device.up_latency_us, usual.up_latency_us);
  add(json, "gb_per_s", device.gb_per_s, usual.gb_per_s);
  add(json, "bytes", device.bytes, usual.bytes);
  return json;
}

/// Returns the first place at which two values at `where` differ, with both. `name` adds a name to an item of a list.
template <class Name>
std::string difference(const Json& one, const Json& other, const std::string& where, const Name& name) {
  if (one == other) return {};
  const Json nothing;
  const auto shown = [](const Json& value) { return value.is_null() ? "nothing" : value.dump(); };
  if (one.is_array() && other.is_array()) {
    for (std::size_t i = 0; i < std::max(one.size(), other.size()); ++i) {
      const std::string found = difference(i < one.size() ? one[i] : nothing, i < other.size() ? other[i] : nothing,
                                           fmt::format("{}[{}]{}", where, i, name(where, i)), name);
      if (!found.empty()) return found;
    }
  }
  if (one.is_object() && other.is_object()) {
    Json keys = one;
    keys.update(other);
    for (const auto& item : keys.items()) {
      const std::string found = difference(one.value(item.key(), nothing), other.value(item.key(), nothing),
                                           where.empty() ? item.key() : fmt::format("{}.{}", where, item.key()), name);
      if (!found.empty()) return found;
    }
  }
  return fmt::format("{}: {} and {}", where, shown(one), shown(other));
}

}  // namespace

std::string print(const Topology& topology) {
  std::string text = fmt::format("{{\n  \"tutti_topology\": {},\n  \"hosts\": [", kForm);
  for (std::size_t i = 0; i < topology.hosts.size(); ++i) {
    const Host& host = topology.hosts[i];
    const char* indent = "      ";
    text += fmt::format("{}\n    {{\n{}\"name\": {},\n", i == 0 ? "" : ",", indent, dump(host.name));
    if (!host.machine.empty()) text += fmt::format("{}\"machine\": {},\n", indent, dump(host.machine));
    text +=
        fmt::format("{}\"cpu_model\": {},\n{}\"packages\": {},\n", indent, dump(host.cpu_model), indent, host.packages);
    if (host.core_gb_per_s != 0) text += fmt::format("{}\"core_gb_per_s\": {},\n", indent, dump(host.core_gb_per_s));
    print_list(text, indent, "numa_nodes", host.numa_nodes, [](const NumaNode& node) { return json_of(node); });
    text += ",\n";
    print_list(text, indent, "cores", host.cores, [](const Core& core) {
      return OrderedJson{{"package", core.package}, {"numa_node", core.numa_node}, {"cpus", print_cpus(core.cpus)}};
    });
    text += ",\n";
    print_list(text, indent, "caches", host.caches, [](const Cache& cache) {
      return OrderedJson{{"level", cache.level}, {"bytes", cache.bytes}, {"cpus", print_cpus(cache.cpus)}};
    });
    if (!host.devices.empty()) {
      text += ",\n";
      print_list(text, indent, "devices", host.devices, [](const Device& device) { return json_of(device); });
    }
    text += "\n    }";
  }
  text += "\n  ],\n";
  print_list(text, "  ", "switches", topology.switches, [](const Switch& one) {
    return OrderedJson{{"name", one.name}};
  });
  text += ",\n";
  print_list(text, "  ", "links", topology.links, [](const Link& link) {
    return OrderedJson{
        {"a", json_of(link.a)}, {"b", json_of(link.b)}, {"gb_per_s", link.gb_per_s}, {"latency_us", link.latency_us}};
  });
  text += ",\n";
  print_list(text, "  ", "ranks", topology.ranks, [](const Place& place) { return json_of(place); });
  return text + "\n}\n";
}

Result<Topology> parse(std::string_view text) {
  if (text.size() > kMostTextBytes) {
    return invalid_argument(fmt::format("{} bytes; a topology may have {}", text.size(), kMostTextBytes));
  }
  Json json;
  try {
    json = Json::parse(text);
  } catch (const Json::parse_error& error) {
    return invalid_argument(fmt::format("not JSON from byte {} on", error.byte));
  } catch (const Json::exception& error) {  // a number that no double holds
    return invalid_argument(fmt::format("not JSON: {}", error.what()));
  }
  return Reader().topology(At{json, "topology"});
}

std::string first_difference(const Topology& one, const Topology& other) {
  return difference(Json::parse(print(one)), Json::parse(print(other)), "",
                    [&](const std::string& list, std::size_t i) {
                      if (list == "hosts" && i < one.hosts.size()) return fmt::format(" ({})", one.hosts[i].name);
                      if (list != "links" || i >= one.links.size()) return std::string();
                      return fmt::format(" ({} to {})", name_of(one, one.links[i].a), name_of(one, one.links[i].b));
                    });
}

}  // namespace tutti::topology
