#include "training/model_form.h"

#include <fmt/format.h>

#include <cstddef>
#include <map>

#include "training/hash.h"

namespace tutti::training {
namespace {

PlaceInMemory place_of(const torch::Tensor& tensor) {
  return {tensor.has_storage() ? tensor.storage().unsafeGetStorageImpl() : nullptr, tensor.storage_offset()};
}

std::string change_of_tensors(const std::vector<NamedTensor>& before, const std::vector<NamedTensor>& now) {
  for (std::size_t i = 0; i < before.size(); ++i) {
    if (i < now.size() && now[i].tensor.is_same(before[i].tensor)) continue;
    return fmt::format("'{}' was replaced or removed", before[i].name);
  }
  return now.size() > before.size() ? fmt::format("'{}' was added", now[before.size()].name) : "";
}

}  // namespace

ModelForm::ModelForm(const torch::nn::Module& module)
    : module_(module), tensors_(parameters_of(module)), buffers_(buffers_of(module)) {
  for (const NamedTensor& item : tensors_) {
    const torch::Tensor& tensor = item.tensor;
    parameters_.push_back(
        {item, tensor.requires_grad(), tensor.scalar_type(), tensor.sizes().vec(), tensor.device(), place_of(tensor)});
  }
}

std::string ModelForm::change() {
  std::string found = change_of_tensors(tensors_, parameters_of(module_));
  if (found.empty()) found = change_of_tensors(buffers_, buffers_of(module_));
  for (std::size_t i = 0; found.empty() && i < parameters_.size(); ++i) found = change_of(parameters_[i]);
  for (std::size_t i = 0; found.empty() && i < parameters_.size(); ++i) found = tie_of(parameters_[i]);
  return found;
}

std::string ModelForm::change_of(const Parameter& parameter) const {
  const auto& [name, tensor] = parameter.item;
  if (tensor.requires_grad() != parameter.is_trained) {
    return fmt::format("'{}' was {}", name, parameter.is_trained ? "frozen" : "unfrozen");
  }
  if (tensor.scalar_type() != parameter.type) {
    return fmt::format("'{}' changed from {} to {}", name, c10::toString(parameter.type),
                       c10::toString(tensor.scalar_type()));
  }
  if (tensor.sizes() != c10::IntArrayRef(parameter.sizes)) return fmt::format("'{}' changed its shape", name);
  if (tensor.device() != parameter.device) {
    return fmt::format("'{}' moved from {} to {}", name, parameter.device.str(), tensor.device().str());
  }
  return "";
}

// Only one with other memory than before can have been tied since.
std::string ModelForm::tie_of(Parameter& parameter) const {
  const PlaceInMemory place = place_of(parameter.item.tensor);
  if (place == parameter.place) return "";
  for (const Parameter& other : parameters_) {
    if (&other == &parameter || place_of(other.item.tensor) != place || place.first == nullptr) continue;
    return fmt::format("'{}' was given the memory of '{}'", parameter.item.name, other.item.name);
  }
  parameter.place = place;
  return "";
}

std::vector<ParameterForm> forms_of(const torch::nn::Module& module) {
  std::vector<ParameterForm> forms;
  std::map<PlaceInMemory, std::size_t> first_with;
  for (const NamedTensor& item : parameters_of(module)) {
    const std::size_t first = first_with.emplace(place_of(item.tensor), forms.size()).first->second;
    std::string text = fmt::format("{} {} {} {}", item.name, static_cast<int>(item.tensor.scalar_type()),
                                   item.tensor.requires_grad(), first);
    for (const std::int64_t extent : item.tensor.sizes()) text += fmt::format(" {}", extent);
    forms.push_back({item.name, ByteHash::of(text.data(), text.size())});
  }
  return forms;
}

}  // namespace tutti::training
