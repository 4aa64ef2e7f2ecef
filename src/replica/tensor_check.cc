#include "replica/tensor_check.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

#include "delta/block_patch.h"

namespace syncline::replica {
namespace {

using base::ByteSpan;
using base::Code;
using base::Fail;
using base::Status;

constexpr std::array<std::pair<VerifyBy, std::string_view>, 3> kNames = {{
    {VerifyBy::kHash, "hash"},
    {VerifyBy::kChained, "chained"},
    {VerifyBy::kFull, "full"},
}};

std::unexpected<base::Error> NoDigests(VerifyBy by, std::uint64_t version, std::string_view what) {
  return Fail(Code::kIncompatible,
              fmt::format("version {}: {} no digest, which verifying by \"{}\" needs; verify by "
                          "\"hash\" instead",
                          version, what, Name(by)));
}

}  // namespace

std::optional<VerifyBy> FindVerifyBy(std::string_view name) {
  const auto found =
      std::ranges::find(kNames, name, &std::pair<VerifyBy, std::string_view>::second);
  if (found == kNames.end()) return std::nullopt;
  return found->first;
}

std::string_view Name(VerifyBy by) { return kNames.at(static_cast<std::size_t>(by)).second; }

Status CheckDigests(VerifyBy by, std::span<const store::Described> deltas) {
  if (by == VerifyBy::kHash) return {};
  for (const store::Described& version : deltas) {
    if (!version.delta) continue;
    const delta::Encoding encoding = version.delta->encoding;
    if (encoding == delta::Encoding::kXor || encoding == delta::Encoding::kOverwrite) {
      return NoDigests(by, version.number,
                       fmt::format("its encoding, {}, carries", delta::Name(encoding)));
    }
  }
  return {};
}

Status CheckDigests(VerifyBy by, std::span<const store::Version> deltas) {
  if (by == VerifyBy::kHash) return {};
  for (const store::Version& version : deltas) {
    for (const store::DeltaTensor& tensor : version.tensors) {
      if (!tensor.digest) {
        return NoDigests(by, version.number, fmt::format("tensor {} comes with", tensor.name));
      }
    }
  }
  return {};
}

TensorCheck::TensorCheck(VerifyBy by, Expected expected, tensor::Dtype dtype)
    : by_(by),
      expected_(std::move(expected)),
      unit_bytes_(DigestUnitBytes(dtype)),
      hasher_(by == VerifyBy::kHash ? tensor::MakeHasher(expected_.hash.kind) : nullptr),
      change_(unit_bytes_) {
  if (by_ == VerifyBy::kChained && expected_.digest_before) digest_ = *expected_.digest_before;
}

void TensorCheck::Old(ByteSpan piece, std::uint64_t offset) {
  if (by_ != VerifyBy::kChained || expected_.digest_before) return;
  digest_ += tensor::DigestOf(piece, unit_bytes_, offset / unit_bytes_);
}

void TensorCheck::New(ByteSpan block, std::uint64_t offset, ByteSpan record) {
  switch (by_) {
    case VerifyBy::kHash:
      hasher_->Update(block);
      break;
    case VerifyBy::kChained:
      // None for a block without a change; what could not be read would be missed by the digest.
      if (const auto read = delta::BlockRecord::Read(record)) {
        read->ForEachUnit([&](std::uint64_t at, std::uint64_t before, std::uint64_t after) {
          change_.AddAt(at, before, after);
        });
      }
      break;
    case VerifyBy::kFull:
      digest_ += tensor::DigestOf(block, unit_bytes_, offset / unit_bytes_);
      break;
  }
}

std::optional<std::string> TensorCheck::Mismatch() const {
  std::string_view what = Name(expected_.hash.kind);
  std::string found;
  std::string expected = expected_.hash.hex;
  if (by_ == VerifyBy::kHash) {
    found = hasher_->Hex();
  } else {
    what = by_ == VerifyBy::kChained ? "chained digest" : "digest";
    found = (digest_ + change_.difference()).Hex();
    expected = expected_.digest ? expected_.digest->Hex() : "";
  }
  if (found == expected) return std::nullopt;
  return fmt::format("its {} is {}, expected {}", what, found, expected);
}

}  // namespace syncline::replica
