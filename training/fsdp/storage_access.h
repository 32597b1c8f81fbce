// Storage that has no memory for now: the one thing in which versions of PyTorch differ for the training layer.
#pragma once

#include <c10/core/StorageImpl.h>

#include <string>
#include <utility>

namespace tutti::training {

/// From here on a tensor on `storage`, whose pointer is null, throws when an operator asks for its memory. The error
/// says `what`; PyTorch 2.11 could not take that back, and has its own words ("its data is not allocated yet").
template <class Storage>
void forbid_access(Storage& storage, std::string what) {
  if constexpr (requires { storage.clear_data_ptr_access_error_msg_(); }) {
    storage.release_data_and_set_meta_custom_data_ptr_error_msg_(std::move(what));
  }
}

/// The storage is given memory again.
template <class Storage>
void allow_access(Storage& storage) {
  if constexpr (requires { storage.clear_data_ptr_access_error_msg_(); }) storage.clear_data_ptr_access_error_msg_();
}

}  // namespace tutti::training
