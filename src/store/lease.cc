// A lease is one small file of its own name, written aside and renamed, so no reader waits for
// another and none sees half of one.
// 1. The reader writes the file before it looks at what the store holds of its range, and again
//    when a third of its time is over. Its end, or the object's destruction, removes it.
// 2. A collector reads all files just before it removes a version. It drops those that are older
//    than kLeaseSeconds, and at once those of this host and boot whose process is gone: no process
//    of that number, or another one that started later.
#include "store/lease.h"

#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <limits>
#include <optional>
#include <string_view>

#include "base/json.h"
#include "base/log.h"
#include "store/directory_sink.h"
#include "store/retention.h"

namespace syncline::store {
namespace {

using base::FileSystem;
using base::Json;
using base::Result;
using base::Status;

constexpr std::uint64_t kMaxLeaseBytes = 4096;
constexpr std::int64_t kLeaseNs = static_cast<std::int64_t>(kLeaseSeconds * 1e9);

std::string LeaseDirectory(const std::string& store) {
  return base::JoinPath(OwnDirectory(store), "leases");
}

// Where a process number means one process: host, namespace of process numbers, boot.
struct Place {
  std::string host;
  std::string pid_namespace;
  std::string boot;

  bool operator==(const Place&) const = default;
};

Place Here() {
  Place place{.boot = base::ReadKernelText("/proc/sys/kernel/random/boot_id")};
  std::array<char, 256> name = {};
  if (gethostname(name.data(), name.size() - 1) == 0) place.host = name.data();
  const ssize_t size = readlink("/proc/self/ns/pid", name.data(), name.size());
  if (size > 0) place.pid_namespace.assign(name.data(), static_cast<std::size_t>(size));
  return place;
}

// When a process started, in ticks since boot (proc(5), field 22 of stat); empty: there is none.
std::string StartOf(std::uint64_t pid) {
  const std::string stat = base::ReadKernelText(fmt::format("/proc/{}/stat", pid));
  // Field 2 is the name in brackets, which may hold anything.
  const std::size_t name_end = stat.rfind(')');
  if (name_end == std::string::npos) return {};
  std::size_t at = name_end + 2;
  for (int field = 3; field < 22; ++field) {
    at = stat.find(' ', at);
    if (at == std::string::npos) return {};
    ++at;
  }
  return stat.substr(at, stat.find(' ', at) - at);
}

struct Record {
  Place place;
  std::uint64_t pid = 0;
  std::string start;
  HeldRange range;
  std::uint64_t renewed_ns = 0;
};

std::string RecordText(const Record& record) {
  return ToText(Json(Json::Object{{"host", record.place.host},
                                  {"pid_namespace", record.place.pid_namespace},
                                  {"boot", record.place.boot},
                                  {"pid", record.pid},
                                  {"start", record.start},
                                  {"from", record.range.from},
                                  {"to", record.range.to},
                                  {"renewed_ns", record.renewed_ns}}));
}

std::optional<Record> ParseRecord(std::string_view text) {
  const Result<Json> json = base::ParseJson(text);
  if (!json) return std::nullopt;
  bool whole = true;
  const auto string = [&](std::string_view key) {
    const Json* value = json->Find(key);
    whole = whole && value != nullptr && value->string() != nullptr;
    return whole ? *value->string() : std::string();
  };
  const auto number = [&](std::string_view key) {
    const Json* value = json->Find(key);
    whole = whole && value != nullptr && value->unsigned_integer() != nullptr;
    return whole ? *value->unsigned_integer() : 0;
  };
  Record record{.place = {string("host"), string("pid_namespace"), string("boot")},
                .pid = number("pid"),
                .start = string("start"),
                .range = {number("from"), number("to")},
                .renewed_ns = number("renewed_ns")};
  if (!whole) return std::nullopt;
  return record;
}

bool Alive(const Record& record, const Place& here) {
  if (record.place != here) return true;  // cannot be told from here
  return StartOf(record.pid) == record.start;
}

class FileLease final : public Lease {
 public:
  FileLease(FileSystem& files, std::string path, Record record)
      : files_(files), path_(std::move(path)), record_(std::move(record)) {}
  ~FileLease() override { (void)files_.Remove(path_); }

  Status Write() {
    record_.renewed_ns = static_cast<std::uint64_t>(NowNs());
    return base::WriteTextAtomically(files_, path_, RecordText(record_), false);
  }

  void Renew() override {
    if (NowNs() - static_cast<std::int64_t>(record_.renewed_ns) < kLeaseNs / 3) return;
    if (const Status status = Write(); !status) {
      base::Log(base::LogLevel::kWarning,
                fmt::format("a lease cannot be renewed: {}", status.error().message));
    }
  }

 private:
  FileSystem& files_;
  std::string path_;
  Record record_;
};

// What one file holds at that time; nothing if it counts no more.
Result<std::optional<HeldRange>> ReadLease(FileSystem& files, const std::string& path,
                                           const Place& here, std::int64_t now_ns) {
  const Result<base::FileInfo> info = files.Stat(path);
  if (!info && info.error().code == base::Code::kNotFound) return std::nullopt;  // ended meanwhile
  if (!info) return std::unexpected(info.error());
  const Result<std::string> text = base::ReadText(files, path, kMaxLeaseBytes);
  if (!text && text.error().code == base::Code::kNotFound) return std::nullopt;
  const std::optional<Record> record = text ? ParseRecord(*text) : std::nullopt;
  if (!record) {
    if (now_ns - info->modified_ns >= kLeaseNs) return std::nullopt;
    return HeldRange{0, std::numeric_limits<std::uint64_t>::max()};
  }
  if (now_ns - static_cast<std::int64_t>(record->renewed_ns) >= kLeaseNs) return std::nullopt;
  if (!Alive(*record, here)) return std::nullopt;
  return record->range;
}

}  // namespace

std::int64_t NowNs() {
  return std::chrono::nanoseconds(std::chrono::system_clock::now().time_since_epoch()).count();
}

Result<std::vector<HeldRange>> ReadLeases(FileSystem& files, const std::string& store,
                                          std::int64_t now_ns, bool drop) {
  const std::string directory = LeaseDirectory(store);
  Result<std::vector<std::string>> names = files.List(directory);
  if (!names && names.error().code == base::Code::kNotFound) return std::vector<HeldRange>();
  if (!names) return std::unexpected(std::move(names).error());
  const Place here = Here();
  std::vector<HeldRange> held;
  for (const std::string& name : *names) {
    const std::string path = base::JoinPath(directory, name);
    SYNCLINE_ASSIGN(const std::optional<HeldRange> range, ReadLease(files, path, here, now_ns));
    if (range && !name.ends_with(".json"))
      continue;  // being written: its reader has not looked yet
    if (range) {
      held.push_back(*range);
    } else if (drop) {
      SYNCLINE_TRY(files.RemoveAll(path));
    }
  }
  return held;
}

std::unique_ptr<Lease> TakeLease(objects::ObjectStore& store, std::uint64_t from, std::uint64_t to,
                                 FileSystem& files) {
  if (store.local_path().empty() || !files.Stat(store.local_path())) return nullptr;
  const std::string directory = LeaseDirectory(store.local_path());
  if (!files.MakeDirectories(directory)) return nullptr;
  const auto pid = static_cast<std::uint64_t>(getpid());
  Record record{.place = Here(), .pid = pid, .start = StartOf(pid), .range = {from, to}};
  auto lease = std::make_unique<FileLease>(
      files, base::JoinPath(directory, base::RandomHex(16) + ".json"), std::move(record));
  if (!lease->Write()) return nullptr;
  return lease;
}

}  // namespace syncline::store
