// Makes a backend: the ranks of a group meet through torch's store.
//
//   auto options = c10::make_intrusive<TuttiBackend::Options>(timeout);
//   c10::intrusive_ptr<TuttiBackend> backend = create_backend(store, rank, size, options);
//
// Rank 0 makes Tutti's unique id, and the others get it through the store (invitation.h); from there on Tutti's own
// bootstrap connects them. A group may be made again under the same name in one store (destroy and init, elastic
// restart).
//
// Waits: at most options->timeout, seeing signals. Returns when all ranks of the group have come.
// Errors: DistBackendError, with the list of the group's ranks where rank 0 does not make a group of these; in a child
//   that was forked while its parent used Tutti's threads, too.
#pragma once

#include "csrc/backend/backend.h"

namespace tutti_torch {

c10::intrusive_ptr<TuttiBackend> create_backend(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                                                const c10::intrusive_ptr<TuttiBackend::Options>& options);

}  // namespace tutti_torch
