// Access to a storage whose memory FSDP has freed. Versions of PyTorch differ for the training layer in this alone.
#pragma once

#include <c10/core/StorageImpl.h>

#include <string>
#include <utility>

namespace tutti::training {

/// Makes an operator that asks for the memory of `storage`, whose pointer is null, throw an error that says `what`.
/// PyTorch 2.11 could not take that back, so nothing is done with it: there the operator ends the program.
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
