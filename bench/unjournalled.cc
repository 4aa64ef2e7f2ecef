// The peers of the journal's bench lines, made of the same parts as the replica:
//
//   unjournalled apply STORE VERSION REPLICA   applies a delta as a pull does, without a journal:
//                                              every tensor is read, patched, hashed and written,
//                                              then the files are synced, as they must be if a power
//                                              cut is to find the new version whole
//   unjournalled interrupt STORE VERSION REPLICA
//                                              pulls, and is killed in the middle of the writes
//
// Prints the seconds that it took.
#include <fmt/core.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <set>
#include <string_view>

#include "base/faulty_file_system.h"
#include "base/pool.h"
#include "checkpoint/checkpoint.h"
#include "delta/patch.h"
#include "replica/install.h"
#include "replica/replica.h"
#include "store/version.h"

namespace syncline {
namespace {

using base::FileSystem;
using base::Status;

constexpr std::size_t kThreads = 2;
constexpr int kWritesBeforeTheEnd = 1000;

Status ApplyTensor(base::File& frames, base::File& weights, const store::Version& version,
                   const store::DeltaTensor& delta, const checkpoint::CheckpointTensor& target) {
  std::vector<std::byte> frame(delta.bytes);
  SYNCLINE_TRY(base::ReadExactly(frames, frame, delta.offset));
  SYNCLINE_ASSIGN(const auto patch,
                  delta::OpenPatch(version.delta->encoding, frame, target.bytes, target.dtype));
  delta::BlockPatch block = patch->MakeBlock();
  const auto hasher = tensor::MakeHasher(version.delta->checksum);
  std::vector<std::byte> image(target.bytes);
  std::vector<std::byte> records;
  SYNCLINE_TRY(base::ReadExactly(weights, image, target.offset));
  for (std::uint64_t at = 0; at < target.bytes; at += delta::kBlockBytes) {
    const auto part = std::span(image).subspan(
        at, std::min<std::uint64_t>(delta::kBlockBytes, target.bytes - at));
    SYNCLINE_TRY(patch->Next(part, block));
    records.clear();
    block.Apply(part, at, 2, records);
    hasher->Update(part);
  }
  SYNCLINE_TRY(patch->Finish());
  if (hasher->Hex() != delta.hash) {
    return base::Fail(base::Code::kChecksumMismatch, delta.name);
  }
  return weights.WriteAt(image, target.offset);
}

Status Apply(const std::string& store, std::uint64_t number, const std::string& replica) {
  FileSystem& files = FileSystem::Posix();
  base::ThreadPool pool(kThreads);
  SYNCLINE_ASSIGN(const store::Version version, store::ReadVersion(files, store, number));
  SYNCLINE_ASSIGN(const auto checkpoint, checkpoint::Checkpoint::Open(files, replica));
  std::vector<std::unique_ptr<base::File>> frames;
  std::vector<std::unique_ptr<base::File>> weights;
  std::set<std::string> names;
  for (const std::string& name : version.files) {
    SYNCLINE_ASSIGN(auto file,
                    files.Open(base::JoinPath(version.directory, name), base::OpenMode::kRead));
    frames.push_back(std::move(file));
  }
  for (std::size_t i = 0; i < checkpoint.files().size(); ++i) {
    SYNCLINE_ASSIGN(auto file, files.Open(checkpoint.FilePath(i), base::OpenMode::kReadWrite));
    weights.push_back(std::move(file));
    names.insert(checkpoint.files()[i].name);
  }
  std::vector<const store::DeltaTensor*> order;
  order.reserve(version.tensors.size());
  for (const store::DeltaTensor& delta : version.tensors) order.push_back(&delta);
  std::ranges::sort(order, std::ranges::greater(), [](const auto* delta) { return delta->bytes; });
  SYNCLINE_TRY(pool.ParallelFor(order.size(), [&](std::size_t i) -> Status {
    const checkpoint::CheckpointTensor* target = checkpoint.Find(order[i]->name);
    if (target == nullptr) return base::Fail(base::Code::kNotFound, order[i]->name);
    return ApplyTensor(*frames[order[i]->file], *weights[target->file], version, *order[i],
                       *target);
  }));
  return replica::SyncFiles(files, replica, names, pool);
}

Status Interrupt(const std::string& store, std::uint64_t number, const std::string& replica) {
  base::FaultyFileSystem files(FileSystem::Posix());
  int writes = 0;
  bool dead = false;
  files.SetRule([&](std::string_view operation, const std::string& path) -> Status {
    const bool weights = path.starts_with(replica) && path.ends_with(".safetensors");
    if (operation == "write" && weights && ++writes == kWritesBeforeTheEnd) dead = true;
    return dead ? base::Fail(base::Code::kIo, "killed") : Status();
  });
  const auto pulled =
      replica::Pull(files, store, replica, {.version = number, .threads = kThreads});
  if (!pulled) return {};
  return base::Fail(base::Code::kInternal, "the pull was not interrupted");
}

}  // namespace
}  // namespace syncline

int main(int argc, char** argv) {
  if (argc != 5) return 2;
  const std::string_view mode = argv[1];
  const std::string_view text = argv[3];
  std::uint64_t version = 0;
  std::from_chars(text.data(), text.data() + text.size(), version);
  const auto begin = std::chrono::steady_clock::now();
  const syncline::base::Status status = mode == "apply"
                                            ? syncline::Apply(argv[2], version, argv[4])
                                            : syncline::Interrupt(argv[2], version, argv[4]);
  if (!status) {
    fmt::print(stderr, "{}\n", status.error().message);
    return 1;
  }
  fmt::print("{:.6f}\n",
             std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
}
