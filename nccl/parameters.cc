// ncclParam*: the parameters of this library, which are Tutti's options (TUTTI_TIMEOUT, ...). No NCCL_* is one.

#include <fmt/format.h>

#include <cstdint>
#include <cstdio>
#include <cstring>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "base/options.h"
#include "nccl/errors.h"

namespace tutti::nccl {

/// One row of the table, for ever at its place.
struct ncclParamHandle {
  options::Row row;
};

namespace {

using Parameter = ncclParamHandle;

const std::vector<Parameter>& parameters() {
  static const std::vector<Parameter>* const all = [] {
    auto* made = new std::vector<Parameter>;  // outlives what runs at exit
    for (options::Row& row : options::all()) made->push_back({std::move(row)});
    return made;
  }();
  return *all;
}

Outcome invalid(const char* function, const std::string& what) {
  return {ncclInvalidArgument, fmt::format("{}: {}", function, what)};
}

Outcome find(const char* function, const char* key, const Parameter*& found) {
  if (key == nullptr) return invalid(function, "key is null");
  for (const Parameter& parameter : parameters()) {
    if (parameter.row.name != key) continue;
    found = &parameter;
    return {};
  }
  return invalid(function,
                 fmt::format("this library has no parameter {}; expected one that ncclParamGetAllParameterKeys "
                             "gives, such as TUTTI_TIMEOUT",
                             key));
}

Outcome check(const char* function, ncclParamHandle_t handle, const void* out) {
  const std::less<const Parameter*> before;
  const Parameter* const first = parameters().data();
  if (handle == nullptr || before(handle, first) || !before(handle, first + parameters().size())) {
    return invalid(function, "h is no handle that ncclParamBind gave");
  }
  return out == nullptr ? invalid(function, "out is null") : Outcome{};
}

/// The value of a whole number's type, where it has one and T holds it.
template <class T>
bool whole(const options::Row& row, T& value) {
  const auto put = [&](auto number) {
    value = static_cast<T>(number);
    return std::in_range<T>(number);
  };
  switch (row.type) {
    case options::Type::bytes: return put(options::bytes(row.option));
    case options::Type::integer: return put(options::integer(row.option));
    case options::Type::flag: return put(options::flag(row.option) ? 1 : 0);
    case options::Type::duration:
    case options::Type::text:
    case options::Type::choice: break;
  }
  return false;
}

template <class T>
ncclResult_t get_number(const char* function, ncclParamHandle_t handle, T* out) {
  return guarded(function, [&] {
    if (const Outcome checked = check(function, handle, out); !checked.ok()) return report(checked);
    T value{};
    if (!whole(handle->row, value)) {
      return report(
          invalid(function, fmt::format("{} is {} ('{}'), and that is no number of this type", handle->row.name,
                                        options::name_of(handle->row.type), handle->row.value)));
    }
    *out = value;
    return ncclSuccess;
  });
}

/// Returns a value as memory: a flag's byte, the eight of a number, or the characters and a zero.
std::vector<char> memory_of(const options::Row& row) {
  const auto copy = [](auto value) {
    std::vector<char> memory(sizeof value);
    std::memcpy(memory.data(), &value, sizeof value);
    return memory;
  };
  switch (row.type) {
    case options::Type::bytes: return copy(options::bytes(row.option));
    case options::Type::integer: return copy(options::integer(row.option));
    case options::Type::flag: return copy(options::flag(row.option));
    case options::Type::duration:
    case options::Type::text:
    case options::Type::choice: break;
  }
  return {row.value.c_str(), row.value.c_str() + row.value.size() + 1};
}

}  // namespace

TUTTI_NCCL_DEFINE(ncclResult_t, ncclParamBind, (ncclParamHandle_t * out, const char* key)) {
  return guarded("ncclParamBind", [&] {
    if (out == nullptr) return fail(ncclInvalidArgument, "ncclParamBind: out is null");
    const Parameter* found = nullptr;
    if (const Outcome outcome = find("ncclParamBind", key, found); !outcome.ok()) return report(outcome);
    *out = const_cast<Parameter*>(found);  // NCCL's handles are so; nothing writes by them
    return ncclSuccess;
  });
}

#define TUTTI_NCCL_GETTER(name, type)                                             \
  TUTTI_NCCL_DEFINE(ncclResult_t, name, (ncclParamHandle_t handle, type * out)) { \
    return get_number(#name, handle, out);                                        \
  }
TUTTI_NCCL_GETTER(ncclParamGetI8, int8_t)
TUTTI_NCCL_GETTER(ncclParamGetI16, int16_t)
TUTTI_NCCL_GETTER(ncclParamGetI32, int32_t)
TUTTI_NCCL_GETTER(ncclParamGetI64, int64_t)
TUTTI_NCCL_GETTER(ncclParamGetU8, uint8_t)
TUTTI_NCCL_GETTER(ncclParamGetU16, uint16_t)
TUTTI_NCCL_GETTER(ncclParamGetU32, uint32_t)
TUTTI_NCCL_GETTER(ncclParamGetU64, uint64_t)
#undef TUTTI_NCCL_GETTER

TUTTI_NCCL_DEFINE(ncclResult_t, ncclParamGetStr, (ncclParamHandle_t handle, const char** out)) {
  return guarded("ncclParamGetStr", [&] {
    if (const Outcome checked = check("ncclParamGetStr", handle, out); !checked.ok()) return report(checked);
    *out = handle->row.value.c_str();
    return ncclSuccess;
  });
}

TUTTI_NCCL_DEFINE(ncclResult_t, ncclParamGet, (ncclParamHandle_t handle, void* out, int room, int* length)) {
  return guarded("ncclParamGet", [&] {
    if (const Outcome checked = check("ncclParamGet", handle, out); !checked.ok()) return report(checked);
    const std::vector<char> memory = memory_of(handle->row);
    const bool fits = std::cmp_less_equal(memory.size(), room);
    if (length != nullptr) *length = fits ? static_cast<int>(memory.size()) : 0;
    if (!fits) {
      return report(invalid("ncclParamGet", fmt::format("maxLen is {}; expected at least {}", room, memory.size())));
    }
    std::memcpy(out, memory.data(), memory.size());
    return ncclSuccess;
  });
}

TUTTI_NCCL_DEFINE(ncclResult_t, ncclParamGetParameter, (const char* key, const char** value, int* length)) {
  return guarded("ncclParamGetParameter", [&] {
    if (value == nullptr) return fail(ncclInvalidArgument, "ncclParamGetParameter: value is null");
    const Parameter* found = nullptr;
    const Outcome outcome = find("ncclParamGetParameter", key, found);
    *value = outcome.ok() ? found->row.value.c_str() : nullptr;
    if (length != nullptr) *length = outcome.ok() ? static_cast<int>(found->row.value.size()) : 0;
    return report(outcome);
  });
}

TUTTI_NCCL_DEFINE(ncclResult_t, ncclParamGetAllParameterKeys, (const char*** table, int* length)) {
  return guarded("ncclParamGetAllParameterKeys", [&] {
    if (table == nullptr || length == nullptr) {
      return fail(ncclInvalidArgument,
                  fmt::format("ncclParamGetAllParameterKeys: {} is null", table == nullptr ? "table" : "tableLen"));
    }
    thread_local std::vector<const char*> keys;
    keys.clear();
    for (const Parameter& parameter : parameters()) keys.push_back(parameter.row.name.c_str());
    *table = keys.data();
    *length = static_cast<int>(keys.size());
    return ncclSuccess;
  });
}

TUTTI_NCCL_DEFINE(void, ncclParamDumpAll, ()) {
  (void)guarded("ncclParamDumpAll", [] {
    for (const Parameter& parameter : parameters()) {
      const options::Row& row = parameter.row;
      std::fputs(fmt::format("{} ({}): '{}' (default '{}')\n", row.name, options::name_of(row.type), row.value,
                             row.default_value)
                     .c_str(),
                 stdout);
    }
    std::fflush(stdout);
    return ncclSuccess;
  });
}

}  // namespace tutti::nccl
