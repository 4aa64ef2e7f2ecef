#include "store/file_hash.h"

#include <fmt/format.h>
#include <openssl/evp.h>

#include <algorithm>
#include <array>
#include <memory>
#include <numeric>

namespace syncline::store {
namespace {

using base::Code;
using base::Fail;
using base::FileSystem;
using base::Result;
using base::Status;

constexpr std::size_t kReadBytes = 1 << 20;

}  // namespace

Sha256::Sha256() : context_(EVP_MD_CTX_new()) {
  ok_ = context_ != nullptr && EVP_DigestInit_ex(context_.get(), EVP_sha256(), nullptr) == 1;
}

Sha256::~Sha256() = default;

void Sha256::Update(base::ByteSpan bytes) {
  ok_ = ok_ && EVP_DigestUpdate(context_.get(), bytes.data(), bytes.size()) == 1;
}

std::string Sha256::Hex() {
  std::array<std::uint8_t, 32> digest;
  ok_ = ok_ && EVP_DigestFinal_ex(context_.get(), digest.data(), nullptr) == 1;
  return ok_ ? base::ToHex(digest) : std::string();
}

void Sha256::Free::operator()(evp_md_ctx_st* context) const { EVP_MD_CTX_free(context); }

std::string Sha256Hex(base::ByteSpan bytes) {
  Sha256 sha;
  sha.Update(bytes);
  return sha.Hex();
}

Result<FileHash> HashFile(FileSystem& files, const std::string& path,
                          const base::CancelToken* cancel) {
  SYNCLINE_ASSIGN(const auto file, files.Open(path, base::OpenMode::kRead));
  SYNCLINE_ASSIGN(const base::FileInfo info, file->Stat());
  std::vector<std::byte> buffer(std::min<std::uint64_t>(kReadBytes, info.size));
  Sha256 sha;
  FileHash hash{.bytes = info.size};
  for (std::uint64_t at = 0; at < info.size; at += buffer.size()) {
    if (cancel != nullptr) SYNCLINE_TRY(cancel->Check());
    const auto piece =
        std::span(buffer).first(std::min<std::uint64_t>(buffer.size(), info.size - at));
    SYNCLINE_TRY(base::ReadExactly(*file, piece, at));
    sha.Update(piece);
  }
  hash.sha256 = sha.Hex();
  if (hash.sha256.empty()) return Fail(Code::kInternal, "cannot hash " + path);
  return hash;
}

Result<std::vector<FileHash>> HashFiles(FileSystem& files, std::span<const std::string> paths,
                                        base::ThreadPool& pool, const base::CancelToken* cancel) {
  std::vector<std::uint64_t> sizes;
  for (const std::string& path : paths) {
    SYNCLINE_ASSIGN(const base::FileInfo info, files.Stat(path));
    sizes.push_back(info.size);
  }
  std::vector<std::size_t> order(paths.size());
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(order, std::ranges::greater(), [&](std::size_t i) { return sizes[i]; });
  std::vector<FileHash> hashes(paths.size());
  SYNCLINE_TRY(pool.ParallelFor(
      order.size(),
      [&](std::size_t i) -> Status {
        SYNCLINE_ASSIGN(hashes[order[i]], HashFile(files, paths[order[i]], cancel));
        return {};
      },
      cancel));
  return hashes;
}

bool IsLowerHex(std::string_view text, std::size_t digits) {
  return text.size() == digits && std::ranges::all_of(text, [](char c) {
           return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f');
         });
}

}  // namespace syncline::store
