#include <algorithm>

#include "checker/checker.h"
#include "checker/device_hash.h"
#include "store/file_hash.h"

namespace syncline::checker {

std::string CheckHashHex(CheckHash kind, base::ByteSpan bytes) {
  if (kind == CheckHash::kSha256) return store::Sha256Hex(bytes).substr(0, 16);
  DeviceHash hash(bytes.size());
  hash.Add(0, bytes);
  return hash.Hex();
}

std::string OverallChecksum(std::vector<NamedHash> hashes) {
  std::ranges::sort(hashes, {}, &NamedHash::name);
  store::Sha256 sha;
  for (const NamedHash& hash : hashes) {
    sha.Update(base::AsBytes(hash.name));
    sha.Update(base::AsBytes(hash.hash));
  }
  return sha.Hex();
}

}  // namespace syncline::checker
