#include "training/precision/autocast.h"

#include <ATen/autocast_mode.h>
#include <fmt/format.h>

#include "tutti/tutti.hpp"

namespace tutti::training {

Autocast::Autocast(torch::ScalarType type, torch::DeviceType device, bool enabled, bool cache) : device_(device) {
  if (type != torch::kBFloat16 && type != torch::kFloat16) {
    throw Error(Code::invalid_argument,
                fmt::format("Autocast: type is {}; it can be bf16 or f16", c10::toString(type)));
  }
  if (!at::autocast::is_autocast_available(device)) {
    throw Error(Code::invalid_argument,
                fmt::format("Autocast: LibTorch has no autocast for device {}", c10::DeviceTypeName(device)));
  }
  enabled_before_ = at::autocast::is_autocast_enabled(device);
  type_before_ = at::autocast::get_autocast_dtype(device);
  cache_before_ = at::autocast::is_autocast_cache_enabled();
  // The cache knows a weight by its address only, not the type it was cast to.
  types_mix_ = enabled && enabled_before_ && type != type_before_;
  if (types_mix_) at::autocast::clear_cache();
  at::autocast::set_autocast_enabled(device, enabled);
  at::autocast::set_autocast_dtype(device, type);
  at::autocast::increment_nesting();
  at::autocast::set_autocast_cache_enabled(cache);
}

Autocast::~Autocast() {
  if (at::autocast::decrement_nesting() == 0 || types_mix_) at::autocast::clear_cache();
  at::autocast::set_autocast_enabled(device_, enabled_before_);
  at::autocast::set_autocast_dtype(device_, type_before_);
  at::autocast::set_autocast_cache_enabled(cache_before_);
}

}  // namespace tutti::training
