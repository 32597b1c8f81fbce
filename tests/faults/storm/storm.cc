// A library to preload: every 300 us each thread of the process gets a signal, whose handler does nothing.
//
//   LD_PRELOAD=build/tests/libstorm.so TUTTI_STORM=restart build/tests/test_collectives
//
// TUTTI_STORM: restart (SA_RESTART), no_restart. TUTTI_STORM_US: another period, for an emulated machine. Children get
// theirs. The signal is one that does nothing where there is no handler, as in a program that a child has just become.
#include <dirent.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>

namespace {

constexpr int kAwayFromOthers = 900;

timespec period{0, 300'000};

// System calls alone: no memory is allocated, for libraries under test watch that.
void signal_all(int folder, pid_t self) {
  alignas(dirent64) static char entries[32768];  // of this one thread
  syscall(SYS_lseek, folder, 0, SEEK_SET);
  for (long got; (got = syscall(SYS_getdents64, folder, entries, sizeof entries)) > 0;) {
    for (long at = 0; at < got;) {
      const auto* entry = reinterpret_cast<const dirent64*>(entries + at);
      const int thread = std::atoi(entry->d_name);
      if (thread > 0 && thread != self) syscall(SYS_tgkill, getpid(), thread, SIGURG);
      at += entry->d_reclen;
    }
  }
}

void* storm(void*) {
  const auto self = static_cast<pid_t>(syscall(SYS_gettid));
  const int opened = open("/proc/self/task", O_RDONLY | O_CLOEXEC);
  const int folder = fcntl(opened, F_DUPFD_CLOEXEC, kAwayFromOthers);  // some programs close what they do not know
  close(opened);
  while (folder >= 0) {
    nanosleep(&period, nullptr);
    signal_all(folder, self);
  }
  return nullptr;
}

void begin() {
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);  // the thread takes no signals of the program's
  pthread_t thread;
  if (pthread_create(&thread, nullptr, storm, nullptr) == 0) pthread_detach(thread);
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

__attribute__((constructor)) void load() {
  const char* kind = std::getenv("TUTTI_STORM");
  if (kind == nullptr) return;
  if (const char* us = std::getenv("TUTTI_STORM_US"); us != nullptr) period.tv_nsec = std::atol(us) * 1000;
  struct sigaction action = {};
  action.sa_handler = [](int) {};
  action.sa_flags = std::strcmp(kind, "restart") == 0 ? SA_RESTART : 0;
  sigaction(SIGURG, &action, nullptr);
  begin();
  pthread_atfork(nullptr, nullptr, begin);
}

}  // namespace
