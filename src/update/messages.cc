#include "update/messages.h"

#include <fmt/format.h>

namespace syncline::update {

std::vector<std::byte> MessageOf(std::span<const tensor::TensorView> tensors) {
  std::string header = "{";
  std::uint64_t offset = 0;
  for (const tensor::TensorView& tensor : tensors) {
    header += fmt::format(R"({}"{}":{{"dtype":"{}","shape":{},"data_offsets":[{},{}]}})",
                          offset == 0 && header.size() == 1 ? "" : ",", tensor.name,
                          tensor::Name(tensor.dtype), tensor::ShapeText(tensor.shape), offset,
                          offset + tensor.bytes.size());
    offset += tensor.bytes.size();
  }
  header += '}';
  while (header.size() % 8 != 0) header += ' ';
  const std::uint64_t size = header.size();
  std::string message(base::AsText(std::as_bytes(std::span(&size, 1))));
  message += header;
  for (const tensor::TensorView& tensor : tensors) message += base::AsText(tensor.bytes);
  const base::ByteSpan bytes = base::AsBytes(message);
  return {bytes.begin(), bytes.end()};
}

std::vector<std::byte> MessageOf(const UnitModel& model, const UnitModel::Weights& weights,
                                 std::span<const std::string> names) {
  std::vector<tensor::TensorView> views;
  for (const std::string& name : names) {
    const std::size_t tensor = model.plan().FindTensor(name);
    const layout::TensorSpec& spec = model.plan().tensors()[tensor];
    views.push_back({name, spec.dtype, spec.shape, weights[tensor]});
  }
  return MessageOf(views);
}

}  // namespace syncline::update
