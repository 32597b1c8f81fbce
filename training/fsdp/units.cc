#include "training/fsdp/units.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <typeindex>
#include <unordered_map>
#include <utility>

#include "tutti/tutti.hpp"

namespace tutti::training {
namespace {

using Names = std::vector<std::string>;

std::string joined(const std::string& prefix, const std::string& name) {
  return prefix.empty() ? name : prefix + "." + name;
}

bool may_be_block(const torch::nn::Module& module) {
  return !module.parameters().empty() && module.as<torch::nn::EmbeddingImpl>() == nullptr;
}

void find_blocks(const torch::nn::Module& module, const std::string& prefix, Names& found) {
  std::map<std::type_index, int> of_type;
  const auto type_of = [](const torch::nn::Module& child) { return std::type_index(typeid(child)); };
  for (const auto& child : module.named_children()) {
    if (may_be_block(*child.value())) ++of_type[type_of(*child.value())];
  }
  for (const auto& child : module.named_children()) {
    const std::string name = joined(prefix, child.key());
    if (!may_be_block(*child.value())) continue;
    if (of_type[type_of(*child.value())] > 1) {
      found.push_back(name);
    } else {
      find_blocks(*child.value(), name, found);
    }
  }
}

/// Elements below `module` that no unit has.
std::int64_t find_large(const torch::nn::Module& module, const std::string& prefix, std::int64_t least, Names& found) {
  std::int64_t elements = 0;
  for (const torch::Tensor& parameter : module.parameters(/*recurse=*/false)) elements += parameter.numel();
  for (const auto& child : module.named_children()) {
    elements += find_large(*child.value(), joined(prefix, child.key()), least, found);
  }
  if (elements < least || prefix.empty()) return elements;
  found.push_back(prefix);
  return 0;
}

class Planner {
 public:
  explicit Planner(const Names& names) : left_(names.begin(), names.end()) { units_.push_back({"", {}}); }

  void visit(const torch::nn::Module& module, const std::string& name, std::size_t unit) {
    if (const auto found = std::find(left_.begin(), left_.end(), name); found != left_.end()) {
      left_.erase(found);
      unit = units_.size();
      units_.push_back({name, {}});
    }
    for (const torch::Tensor& parameter : module.parameters(/*recurse=*/false)) {
      const auto [place, is_new] = owner_.emplace(parameter.unsafeGetTensorImpl(), unit);
      if (!is_new && place->second != unit) place->second = kRootUnit;
    }
    for (const auto& child : module.named_children()) visit(*child.value(), joined(name, child.key()), unit);
  }

  std::vector<UnitParameters> finish(const torch::nn::Module& model) {
    if (!left_.empty()) {
      throw Error(
          Code::invalid_argument,
          fmt::format("FullyShardedDataParallel: the policy names the unit '{}', and the model has no module of "
                      "that name",
                      left_.front()));
    }
    for (NamedTensor& parameter : parameters_of(model)) {
      units_[owner_.at(parameter.tensor.unsafeGetTensorImpl())].parameters.push_back(std::move(parameter));
    }
    std::erase_if(units_, [](const UnitParameters& unit) { return !unit.name.empty() && unit.parameters.empty(); });
    return std::move(units_);
  }

 private:
  Names left_;
  std::vector<UnitParameters> units_;
  std::unordered_map<const c10::TensorImpl*, std::size_t> owner_;
};

}  // namespace

UnitPolicy by_block() {
  return [](const torch::nn::Module& model) {
    Names found;
    find_blocks(model, "", found);
    return found;
  };
}

UnitPolicy by_size(std::int64_t elements) {
  return [elements](const torch::nn::Module& model) {
    Names found;
    find_large(model, "", elements, found);
    return found;
  };
}

UnitPolicy by_name(Names names) {
  return [names = std::move(names)](const torch::nn::Module&) { return names; };
}

UnitPolicy by_predicate(std::function<bool(const torch::nn::Module&)> is_unit) {
  return [is_unit = std::move(is_unit)](const torch::nn::Module& model) {
    Names found;
    for (const auto& module : model.named_modules("", /*include_self=*/false)) {
      if (is_unit(*module.value())) found.push_back(module.key());
    }
    return found;
  };
}

std::vector<UnitParameters> plan_units(const torch::nn::Module& model, const UnitPolicy& policy) {
  Planner planner(policy(model));
  planner.visit(model, "", kRootUnit);
  return planner.finish(model);
}

}  // namespace tutti::training
