#include "tensor/hash.h"

#include <fmt/format.h>
#include <xxhash.h>
#ifdef __x86_64__
#include <xxh_x86dispatch.h>  // the widest vectors of the machine that it runs on
#endif

#include <algorithm>
#include <array>
#include <utility>

#include "tensor/blake3.h"

namespace syncline::tensor {
namespace {

constexpr std::array<std::pair<HashKind, std::string_view>, 3> kNames = {{
    {HashKind::kXxh3, "xxh3-128"},
    {HashKind::kBlake3, "blake3"},
    {HashKind::kAdler32, "adler32"},
}};

class Xxh3Hasher final : public Hasher {
 public:
  Xxh3Hasher() : state_(XXH3_createState()) { Reset(); }
  void Update(base::ByteSpan bytes) override {
    XXH3_128bits_update(state_.get(), bytes.data(), bytes.size());
  }
  std::string Hex() const override {
    XXH128_canonical_t canonical;
    XXH128_canonicalFromHash(&canonical, XXH3_128bits_digest(state_.get()));
    return base::ToHex(canonical.digest);
  }
  void Reset() override { XXH3_128bits_reset(state_.get()); }

 private:
  struct Free {
    void operator()(XXH3_state_t* state) const { XXH3_freeState(state); }
  };
  std::unique_ptr<XXH3_state_t, Free> state_;
};

class Blake3Hasher final : public Hasher {
 public:
  void Update(base::ByteSpan bytes) override { state_.Update(bytes); }
  std::string Hex() const override { return base::ToHex(state_.Finish()); }
  void Reset() override { state_ = Blake3(); }

 private:
  Blake3 state_;
};

class Adler32Hasher final : public Hasher {
 public:
  void Update(base::ByteSpan bytes) override {
    // 5552 is the most bytes for which the sums cannot overflow 32 bits (RFC 1950).
    while (!bytes.empty()) {
      const base::ByteSpan part = bytes.first(std::min<std::size_t>(bytes.size(), 5552));
      for (const std::byte byte : part) {
        a_ += static_cast<std::uint32_t>(byte);
        b_ += a_;
      }
      a_ %= kModulus;
      b_ %= kModulus;
      bytes = bytes.subspan(part.size());
    }
  }
  std::string Hex() const override { return fmt::format("{:08x}", b_ << 16 | a_); }
  void Reset() override {
    a_ = 1;
    b_ = 0;
  }

 private:
  static constexpr std::uint32_t kModulus = 65521;
  std::uint32_t a_ = 1;
  std::uint32_t b_ = 0;
};

}  // namespace

std::optional<HashKind> FindHashKind(std::string_view name) {
  for (const auto& [kind, kind_name] : kNames) {
    if (kind_name == name) return kind;
  }
  return std::nullopt;
}

std::string_view Name(HashKind kind) {
  return std::ranges::find(kNames, kind, &std::pair<HashKind, std::string_view>::first)->second;
}

std::unique_ptr<Hasher> MakeHasher(HashKind kind) {
  switch (kind) {
    case HashKind::kXxh3:
      return std::make_unique<Xxh3Hasher>();
    case HashKind::kBlake3:
      return std::make_unique<Blake3Hasher>();
    case HashKind::kAdler32:
      return std::make_unique<Adler32Hasher>();
  }
  return nullptr;
}

std::string HashHex(HashKind kind, base::ByteSpan bytes) {
  const std::unique_ptr<Hasher> hasher = MakeHasher(kind);
  hasher->Update(bytes);
  return hasher->Hex();
}

}  // namespace syncline::tensor
