// For tests: what a device holds of names and pages, beside what the files hold now. The inside of
// PowerLossFileSystem; the model is in its header.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "base/file.h"

namespace syncline::base::power_loss {

inline constexpr std::uint64_t kPageBytes = 4096;

struct Node;
using Names = std::map<std::string, std::shared_ptr<Node>, std::less<>>;

// A file or a directory, whatever its name.
struct Node {
  bool directory = false;

  // Of a file. What is durable of a page is its old content if it is in `old_pages`, else what the
  // file holds now.
  std::uint64_t size = 0;
  std::uint64_t durable_size = 0;
  std::map<std::uint64_t, std::vector<std::byte>> old_pages;  // by number; an empty one is zeros
  std::unique_ptr<File> unnamed;  // its content, once no name leads to it

  // Of a directory. Only names that were ever asked for are known; others are as the device has
  // them.
  Names now;
  Names durable;

  // The name that leads to it in `durable`.
  std::weak_ptr<Node> durable_parent;
  std::string durable_name;

  std::string held;  // where CutPower has moved it meanwhile
};

// The content of [begin, end) is about to change: remembers what is durable of it. `file` reads it.
Status KeepOldPages(Node& node, File& file, std::uint64_t begin, std::uint64_t end);
void MarkSynced(Node& node);
// Makes `file` what a device may hold of the node.
Status SettleContent(const Node& node, File& file, std::mt19937_64& random);

// The changes of names since each directory was synced, in their order over all directories.
class NameLog {
 public:
  // `name` of the directory is now `node` (which leaves its former place), or nothing.
  void Add(std::shared_ptr<Node> directory, std::string name, std::shared_ptr<Node> node);
  // The same, durable at once.
  void AddDurable(std::shared_ptr<Node> directory, std::string name, std::shared_ptr<Node> node);
  void SyncDirectory(const Node& directory);
  // Brings Node::durable of all directories to what a device may hold: of each directory a random
  // prefix of its changes. The log is empty afterwards.
  void Settle(std::mt19937_64& random);

 private:
  struct Change {
    std::shared_ptr<Node> directory;
    std::string name;
    std::shared_ptr<Node> node;  // null: removed
    bool durable = false;
  };
  // Moves changes into Node::durable, up to the first that is not durable.
  void Fold();
  static void Apply(const Change& change);

  std::deque<Change> changes_;
};

// None, all, or a number between, each of them often.
std::uint64_t PickPrefix(std::uint64_t count, std::mt19937_64& random);

}  // namespace syncline::base::power_loss
