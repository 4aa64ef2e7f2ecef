#include "replica/chain_tasks.h"

#include <algorithm>
#include <numeric>

namespace syncline::replica {
namespace {

using base::Result;
using base::Status;
using store::DeltaReader;

// Sets that grow together (union by path halving).
class Sets {
 public:
  explicit Sets(std::size_t size) : parent_(size) { std::iota(parent_.begin(), parent_.end(), 0); }
  std::size_t Find(std::size_t i) {
    while (parent_[i] != i) i = parent_[i] = parent_[parent_[i]];
    return i;
  }
  // The lesser of the two stands for both.
  void Join(std::size_t a, std::size_t b) {
    a = Find(a);
    b = Find(b);
    parent_[std::max(a, b)] = std::min(a, b);
  }

 private:
  std::vector<std::size_t> parent_;
};

}  // namespace

ChainTasks::ChainTasks(std::span<const std::unique_ptr<DeltaReader>> chain) {
  std::map<std::string_view, std::size_t> places;
  for (const auto& reader : chain) {
    for (const store::DeltaTensor& tensor : reader->version().tensors) places[tensor.name] = 0;
  }
  for (auto& [name, place] : places) {
    place = tensors.size();
    tensors.push_back({.name = std::string(name), .parts = {}});
  }
  Sets sets(tensors.size());
  for (std::size_t delta = 0; delta < chain.size(); ++delta) {
    const auto place = [&](std::size_t tensor) {
      return places[chain[delta]->version().tensors[tensor].name];
    };
    for (std::size_t run = 0; run < chain[delta]->runs().size(); ++run) {
      const std::vector<std::size_t>& members = chain[delta]->runs()[run];
      for (const std::size_t tensor : members) {
        tensors[place(tensor)].parts.push_back({delta, tensor, run});
        sets.Join(place(tensor), place(members.front()));
      }
    }
  }
  std::map<std::size_t, std::size_t> numbers;  // of tasks
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const auto [number, first] = numbers.try_emplace(sets.Find(i), tasks.size());
    if (first) tasks.emplace_back();
    tasks[number->second].push_back(i);
  }
}

std::unexpected<base::Error> ChainPatches::Annotate(base::Error error,
                                                    const ChainPart& part) const {
  return base::Annotate(std::move(error), chain_[part.delta]->Where(part.tensor));
}

Status ChainPatches::Begin(const ChainTasks& tasks, std::size_t tensor, const TargetOf& target_of) {
  parts_ = tasks.tensors[tensor].parts;
  for (const ChainPart& part : parts_) {
    if (open_.contains({part.delta, part.run})) continue;
    const DeltaReader& reader = *chain_[part.delta];
    std::vector<DeltaReader::Target> targets;
    for (const std::size_t member : reader.runs()[part.run]) {
      const std::string& name = reader.version().tensors[member].name;
      const auto found = std::ranges::lower_bound(tasks.tensors, name, {}, &ChainTensor::name);
      targets.push_back(target_of(static_cast<std::size_t>(found - tasks.tensors.begin())));
    }
    SYNCLINE_ASSIGN(auto patch, chain_[part.delta]->OpenRun(part.run, targets));
    delta::BlockPatch block = patch->MakeBlock();
    open_.emplace(Key(part.delta, part.run),
                  Open{std::move(patch), targets.size(), std::move(block)});
  }
  return {};
}

Result<delta::BlockPatch*> ChainPatches::Next(base::ByteSpan old_block) {
  Open* open = nullptr;
  base::ByteSpan now = old_block;
  for (const ChainPart& part : parts_) {
    open = &open_.at({part.delta, part.run});
    if (Status status = open->patch->Next(now, open->block); !status) {
      return Annotate(std::move(status).error(), part);
    }
    if (parts_.size() == 1) return &open->block;
    if (now.data() == old_block.data()) image_.assign(old_block.begin(), old_block.end());
    open->block.Put(image_);
    now = image_;
  }
  if (folded_ == nullptr || folded_->unit_bytes() != open->block.unit_bytes()) {
    folded_ = std::make_unique<delta::BlockPatch>(delta::BlockPatch::Kind::kXor,
                                                  open->block.unit_bytes());
  }
  folded_->SetDifference(old_block, image_);
  return folded_.get();
}

Status ChainPatches::Finish() {
  for (const ChainPart& part : parts_) {
    const auto open = open_.find({part.delta, part.run});
    if (Status status = open->second.patch->Finish(); !status) {
      return Annotate(std::move(status).error(), part);
    }
    if (--open->second.left == 0) open_.erase(open);
  }
  return {};
}

}  // namespace syncline::replica
