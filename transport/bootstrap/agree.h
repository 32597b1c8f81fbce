// "All ranks are well, or one error on all of them", over the bootstrap.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "transport/bootstrap/bootstrap.h"

namespace tutti::bootstrap {

/// A collective call. Returns the blobs of all ranks, by rank, if `mine` is ok on every rank.
/// Errors: of the first rank that has one, the same sentence on all: "rank 2 (host alpha, pid 77): <its error>"; those
/// of Bootstrap::all_gather().
Result<std::vector<std::string>> agree_all(Bootstrap& bootstrap, const Status& mine, std::string_view blob = {});

/// Takes the error or the blob as one Result.
Result<std::vector<std::string>> agree_all(Bootstrap& bootstrap, const Result<std::string>& mine);

}  // namespace tutti::bootstrap
