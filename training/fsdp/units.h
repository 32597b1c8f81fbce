// Which modules become units of FullyShardedDataParallel: parts of a model that are gathered, used and given up
// together.
//
//   {.units = by_block()}                        // each layer of the model
//   {.units = by_type<GptBlockImpl>()}
//   {.units = by_size(1'000'000)}                // parts of at least a million parameters
//   {.units = by_name({"block0", "block1"})}     // by hand
//   {.units = [](const torch::nn::Module& model) { return std::vector<std::string>{...}; }}
//
// A unit has the parameters of its subtree that no unit inside it has. A parameter that two units would have (tied
// weights) goes to the root unit. The smaller the units, the less is whole at a time and the more calls are made.
#pragma once

#include <torch/torch.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "training/tensors.h"

namespace tutti::training {

/// The number of the unit that has what no other unit has.
inline constexpr std::size_t kRootUnit = 0;

/// Returns dotted names of modules in the model, as in named_modules().
using UnitPolicy = std::function<std::vector<std::string>(const torch::nn::Module&)>;

/// The outermost modules that have a sibling of the same type with parameters: the layers of a stack. Embeddings stay
/// in the root unit, as they are often used again at the end.
UnitPolicy by_block();
/// Going up from the leaves: each module with at least that many elements of parameters that no unit has yet.
UnitPolicy by_size(std::int64_t elements);
UnitPolicy by_name(std::vector<std::string> names);
UnitPolicy by_predicate(std::function<bool(const torch::nn::Module&)> is_unit);
/// Modules of any of these types (the Impl classes).
template <class... Impl>
UnitPolicy by_type() {
  return by_predicate([](const torch::nn::Module& module) { return (... || (module.as<Impl>() != nullptr)); });
}

struct UnitParameters {
  std::string name;                     // of the module
  std::vector<NamedTensor> parameters;  // full names, in order of registration
};

/// Returns the units that the policy makes: the root unit first ("", perhaps without parameters), then the others in
/// order of registration. Errors: invalid_argument for a name that the model does not have.
std::vector<UnitParameters> plan_units(const torch::nn::Module& model, const UnitPolicy& policy);

}  // namespace tutti::training
