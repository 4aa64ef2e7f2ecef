#include "torture/faults.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <vector>

namespace syncline::torture {

using base::Code;
using base::Fail;
using base::FileSystem;
using base::Result;
using base::Status;

std::string_view Name(Fault fault) {
  static constexpr std::array<std::string_view, 9> kNames = {
      "kill",       "power",       "error", "full-disk", "dead-device",
      "short-read", "short-write", "flip",  "cancel"};
  return kNames[static_cast<std::size_t>(fault)];
}

Result<Counts> CountOperations(FileSystem& files, const std::function<Status(FileSystem&)>& run) {
  base::FaultyFileSystem counted(files);
  Counts counts;
  counted.SetRule([&](std::string_view operation, const std::string&) -> Status {
    if (operation == "write") ++counts.writes;
    return {};
  });
  counted.SetReadRule([&](const std::string&, std::uint64_t, base::MutableByteSpan bytes) {
    ++counts.reads;
    return bytes.size();
  });
  if (Status status = run(counted); !status) {
    return Wrong("without disturbance it fails too: " + Told(status));
  }
  counts.operations = counted.operation_count();
  return counts;
}

Disturbed::Disturbed(World& world, Fault fault, const Counts& counts)
    : world_(world), fault_(fault), files_(world.machine()) {
  Dice& dice = world.dice();
  switch (fault) {
    case Fault::kKill:
    case Fault::kPower: {
      const std::uint64_t at = dice.Below(counts.operations);
      const std::uint64_t written = dice.Percent(50) ? 0 : dice.Between(1, 20'000);
      world.Say(fmt::format("{} at operation {} of {} ({} bytes of a write)", Name(fault), at,
                            counts.operations, written));
      files_.KillAt(at, written);
      break;
    }
    case Fault::kError:
      FailOne(counts);
      break;
    case Fault::kFullDisk:
    case Fault::kDeadDevice:
      FailFrom(counts);
      break;
    case Fault::kShortRead: {
      const std::uint64_t at = dice.Below(counts.reads);
      const std::uint64_t bytes = dice.Below(dice.Percent(50) ? 40 : 5000);
      world.Say(fmt::format("read {} of {} gives {} bytes", at, counts.reads, bytes));
      files_.ShortReadNth("", at, bytes);
      break;
    }
    case Fault::kShortWrite: {
      const std::uint64_t at = dice.Below(counts.writes);
      const std::uint64_t bytes = dice.Below(dice.Percent(50) ? 40 : 20'000);
      world.Say(fmt::format("write {} of {} writes {} bytes", at, counts.writes, bytes));
      files_.ShortWriteNth("", at, bytes, {dice.Percent(50) ? Code::kNoSpace : Code::kIo, "short"});
      break;
    }
    case Fault::kFlip:
      FlipOne(counts);
      break;
    case Fault::kCancel:
      CancelAt(counts);
      break;
  }
}

void Disturbed::FailOne(const Counts& counts) {
  const std::uint64_t at = world_.dice().Below(counts.operations);
  const Code code = world_.dice().Percent(30) ? Code::kNoSpace : Code::kIo;
  world_.Say(fmt::format("operation {} of {} fails", at, counts.operations));
  files_.SetRule([at, code, seen = std::uint64_t{0}](std::string_view operation,
                                                     const std::string& path) mutable -> Status {
    if (seen++ != at) return {};
    return Fail(code, fmt::format("injected ({} {})", operation, path));
  });
}

void Disturbed::FailFrom(const Counts& counts) {
  const std::uint64_t at = world_.dice().Below(counts.operations);
  const bool full = fault_ == Fault::kFullDisk;
  world_.Say(fmt::format("{} from operation {} of {} on", Name(fault_), at, counts.operations));
  files_.SetRule([at, full, seen = std::uint64_t{0}](std::string_view operation,
                                                     const std::string& path) mutable -> Status {
    if (seen++ < at) return {};
    if (!full) return Fail(Code::kIo, fmt::format("injected ({} {})", operation, path));
    if (operation != "write" && operation != "allocate" && operation != "mkdir") return {};
    return Fail(Code::kNoSpace, fmt::format("injected ({} {})", operation, path));
  });
}

void Disturbed::FlipOne(const Counts& counts) {
  const std::uint64_t at = world_.dice().Below(counts.reads);
  const std::uint64_t bit = world_.dice().Seed();
  world_.Say(fmt::format("a bit of read {} of {} is wrong", at, counts.reads));
  files_.SetReadRule(
      [this, at, bit, seen = std::uint64_t{0}, done = false](
          const std::string& path, std::uint64_t offset, base::MutableByteSpan bytes) mutable {
        // open: blocks are read, changed and written back without a check of what was read; and an
        // index that was checked is read once more.
        const bool open =
            path.find("/replica/model") != std::string::npos || path.ends_with(".index.json");
        const bool spared = bytes.empty() || (open && !world_.settings().strict);
        if (seen++ >= at && !done && !spared) {
          done = true;
          const std::uint64_t byte = bit / 8 % bytes.size();
          world_.Say(fmt::format("  bit {} of byte {} of {}", bit % 8, offset + byte, path));
          bytes[byte] ^= static_cast<std::byte>(1U << (bit % 8));
        }
        return bytes.size();
      });
}

void Disturbed::CancelAt(const Counts& counts) {
  const std::uint64_t at = world_.dice().Below(counts.operations);
  world_.Say(fmt::format("cancelled at operation {} of {}", at, counts.operations));
  files_.SetRule([this, at, seen = std::uint64_t{0}](std::string_view, const std::string&) mutable {
    if (seen++ == at) cancel_.Cancel();
    return Status();
  });
}

bool Disturbed::died() const { return fault_ == Fault::kKill || fault_ == Fault::kPower; }

Status Disturbed::CheckError(const base::Error& error) const {
  static const std::vector<Code> kDamaged = {
      Code::kCorrupt,  Code::kChecksumMismatch, Code::kIncompatible, Code::kOutOfOrder,
      Code::kNotFound, Code::kInvalidArgument,  Code::kLimitExceeded};
  std::vector<Code> allowed = {Code::kIo};
  switch (fault_) {
    case Fault::kKill:
    case Fault::kPower:
    case Fault::kDeadDevice:
      break;
    case Fault::kError:
    case Fault::kFullDisk:
    case Fault::kShortWrite:
      allowed.push_back(Code::kNoSpace);
      break;
    case Fault::kShortRead:
      allowed = {Code::kCorrupt, Code::kChecksumMismatch, Code::kIo};
      break;
    case Fault::kFlip:
      allowed = kDamaged;
      break;
    case Fault::kCancel:
      allowed = {Code::kCancelled};
      break;
  }
  if (std::ranges::find(allowed, error.code) != allowed.end()) return {};
  return Wrong(fmt::format("after {} the error is {}: {}", Name(fault_),
                           base::Info(error.code).name, error.message));
}

Status Disturbed::Finish() {
  if (fault_ != Fault::kPower) return {};
  return world_.CutPower();
}

}  // namespace syncline::torture
