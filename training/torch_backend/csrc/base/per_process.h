// One object of a type in each process.
//
//   Blocks& blocks() { return per_process<Blocks>(); }
//
// Never destroyed, since tensors, groups and threads may outlive main(). A forked child gets an object of its own: its
// parent's has locks, threads and calls in progress that the child lacks.
#pragma once

#include <pthread.h>

namespace tutti_torch {

template <class T>
T& per_process() {
  static T* object = [] {
    T* const first = new T;
    pthread_atfork(nullptr, nullptr, [] { object = new T; });
    return first;
  }();
  return *object;
}

}  // namespace tutti_torch
