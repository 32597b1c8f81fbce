// What a strategy was made for: a module's tensors, and how each parameter is trained, typed, shaped and placed.
//
//   ModelForm form(*module);                                     // when the strategy is made
//   const std::string change = form.change();                    // in each step: "'first.bias' was frozen", or ""
//
// It walks over the names, and looks at no values. Lifetime: the module must outlive a ModelForm.
#pragma once

#include <torch/torch.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "training/tensors.h"

namespace tutti::training {

/// The place of a tensor's first element: its storage, which is there also while FSDP has freed the memory.
using PlaceInMemory = std::pair<const void*, std::int64_t>;

class ModelForm {
 public:
  /// `with_buffers`: whether a buffer that is added, replaced or removed is a change.
  explicit ModelForm(const torch::nn::Module& module, bool with_buffers = true);

  /// The first thing that is not as it was, as a clause that begins with the tensor's name; empty: all is. Other memory
  /// is no change, as torch::load() gives it, but for what is tied to what.
  std::string change();

 private:
  struct Parameter {
    NamedTensor item;
    bool is_trained = false;
    torch::ScalarType type{};
    std::vector<std::int64_t> sizes;
    c10::Device device;
    PlaceInMemory place;
    std::size_t tied_to = 0;  // the first one of its place, which may be itself
  };
  std::string change_of(const Parameter& parameter) const;
  std::string change_of_ties();

  const torch::nn::Module& module_;
  std::vector<NamedTensor> tensors_;
  std::optional<std::vector<NamedTensor>> buffers_;
  std::vector<Parameter> parameters_;
};

/// The sentence of the class `owner` about a change.
std::string sentence_about(const std::string& change, const std::string& owner);

/// A parameter, and a hash of its name, form and ties, for ranks that compare their models.
struct ParameterForm {
  std::string name;
  std::uint64_t hash = 0;
};
std::vector<ParameterForm> forms_of(const torch::nn::Module& module);

}  // namespace tutti::training
