#include "training/model_form.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <map>

#include "training/hash.h"

namespace tutti::training {
namespace {

PlaceInMemory place_of(const torch::Tensor& tensor) {
  return {tensor.has_storage() ? tensor.storage().unsafeGetStorageImpl() : nullptr, tensor.storage_offset()};
}

/// Returns for each the first one that lies in the same place; itself, where it has no elements.
std::vector<std::size_t> ties_of(const std::vector<NamedTensor>& tensors) {
  std::vector<std::size_t> ties;
  std::map<PlaceInMemory, std::size_t> first_with;
  for (const NamedTensor& item : tensors) {
    const std::size_t own = ties.size();
    ties.push_back(item.tensor.numel() == 0 ? own : first_with.emplace(place_of(item.tensor), own).first->second);
  }
  return ties;
}

std::string change_of_tensors(const std::vector<NamedTensor>& before, const std::vector<NamedTensor>& now) {
  for (std::size_t i = 0; i < before.size(); ++i) {
    if (i < now.size() && now[i].tensor.is_same(before[i].tensor)) continue;
    const auto has_its_name = [&](const NamedTensor& one) { return i < now.size() && one.name == now[i].name; };
    const bool is_new = i < now.size() && std::none_of(before.begin(), before.end(), has_its_name);
    return is_new ? fmt::format("'{}' was added", now[i].name)
                  : fmt::format("'{}' was replaced or removed", before[i].name);
  }
  return now.size() > before.size() ? fmt::format("'{}' was added", now[before.size()].name) : "";
}

}  // namespace

ModelForm::ModelForm(const torch::nn::Module& module, bool with_buffers)
    : module_(module), tensors_(parameters_of(module)) {
  if (with_buffers) buffers_ = buffers_of(module);
  const std::vector<std::size_t> ties = ties_of(tensors_);
  for (std::size_t i = 0; i < tensors_.size(); ++i) {
    const torch::Tensor& tensor = tensors_[i].tensor;
    parameters_.push_back({tensors_[i], tensor.requires_grad(), tensor.scalar_type(), tensor.sizes().vec(),
                           tensor.device(), place_of(tensor), ties[i]});
  }
}

std::string ModelForm::change() {
  std::string found = change_of_tensors(tensors_, parameters_of(module_));
  if (found.empty() && buffers_) found = change_of_tensors(*buffers_, buffers_of(module_));
  for (std::size_t i = 0; found.empty() && i < parameters_.size(); ++i) found = change_of(parameters_[i]);
  return found.empty() ? change_of_ties() : found;
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

// Only where some memory is another one can ties have changed.
std::string ModelForm::change_of_ties() {
  const auto moved = [](const Parameter& each) { return place_of(each.item.tensor) != each.place; };
  if (std::none_of(parameters_.begin(), parameters_.end(), moved)) return "";
  const std::vector<std::size_t> now = ties_of(tensors_);
  for (std::size_t i = 0; i < now.size(); ++i) {
    const std::size_t before = parameters_[i].tied_to;
    if (now[i] == before) continue;
    const std::string& name = tensors_[i].name;
    return now[i] != i ? fmt::format("'{}' was given the memory of '{}'", name, tensors_[now[i]].name)
                       : fmt::format("'{}' was given other memory than '{}'", name, tensors_[before].name);
  }
  for (Parameter& each : parameters_) each.place = place_of(each.item.tensor);
  return "";
}

std::string sentence_about(const std::string& change, const std::string& owner) {
  return fmt::format(
      "{}: {} after this object was made; expected the model as it was then: make another one behind such a change",
      owner, change);
}

std::vector<ParameterForm> forms_of(const torch::nn::Module& module) {
  const std::vector<NamedTensor> tensors = parameters_of(module);
  const std::vector<std::size_t> ties = ties_of(tensors);
  std::vector<ParameterForm> forms;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const auto& [name, tensor] = tensors[i];
    std::string text =
        fmt::format("{} {} {} {}", name, static_cast<int>(tensor.scalar_type()), tensor.requires_grad(), ties[i]);
    for (const std::int64_t extent : tensor.sizes()) text += fmt::format(" {}", extent);
    forms.push_back({name, ByteHash::of(text.data(), text.size())});
  }
  return forms;
}

}  // namespace tutti::training
