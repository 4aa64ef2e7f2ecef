#include "base/power_loss_nodes.h"

#include <algorithm>
#include <array>
#include <utility>

namespace syncline::base::power_loss {

std::uint64_t PickPrefix(std::uint64_t count, std::mt19937_64& random) {
  switch (random() % 4) {
    case 0:
      return 0;
    case 1:
      return count;
    default:
      return random() % (count + 1);
  }
}

Status KeepOldPages(Node& node, File& file, std::uint64_t begin, std::uint64_t end) {
  for (std::uint64_t page = begin / kPageBytes; page * kPageBytes < end; ++page) {
    if (node.old_pages.contains(page)) continue;
    std::vector<std::byte> old;
    if (page * kPageBytes < std::min(node.size, node.durable_size)) {
      old.resize(kPageBytes);
      SYNCLINE_TRY(file.ReadAt(old, page * kPageBytes));
    }
    node.old_pages.emplace(page, std::move(old));
  }
  return {};
}

void MarkSynced(Node& node) {
  node.old_pages.clear();
  node.durable_size = node.size;
}

Status SettleContent(const Node& node, File& file, std::mt19937_64& random) {
  const bool keep_size = random() % 2 == 0;
  const std::uint64_t size = keep_size ? node.size : node.durable_size;
  // Often all or nothing of a file has reached the device, else a page or another.
  const std::uint64_t style = random() % 4;
  for (const auto& [page, old] : node.old_pages) {
    const bool coin = random() % 2 == 0;
    bool reached = style == 0 || (style != 1 && coin);
    // If the file was cut but the old size is back, so is what lay beyond.
    if (page * kPageBytes >= node.size) reached = false;
    if (reached || page * kPageBytes >= size) continue;
    static constexpr std::array<std::byte, kPageBytes> kZeros = {};
    SYNCLINE_TRY(file.WriteAt(old.empty() ? ByteSpan(kZeros) : ByteSpan(old), page * kPageBytes));
  }
  return file.Truncate(size);
}

void NameLog::Add(std::shared_ptr<Node> directory, std::string name, std::shared_ptr<Node> node) {
  changes_.push_back({std::move(directory), std::move(name), std::move(node), false});
}

void NameLog::AddDurable(std::shared_ptr<Node> directory, std::string name,
                         std::shared_ptr<Node> node) {
  changes_.push_back({std::move(directory), std::move(name), std::move(node), true});
  Fold();
}

void NameLog::SyncDirectory(const Node& directory) {
  for (Change& change : changes_) {
    if (change.directory.get() == &directory) change.durable = true;
  }
  Fold();
}

void NameLog::Settle(std::mt19937_64& random) {
  // By directory: changes that are not durable, and how many of them survive. In the order of the
  // log, so that a seed always means the same.
  std::vector<std::pair<const Node*, std::uint64_t>> open;
  const auto find = [&](const Node* directory) {
    return std::ranges::find(open, directory, &std::pair<const Node*, std::uint64_t>::first);
  };
  for (const Change& change : changes_) {
    if (change.durable) continue;
    const auto at = find(change.directory.get());
    if (at == open.end()) {
      open.emplace_back(change.directory.get(), 1);
    } else {
      ++at->second;
    }
  }
  for (auto& [directory, count] : open) count = PickPrefix(count, random);
  for (const Change& change : changes_) {
    if (!change.durable) {
      std::uint64_t& left = find(change.directory.get())->second;
      if (left == 0) continue;
      --left;
    }
    Apply(change);
  }
  changes_.clear();
}

void NameLog::Fold() {
  while (!changes_.empty() && changes_.front().durable) {
    Apply(changes_.front());
    changes_.pop_front();
  }
}

void NameLog::Apply(const Change& change) {
  Names& names = change.directory->durable;
  if (const std::shared_ptr<Node> parent =
          change.node ? change.node->durable_parent.lock() : nullptr) {
    const auto old = parent->durable.find(change.node->durable_name);
    if (old != parent->durable.end() && old->second == change.node) parent->durable.erase(old);
  }
  if (change.node == nullptr) {
    names.erase(change.name);
    return;
  }
  names.insert_or_assign(change.name, change.node);
  change.node->durable_parent = change.directory;
  change.node->durable_name = change.name;
}

}  // namespace syncline::base::power_loss
