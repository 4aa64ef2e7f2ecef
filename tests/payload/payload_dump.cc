// Decodes payloads for the tests in Python beside it. Reads lines "FORMAT RANK PATH", and answers
// each with one line of JSON:
//   {"tensors": [{"name", "dtype", "shape", "bytes", "xxh3"} …], "descriptors": N, "mappings": N,
//    "resident": bytes}
//   or {"code", "message", "descriptors", …}
// where the last three are what this process holds when the batch is gone again.
#include <fmt/format.h>

#include <array>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>
#include <optional>
#include <string>
#include <utility>

#include "base/file.h"
#include "base/json.h"
#include "payload/payload.h"
#include "tensor/hash.h"

namespace syncline {
namespace {

using base::Json;

std::optional<payload::Format> FindFormat(std::string_view name) {
  constexpr std::array<std::pair<std::string_view, payload::Format>, 3> kFormats = {{
      {"plain", payload::Format::kPlain},
      {"flattened_bucket", payload::Format::kFlattenedBucket},
      {"safetensors", payload::Format::kSafetensors},
  }};
  for (const auto& [known, format] : kFormats) {
    if (known == name) return format;
  }
  return std::nullopt;
}

Json::Array Describe(const payload::Batch& batch) {
  Json::Array tensors;
  for (const payload::NamedTensor& tensor : batch.tensors()) {
    tensors.emplace_back(
        Json::Object{{"name", tensor.name},
                     {"dtype", Name(tensor.dtype)},
                     {"shape", Json::Array(tensor.shape.begin(), tensor.shape.end())},
                     {"bytes", std::uint64_t{tensor.bytes.size()}},
                     {"xxh3", tensor::HashHex(tensor::HashKind::kXxh3, tensor.bytes)}});
  }
  return tensors;
}

Json::Object Decode(payload::Format format, std::uint32_t rank, const std::string& path) {
  constexpr std::uint64_t kMaxBytes = std::uint64_t{1} << 30;
  const base::Result<std::string> message =
      base::ReadText(base::FileSystem::Posix(), path, kMaxBytes);
  if (!message) return {{"code", "file"}, {"message", message.error().message}};
  const auto batch = payload::Decode(base::AsBytes(*message), format, rank);
  if (!batch) {
    return {{"code", base::Info(batch.error().code).name}, {"message", batch.error().message}};
  }
  return {{"tensors", Describe(**batch)}};
}

std::uint64_t CountEntries(const char* directory) {
  const std::filesystem::directory_iterator entries(directory);
  return static_cast<std::uint64_t>(std::distance(begin(entries), end(entries)));
}

std::uint64_t CountSharedMappings() {
  std::ifstream maps("/proc/self/maps");
  std::uint64_t count = 0;
  for (std::string line; std::getline(maps, line);) {
    if (line.find("/dev/shm/") != std::string::npos) ++count;
  }
  return count;
}

std::uint64_t ResidentBytes() {
  std::ifstream statm("/proc/self/statm");
  std::uint64_t size = 0;
  std::uint64_t resident = 0;
  statm >> size >> resident;
  constexpr std::uint64_t kPageBytes = 4096;
  return resident * kPageBytes;
}

}  // namespace
}  // namespace syncline

int main() {
  using namespace syncline;  // NOLINT: all of this program is for it
  std::string name;
  std::uint32_t rank = 0;
  std::string path;
  while (std::cin >> name >> rank >> path) {
    const std::optional<payload::Format> format = FindFormat(name);
    if (!format) return 2;
    base::Json::Object answer = Decode(*format, rank, path);
    answer.emplace_back("descriptors", CountEntries("/proc/self/fd"));
    answer.emplace_back("mappings", CountSharedMappings());
    answer.emplace_back("resident", ResidentBytes());
    std::cout << base::ToText(base::Json(std::move(answer))) << std::endl;
  }
  return 0;
}
