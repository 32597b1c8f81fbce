// Nothing is left behind: no file, no socket, no descriptor, no mapping, no memory; after an orderly end nor after a
// violent one.
#include <dirent.h>
#include <gmock/gmock.h>

#include <atomic>
#include <cstddef>
#include <fstream>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "tests/failure/any_call.h"
#include "tests/failure/processes.h"
#include "transport/shm/arena.h"
#include "transport/shm/shm.h"

namespace tutti::testing::leak_test {
namespace {

std::set<std::string> entries(const std::string& path) {
  std::set<std::string> names;
  DIR* directory = opendir(path.c_str());
  if (directory == nullptr) return names;
  while (const dirent* entry = readdir(directory)) names.insert(entry->d_name);
  closedir(directory);
  return names;
}

// Files that the library, or another program under its name, made.
std::set<std::string> own_files() {
  std::set<std::string> own;
  for (const char* path : {"/dev/shm", "/tmp"}) {
    for (const std::string& name : entries(path)) {
      if (name.find("tutti") != std::string::npos) own.insert(std::string(path) + "/" + name);
    }
  }
  return own;
}

// Files, sockets (that have a name or none), pidfds.
int descriptors() { return static_cast<int>(entries("/proc/self/fd").size()); }

int arena_mappings() {
  std::ifstream maps("/proc/self/maps");
  int count = 0;
  for (std::string line; std::getline(maps, line);) count += line.find("memfd:tutti") != std::string::npos ? 1 : 0;
  return count;
}

std::size_t threads() { return entries("/proc/self/task").size(); }

// Windows that all ranks have left are released when one is made or ended: so make one.
std::size_t arena_bytes() {
  transport::Arena& arena = *transport::Arena::process().value();
  Status made;
  transport::WindowSizes smallest;
  const std::size_t offset = transport::make_window_in(arena, smallest.bytes(), made);
  if (made.ok()) transport::Arena::deallocate(arena.base() + offset);
  return arena.allocated();
}

struct Belongings {
  int descriptors;
  int mappings;
  std::size_t threads;
  std::size_t arena;

  bool operator==(const Belongings&) const = default;
  std::string text() const {
    return std::to_string(descriptors) + " descriptors, " + std::to_string(mappings) + " mappings, " +
           std::to_string(threads) + " threads, " + std::to_string(arena) + " bytes";
  }
};

Belongings belongings() {
  const std::size_t arena = arena_bytes();  // first: it lets go of mappings too
  return {descriptors(), arena_mappings(), threads(), arena};
}

// A thread that was joined may still be in the table for a moment.
void expect_the_same(const Place& place, const Belongings& before) {
  if (!eventually(5s, [&] { return belongings() == before; })) {
    place.give_up("before: " + before.text() + "; after: " + belongings().text());
  }
}

TEST(Leak, FiftyChildren) {
  Processes ranks(2, [](const Place& place) {
    Communicator world = place.join(with_timeout(60s));
    Belongings before{};
    for (int i = 0; i < 51; ++i) {
      if (i == 1) {
        world.barrier();
        before = belongings();
      }
      Communicator comm = world.split(0, place.rank());
      float x = 1;
      comm.all_reduce(&x, &x, 1, DataType::f32);
    }
    world.barrier();  // both have left all
    expect_the_same(place, before);
    place.step();
    if (!eventually(30s, [&] { return place.progress_of(1 - place.rank()) == 1; })) place.give_up("alone");
  });
  EXPECT_TRUE(ranks.finish(60s));
}

// Fifty jobs one after the other in the same processes.
TEST(Leak, FiftyJobs) {
  const std::set<std::string> files = own_files();
  constexpr int kJobs = 50;
  struct Ids {
    std::atomic<int> made;
    UniqueId id[kJobs];
  };
  void* memory = mmap(nullptr, sizeof(Ids), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  Ids* ids = new (memory) Ids{};
  Processes ranks(2, [&](const Place& place) {
    Belongings before{};
    for (int i = 0; i < kJobs; ++i) {
      if (place.rank() == 0) {
        ids->id[i] = Communicator::make_unique_id();
        ids->made = i + 1;
      }
      if (!eventually(30s, [&] { return ids->made > i; })) place.give_up("no id");
      {
        Communicator comm = Communicator::from_unique_id(ids->id[i], place.rank(), 2, with_timeout(60s));
        Communicator child = comm.split(0, place.rank());
        std::vector<float> plain(50'000, 1.0F);
        child.all_reduce_async(plain.data(), plain.data(), plain.size(), DataType::f32).wait();
      }
      place.step();
      if (!eventually(30s, [&] { return place.progress_of(1 - place.rank()) > i; })) place.give_up("alone");
      if (i == 1) before = belongings();  // the first job leaves what a process has once: its arena
    }
    expect_the_same(place, before);
  });
  EXPECT_TRUE(ranks.finish(100s));
  munmap(memory, sizeof(Ids));
  EXPECT_EQ(own_files(), files);
}

// The survivors of a death give everything back too, the dead rank's share included.
TEST(Leak, AfterADeath) {
  const std::set<std::string> files = own_files();
  Processes ranks(3, [](const Place& place) {
    (void)arena_bytes();
    std::thread([] {}).join();  // a sanitizer's own thread begins with a process's first
    const Belongings before = belongings();
    {
      Communicator comm = place.join(with_timeout(60s));
      comm.barrier();
      place.step();
      while (!place.fails([&] { comm.barrier(); })) {
      }
      Communicator rest = comm.shrink();
      rest.barrier();
      comm = {};
      rest.barrier();  // both have left the old one
      place.step();
      rest = {};
    }
    // The last window that was ended may have been swept before the peer had left it.
    const int other = 1 - place.rank();
    place.set_progress(10);
    if (!eventually(30s, [&] { return place.progress_of(other) == 10; })) place.give_up("alone");
    expect_the_same(place, before);
  });
  for (int r = 0; r < 3; ++r) ASSERT_TRUE(ranks.wait_progress(r, 1));
  ranks.signal(2, SIGKILL);
  ASSERT_TRUE(ranks.finish(30s, {2}));
  EXPECT_EQ(own_files(), files);
}

}  // namespace
}  // namespace tutti::testing::leak_test
