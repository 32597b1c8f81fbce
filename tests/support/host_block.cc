#include "tests/support/host_block.h"

#include <utility>

namespace tutti::executor::cuda {

namespace {

template <DataType kType, bool kReduces = true>
void walk(const LaunchArguments& arguments, const HostPlace& place) {
  Walker<HostBlock, kType, kReduces>(arguments, place).run();
}

using Walk = void (*)(const LaunchArguments&, const HostPlace&);

template <std::size_t... kTypes>
Walk walk_of(int kernel, std::index_sequence<kTypes...>) {
  constexpr Walk walks[] = {walk<static_cast<DataType>(kTypes)>..., walk<DataType::u32, false>};
  return walks[kernel];
}

}  // namespace

void walk_on_host(int kernel, const LaunchArguments& arguments, const HostPlace& place) {
  walk_of(kernel, std::make_index_sequence<kDataTypes>())(arguments, place);
}

void run_p2p_on_host(const P2pArguments& arguments, const HostPlace& place) {
  P2pRunner<HostBlockOf<P2pShared>>(arguments, place).run();
}

}  // namespace tutti::executor::cuda
